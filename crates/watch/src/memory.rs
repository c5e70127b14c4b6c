//! The memory of the queues of all streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that the queues of all streams may use together, in bytes. If a batch would exceed
/// it, the watcher becomes unsynced: it reads history when the client reads.
const MAX_BYTES: usize = 256 << 20;

/// A queue of at most this size in bytes is accepted even if no memory is left, so that a few
/// small events and messages always fit.
const MIN_QUEUE_BYTES: usize = 4 << 10;

/// Counts the memory of the queues of all streams. A batch counts once, however many queues
/// share it.
///
/// A queue may use at most as much as it leaves free (a *dynamic threshold*). So the largest
/// queues stop growing first, and no list of queues is needed.
#[derive(Debug, Default)]
pub(crate) struct QueueMemory {
    used: AtomicUsize,
}

impl QueueMemory {
    /// Whether a queue may have `bytes` bytes, its batches included.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        let free = MAX_BYTES.saturating_sub(self.used.load(Ordering::Relaxed));
        bytes <= MIN_QUEUE_BYTES.max(free)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Memory that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<QueueMemory>,
    bytes: AtomicUsize,
}

impl Charge {
    pub(crate) fn new(memory: &Arc<QueueMemory>, bytes: usize) -> Self {
        memory.add(bytes);
        Charge { memory: memory.clone(), bytes: AtomicUsize::new(bytes) }
    }

    pub(crate) fn grow(&self, bytes: usize) {
        self.memory.add(bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.subtract(*self.bytes.get_mut());
    }
}
