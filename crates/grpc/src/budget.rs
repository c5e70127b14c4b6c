//! A limit on the memory for received messages of all connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::status::Status;

/// The memory in bytes that the messages of all connections may occupy while they are
/// incomplete or unread.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { used: AtomicUsize::new(0), limit })
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The part of the budget that one message uses. It is returned when the share is
/// dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Share { budget, bytes: 0 }
    }

    /// Takes `bytes` more bytes from the budget. Fails if the budget has fewer left.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let used = self.budget.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.budget.limit {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Status::resource_exhausted("grpc: too many unread messages"));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
