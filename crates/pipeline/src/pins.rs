//! Pins: they keep the history of a revision readable while a long read needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use mvcc::Store;
use parking_lot::Mutex;

use crate::Error;

/// Keeps the history from a revision on readable until it is dropped or expires.
pub(crate) struct Pin {
    pins: Arc<Mutex<Pins>>,
    revision: i64,
    id: u64,
}

/// All pins. The garbage collector keeps what can be read at [`Pins::oldest`] or later.
#[derive(Default)]
pub(crate) struct Pins {
    /// When each pin expires, by its revision and its ID; `None` for never.
    expiries: BTreeMap<(i64, u64), Option<Instant>>,
    next_id: u64,
}

impl Pins {
    /// Removes expired pins, and returns the lowest revision of the others; `i64::MAX` if
    /// there are none.
    pub(crate) fn oldest(&mut self, now: Instant) -> i64 {
        while let Some(first) = self.expiries.first_entry() {
            if first.get().is_none_or(|expiry| expiry > now) {
                return first.key().0;
            }
            first.remove();
        }
        i64::MAX
    }
}

impl Pins {
    /// Lets all pins expire: another history replaces the one that they keep.
    pub(crate) fn clear(&mut self) {
        self.expiries.clear();
    }
}

impl Pin {
    /// Pins `revision`, until `expiry` at most if it is set. The caller must hold the
    /// lock of the store, so that the history is not collected before it is pinned.
    pub(crate) fn new(pins: &Arc<Mutex<Pins>>, revision: i64, expiry: Option<Instant>) -> Self {
        let mut table = pins.lock();
        let id = table.next_id;
        table.next_id += 1;
        table.expiries.insert((revision, id), expiry);
        Pin { pins: pins.clone(), revision, id }
    }

    /// Returns the pinned revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Postpones the expiry, unless the pin has already expired.
    pub(crate) fn extend(&self, expiry: Instant) {
        if let Some(current) = self.pins.lock().expiries.get_mut(&(self.revision, self.id)) {
            *current = Some(expiry);
        }
    }

    /// Makes the pin never expire. Returns false if it has already expired.
    pub(crate) fn keep(&self) -> bool {
        let mut table = self.pins.lock();
        let expiry = table.expiries.get_mut(&(self.revision, self.id));
        expiry.map(|expiry| *expiry = None).is_some()
    }

    /// Fails if the history of the pin may have been collected or replaced, and `store` does not
    /// contain it any more.
    pub(crate) fn check(&self, store: &Store) -> Result<(), Error> {
        match self.revision < store.compacted() && self.expired() {
            true => Err(mvcc::Error::Compacted.into()),
            false => Ok(()),
        }
    }

    /// Whether the pin has expired, so that its history may be collected.
    pub(crate) fn expired(&self) -> bool {
        !self.pins.lock().expiries.contains_key(&(self.revision, self.id))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.lock().expiries.remove(&(self.revision, self.id));
    }
}
