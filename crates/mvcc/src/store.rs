//! The state of the store, its sizes, and the functions that add and remove records.

use std::sync::Arc;

use etcdpb::Record;

use crate::alarm::{Alarms, Quota};
use crate::history::{Event, History};
use crate::index::{Index, Replaced};
use crate::key_changes::KeyChanges;
use crate::lease::{Lease, Leases};
use crate::span::Span;
use crate::undo::Undo;

/// Approximate memory of a record in bytes, in addition to its key and value: its
/// numbers, its index entry and its history entry.
const RECORD_OVERHEAD_BYTES: i64 = 144;

/// Approximate memory of a lease in bytes: its entries in the store and in the lessor. The
/// keys attached to it are counted with their records.
pub(crate) const LEASE_BYTES: i64 = 200;

/// All keys with their history, leases, alarms, users and roles.
pub struct Store {
    pub(crate) index: Index,
    pub(crate) history: History,
    /// The creations and deletions of keys since the last compaction.
    pub(crate) key_changes: KeyChanges,
    pub(crate) leases: Leases,
    pub(crate) alarms: Alarms,
    pub(crate) auth: Arc<auth::State>,
    pub(crate) quota: Quota,
    /// The revision of the last change.
    pub(crate) revision: i64,
    /// The compacted revision, the oldest that can be read; -1 before any compaction.
    pub(crate) compacted: i64,
    /// The compacted revision that readers see. It lags behind `compacted` only while a batch
    /// that has compacted can be taken back.
    pub(crate) published_compacted: i64,
    /// Store time in milliseconds: how long the store has been running in total.
    pub(crate) clock_ms: i64,
    pub(crate) collection: CollectionProgress,
    /// How to take back the commands of the current batch, if this has to be possible.
    pub(crate) undo: Option<Undo>,
    pub(crate) stats: Stats,
}

/// The progress of [`Store::collect`].
pub(crate) struct CollectionProgress {
    /// All data that cannot be read at this revision or later has been freed.
    pub(crate) done: i64,
    /// The value that `done` gets at the end of the current pass. It stays the same
    /// during a pass, even if a later compaction would permit a higher one.
    pub(crate) target: i64,
    /// Number of events with revision `target` that the pass has visited. They stay in
    /// the history, because they can still be watched. The pass removes the events of
    /// earlier revisions.
    pub(crate) visited: usize,
}

/// The sizes of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of existing keys.
    pub live_keys: i64,
    /// Size in bytes of all records that are not yet collected, including their overhead,
    /// and of all leases.
    pub total_bytes: i64,
    /// The part of `total_bytes` that the newest records of existing keys and the leases
    /// have.
    pub live_bytes: i64,
    /// Number of events in the history.
    pub events: i64,
    /// Number of existing leases.
    pub leases: i64,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            index: Index::default(),
            history: History::default(),
            key_changes: KeyChanges::default(),
            leases: Leases::default(),
            alarms: Alarms::default(),
            auth: Arc::default(),
            quota: Quota::default(),
            // As in etcd, an empty store has revision 1, and -1 means that it was never
            // compacted. So compacting at revision 0 succeeds once.
            revision: Store::FIRST_REVISION,
            compacted: -1,
            published_compacted: -1,
            clock_ms: 0,
            collection: CollectionProgress { done: -1, target: -1, visited: 0 },
            undo: None,
            stats: Stats::default(),
        }
    }
}

impl Store {
    /// The revision of an empty store.
    pub(crate) const FIRST_REVISION: i64 = 1;

    /// Returns the revision of the last change.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the compacted revision, the oldest that can be read; -1 before any
    /// compaction. A compaction that can be taken back does not count.
    #[expect(clippy::misnamed_getters, reason = "others see only what is published")]
    pub fn compacted(&self) -> i64 {
        self.published_compacted
    }

    /// Lets readers see that a batch has compacted at `revision`: it can no longer be taken
    /// back.
    pub fn publish_compacted(&mut self, revision: i64) {
        self.published_compacted = self.published_compacted.max(revision);
    }

    /// Returns the current sizes.
    pub fn stats(&self) -> Stats {
        let (events, leases) = (self.history.len() as i64, self.leases.len() as i64);
        let Stats { live_keys, total_bytes, live_bytes, .. } = self.stats;
        let lease_bytes = leases * LEASE_BYTES;
        let (total_bytes, live_bytes) = (total_bytes + lease_bytes, live_bytes + lease_bytes);
        Stats { live_keys, total_bytes, live_bytes, events, leases }
    }

    /// Returns the lease with this ID.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// Returns all leases, ordered by ID.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter()
    }

    /// Returns the leases with higher IDs than `after`, or all leases, ordered by ID.
    pub fn leases_after(&self, after: Option<i64>) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.after(after)
    }

    /// Returns users and roles.
    pub fn auth(&self) -> &Arc<auth::State> {
        &self.auth
    }

    /// Returns the store time in milliseconds that the last [`Store::tick`] set.
    pub fn clock_ms(&self) -> i64 {
        self.clock_ms
    }

    /// Sets the store time in milliseconds. A lower time than the current one has no
    /// effect.
    pub fn tick(&mut self, clock_ms: i64) {
        self.clock_ms = self.clock_ms.max(clock_ms);
    }

    /// Whether the index has keys in `span`, including deleted keys that are not yet
    /// collected.
    pub fn has_keys_in(&self, span: &Span) -> bool {
        self.index.range(span, None).next().is_some()
    }

    /// Returns the number of keys in the index, including deleted keys that are not yet
    /// collected.
    pub fn indexed_keys(&self) -> usize {
        self.index.len()
    }

    /// Returns the number of creations and deletions of keys that are stored for counts at
    /// earlier revisions.
    pub fn key_changes(&self) -> usize {
        self.key_changes.len()
    }

    /// Returns the events of `revision` and later, in order. Events before the compacted
    /// revision may be missing: compare `revision` with [`Store::compacted`] under the
    /// same lock.
    pub fn events_since(&self, revision: i64) -> impl Iterator<Item = &Event> {
        self.history.since(revision)
    }

    /// Makes `record` the newest record of its key, and adds an event to the history. Returns
    /// the record before it, if the key existed.
    pub(crate) fn install(&mut self, record: Record) -> Option<Record> {
        let Replaced { live, previous, .. } = self.install_without_event(&record);
        let is_changed = live.is_some() == record.is_tombstone();
        if is_changed {
            self.key_changes.push(record.clone());
        }
        self.history.push(Event { record, previous });
        live
    }

    /// Makes `record` the newest record of its key. Updates the leases and the sizes.
    /// Returns the records before it.
    pub(crate) fn install_without_event(&mut self, record: &Record) -> Replaced {
        let replaced = self.index.push(record.clone());
        let live = replaced.live.as_ref();
        self.leases.reattach(live, record);
        if let Some(live) = live {
            self.stats.live_keys -= 1;
            self.stats.live_bytes -= record_bytes(live);
        }
        if !record.is_tombstone() {
            self.stats.live_keys += 1;
            self.stats.live_bytes += record_bytes(record);
        }
        let removed_bytes = replaced.removed.as_ref().map_or(0, record_bytes);
        self.stats.total_bytes += record_bytes(record) - removed_bytes;
        replaced
    }

    /// Removes the keys of a span with all their records. Their events stay in the
    /// history until they are collected.
    pub(crate) fn remove_span(&mut self, span: &Span) {
        let Store { index, leases, stats, .. } = self;
        index.remove_span(span, |latest, older| {
            leases.detach(latest);
            if !latest.is_tombstone() {
                stats.live_keys -= 1;
                stats.live_bytes -= record_bytes(latest);
            }
            let older_bytes = older.iter().map(record_bytes).sum::<i64>();
            stats.total_bytes -= record_bytes(latest) + older_bytes;
        });
    }
}

/// Returns the size of a record in bytes, as [`Stats`] counts it.
pub(crate) fn record_bytes(record: &Record) -> i64 {
    (record.key().len() + record.value().len()) as i64 + RECORD_OVERHEAD_BYTES
}
