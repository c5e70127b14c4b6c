//! Garbage collection: frees, in bounded steps, the records and events that a compaction
//! has made unreadable.

use etcdpb::Record;

use crate::store::{CollectionProgress, Store, record_bytes};

impl Store {
    /// Frees unreadable records and events. Visits at most `max_events` events. Returns
    /// whether another call could free more now.
    ///
    /// Records and events that can be read at `oldest_needed` or later stay, even if they
    /// are compacted: long ranges, snapshots and hashes still need them. Call this again
    /// after `oldest_needed` has risen.
    pub fn collect(&mut self, oldest_needed: i64, max_events: usize) -> bool {
        if self.collection.target == self.collection.done {
            let target = self.compacted.min(oldest_needed);
            if target <= self.collection.done {
                return false;
            }
            self.collection.target = target;
        }
        let target = self.collection.target;
        self.key_changes.remove(target, max_events);
        for _ in 0..max_events {
            let event = self.history.get(self.collection.visited);
            let Some(event) = event.filter(|event| event.revision() <= target) else {
                self.collection = CollectionProgress { done: target, target, visited: 0 };
                return target < self.compacted.min(oldest_needed);
            };
            let revision = event.revision();
            let stats = &mut self.stats;
            let freed = |record: &Record| stats.total_bytes -= record_bytes(record);
            self.index.compact(event.record.key(), target, freed);
            if revision < target {
                self.history.pop_front();
            } else {
                self.collection.visited += 1;
            }
        }
        true
    }

    /// Whether all data that cannot be read at `revision` or later has been freed.
    pub fn is_collected(&self, revision: i64) -> bool {
        self.collection.done >= revision
    }

    /// Releases the unused capacity of the history. A history with more than `max_entries`
    /// entries is left as it is, because moving its entries would block other users of the
    /// store for too long.
    pub fn shrink_tables(&mut self, max_entries: usize) {
        if self.history.len() <= max_entries {
            self.history.shrink();
        }
    }
}
