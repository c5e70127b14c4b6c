//! Pins: keep the history of a revision readable while a long read needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Keeps the history of a revision readable until it is dropped or expires.
pub(crate) struct Pin {
    pins: Arc<Mutex<Pins>>,
    revision: i64,
    number: u64,
}

/// All pinned revisions. The garbage collector stops at [`Pins::floor`].
#[derive(Default)]
pub(crate) struct Pins {
    /// When each pin expires, by revision and number; `None` for never.
    expiries: BTreeMap<(i64, u64), Option<Instant>>,
    next: u64,
}

impl Pins {
    /// Removes expired pins and returns the lowest pinned revision.
    pub(crate) fn floor(&mut self, now: Instant) -> i64 {
        while let Some(first) = self.expiries.first_entry() {
            if first.get().is_none_or(|expiry| expiry > now) {
                return first.key().0;
            }
            first.remove();
        }
        i64::MAX
    }
}

impl Pin {
    /// Pins `revision`, at most until `expiry` if it is set. The caller must hold the
    /// lock of the store, so that the history is not collected before it is pinned.
    pub(crate) fn new(pins: &Arc<Mutex<Pins>>, revision: i64, expiry: Option<Instant>) -> Self {
        let mut table = pins.lock();
        let number = table.next;
        table.next += 1;
        table.expiries.insert((revision, number), expiry);
        Pin { pins: pins.clone(), revision, number }
    }

    /// The pinned revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Postpones the expiry, unless the pin has already expired.
    pub(crate) fn extend(&self, expiry: Instant) {
        if let Some(current) = self.pins.lock().expiries.get_mut(&(self.revision, self.number)) {
            *current = Some(expiry);
        }
    }

    /// Whether the pin has expired, so that its history may be collected.
    pub(crate) fn expired(&self) -> bool {
        !self.pins.lock().expiries.contains_key(&(self.revision, self.number))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.lock().expiries.remove(&(self.revision, self.number));
    }
}
