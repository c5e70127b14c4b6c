//! How a command gets at the store while other threads wait for it.

use std::ops::DerefMut;

use crate::store::Store;

/// Exclusive access to the store during one command.
///
/// A command of a transaction or a deletion may visit millions of keys. It reports them in
/// steps, and an implementation may give up the access for a moment in between, so that
/// readers do not wait for the whole command. This is safe, because readers read at the
/// published revision and do not see the changes of a command that is not complete.
pub trait StoreAccess: DerefMut<Target = Store> {
    /// Called between two steps, with the number of keys that the last step visited. No
    /// other thread may change the store meanwhile.
    fn visited(&mut self, keys: usize);

    /// The limits of a transaction.
    fn txn_limits(&self) -> TxnLimits;
}

/// The limits on what a transaction that writes may read with exclusive access.
#[derive(Clone, Copy, Debug)]
pub struct TxnLimits {
    /// Maximum number of keys that the ranges of a transaction visit. The rest is read
    /// later: see [`crate::TxnCursor`].
    pub range_keys: usize,
    /// Maximum number of bytes of values that the ranges of a transaction sort. The rest is
    /// sorted later, too.
    pub sort_bytes: usize,
    /// Maximum number of keys that the compares of a transaction visit. A transaction with
    /// more is rejected.
    pub compare_keys: usize,
}

/// Access to a store that no other thread uses.
impl StoreAccess for &mut Store {
    fn visited(&mut self, _: usize) {}

    fn txn_limits(&self) -> TxnLimits {
        TxnLimits { range_keys: usize::MAX, sort_bytes: usize::MAX, compare_keys: usize::MAX }
    }
}

/// Number of keys that a step visits.
pub(crate) const STEP_KEYS: usize = 128;
