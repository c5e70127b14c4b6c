//! The lock that the applier holds while it changes the store.

use std::ops::{Deref, DerefMut};

use mvcc::{Store, StoreAccess, TxnLimits};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::pace::{SMALL_SORT_BYTES, STEP_ENTRIES};

/// Maximum number of keys that the ranges of a transaction visit while other commands wait.
/// The rest is read after the transaction was committed. Transactions of Kubernetes have at
/// most one range, of one key.
const TXN_RANGE_KEYS: usize = 1000;
/// Maximum number of keys that the compares of a transaction visit. Other commands wait
/// for about 10 ms meanwhile.
pub(crate) const TXN_COMPARE_KEYS: usize = 100_000;

/// The store, locked for the commands of a round. A command that visits many keys lets
/// waiting readers run between its steps. Other writers wait.
pub(crate) struct ExclusiveStore<'a> {
    guard: RwLockWriteGuard<'a, Store>,
    /// Number of keys visited since readers could run.
    visited: usize,
}

impl<'a> ExclusiveStore<'a> {
    pub(crate) fn lock(store: &'a RwLock<Store>) -> Self {
        ExclusiveStore { guard: store.write(), visited: 0 }
    }

    /// Lets other readers in, and continues to read.
    pub(crate) fn downgrade(self) -> RwLockReadGuard<'a, Store> {
        RwLockWriteGuard::downgrade(self.guard)
    }
}

impl Deref for ExclusiveStore<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.guard
    }
}

impl DerefMut for ExclusiveStore<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.guard
    }
}

impl StoreAccess for ExclusiveStore<'_> {
    fn visited(&mut self, keys: usize) {
        self.visited += keys;
        if self.visited >= STEP_ENTRIES {
            self.visited = 0;
            RwLockWriteGuard::bump(&mut self.guard);
        }
    }

    fn txn_limits(&self) -> TxnLimits {
        TxnLimits {
            range_keys: TXN_RANGE_KEYS,
            sort_bytes: SMALL_SORT_BYTES,
            compare_keys: TXN_COMPARE_KEYS,
        }
    }
}
