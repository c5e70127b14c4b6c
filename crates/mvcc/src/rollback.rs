//! Takes back the commands of a batch: see `undo`.

use crate::store::{Store, record_bytes};
use crate::undo::{Change, Undo};

impl Store {
    /// Notes from now on how to take back the commands that are executed, until
    /// [`Store::end_undo`].
    pub fn begin_undo(&mut self) {
        self.undo = Some(Undo {
            revision: self.revision,
            compacted: self.compacted,
            auth: self.auth.clone(),
            changes: Vec::new(),
        });
    }

    /// Returns what takes back the commands since [`Store::begin_undo`].
    ///
    /// # Panics
    /// If there was no such call.
    pub fn end_undo(&mut self) -> Undo {
        self.undo.take().expect("begin_undo was called before")
    }

    /// Notes a change, if somebody wants to know how to take it back.
    pub(crate) fn note_change(&mut self, change: impl FnOnce(&Store) -> Option<Change>) {
        if self.undo.is_none() {
            return;
        }
        let change = change(self);
        self.undo.as_mut().expect("it is set").changes.extend(change);
    }

    /// Takes back the commands of a batch. Batches are taken back in reverse order. Nothing after
    /// [`Undo::revision`] may have been published, and no history from [`Undo::compacted`] on may
    /// have been collected.
    pub fn undo(&mut self, undo: Undo) {
        debug_assert!(self.collection.target <= undo.compacted, "history is missing");
        // Leases come first: keys are attached to those that existed before.
        for change in undo.changes.into_iter().rev() {
            match change {
                Change::Granted(id) => self.leases.remove(id),
                Change::Renewed { id, ttl_start_ms } => {
                    self.leases.set_ttl_start(id, ttl_start_ms);
                }
                Change::Revoked { id, granted } => self.leases.restore(id, granted),
                Change::Alarm { alarm, was_raised } => {
                    self.alarms.set(alarm, was_raised);
                }
            }
        }
        while let Some(event) = self.history.pop_newer(undo.revision) {
            self.uninstall(event.record.key(), event.revision());
        }
        self.key_changes.remove_newer(undo.revision);
        self.revision = undo.revision;
        self.compacted = undo.compacted;
        self.auth = undo.auth;
    }

    /// Removes the record of a key that has this revision, if it is the newest one. If the revision
    /// has changed the key twice, the index contains only the second record.
    fn uninstall(&mut self, key: &[u8], revision: i64) {
        let Some(popped) = self.index.pop(key, revision) else { return };
        let live = |record: &&etcdpb::Record| !record.is_tombstone();
        self.stats.total_bytes -= record_bytes(&popped.removed);
        if let Some(removed) = Some(&popped.removed).filter(live) {
            self.leases.detach(removed);
            self.stats.live_keys -= 1;
            self.stats.live_bytes -= record_bytes(removed);
        }
        if let Some(restored) = popped.restored.as_ref().filter(live) {
            self.leases.reattach(None, restored);
            self.stats.live_keys += 1;
            self.stats.live_bytes += record_bytes(restored);
        }
    }
}
