//! Limits on memory that all connections share fairly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::status::Status;

/// Memory in bytes, or number of places, that all connections of a server may use together for
/// one purpose.
///
/// A connection may use at most as much as it leaves free for the others (a *dynamic
/// threshold*, as network switches use it for their packet memory). So one connection gets
/// at most half of the budget. As long as what they took is returned, `n` greedy connections get
/// `n / (n + 1)` of it, and a further connection finds room. If nothing is returned, each further
/// one gets half of the rest. No list of connections is needed.
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

    /// Number of bytes that are not used. It is 0 if more than the limit is used.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The part of a budget that one connection uses. It is returned when the account is
/// dropped.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    used: AtomicUsize,
}

impl Account {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Account { budget, used: AtomicUsize::new(0) }
    }

    /// Number of bytes that the connection uses.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Number of bytes that no connection uses.
    pub(crate) fn free(&self) -> usize {
        self.budget.free()
    }

    /// Takes `bytes` more bytes. Returns false if the connection would then use more than
    /// it leaves free.
    fn try_add(&self, bytes: usize) -> bool {
        let free = self.free();
        let own = self.used() + bytes;
        if own > free {
            return false;
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn subtract(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sets the number of bytes that the connection uses, whether they are free or not.
    /// Only one thread may call it at a time.
    pub(crate) fn set(&self, bytes: usize) {
        let before = self.used.swap(bytes, Ordering::Relaxed);
        match bytes >= before {
            true => self.budget.used.fetch_add(bytes - before, Ordering::Relaxed),
            false => self.budget.used.fetch_sub(before - bytes, Ordering::Relaxed),
        };
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.used.get_mut(), Ordering::Relaxed);
    }
}

/// The part of an account that one message uses. It is returned when the share is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Share { account, bytes: 0 }
    }

    /// Takes `bytes` more bytes. Fails if the connection may not use as many.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        if !self.account.try_add(bytes) {
            return Err(Status::resource_exhausted("grpc: too many unread messages"));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes or returns as many bytes that the share has `bytes` bytes. Fails if the
    /// connection may not use as many.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Status> {
        match bytes.checked_sub(self.bytes) {
            // Even if the connection uses more than it leaves free by now.
            Some(0) => {}
            Some(more) => self.grow(more)?,
            None => {
                self.account.subtract(self.bytes - bytes);
                self.bytes = bytes;
            }
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as much as the account gets, in steps of 100 bytes.
    fn exhaust(account: &Account) -> usize {
        while account.try_add(100) {}
        account.used()
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let budget = Budget::new(100_000);
        let accounts: Vec<_> = (0..10).map(|_| Account::new(budget.clone())).collect();
        let got: Vec<usize> = accounts.iter().map(exhaust).collect();
        assert_eq!(got[..3], [50_000, 25_000, 12_500]);
        assert!(got.iter().all(|bytes| *bytes > 0), "{got:?}");
        // When the first one gives up a part, another one may use it.
        accounts[0].subtract(30_000);
        assert!(exhaust(&accounts[9]) > 10_000);
        drop(accounts);
        assert_eq!(budget.used(), 0);
    }
}
