//! The state itself, and the few primitive changes from which everything else
//! is made.

use etcdpb::Record;

use crate::alarm::{Alarms, Quota};
use crate::effect::Effect;
use crate::history::{Event, History};
use crate::index::{Before, Index};
use crate::lease::{Lease, Leases};
use crate::span::Span;

/// What a record costs beyond the bytes of key and value, roughly: its
/// counters, its share of the index and its place in the history.
const RECORD_OVERHEAD_BYTES: i64 = 144;

/// Keys, their history, and leases.
pub struct Store {
    pub(crate) index: Index,
    pub(crate) history: History,
    pub(crate) leases: Leases,
    pub(crate) alarms: Alarms,
    pub(crate) quota: Quota,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Milliseconds that the store has been running in all.
    pub(crate) clock_ms: i64,
    collector: Collector,
    stats: Stats,
}

/// Where [`Store::collect`] stands.
struct Collector {
    /// What nobody can read at this revision is gone.
    done: i64,
    /// The revision that `done` will be after the pass under way. A pass keeps
    /// its target even when a later one would be allowed by now.
    target: i64,
    /// Events of `target` itself that the pass has visited. They can still be
    /// watched and stay; those before them are dropped as they are visited.
    visited: usize,
}

/// Sizes of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys that exist now.
    pub live_keys: i64,
    /// Bytes of all records that can be read, their overhead included.
    pub total_bytes: i64,
    /// The share of `total_bytes` that existing keys have now.
    pub live_bytes: i64,
    /// Events kept for watchers.
    pub events: i64,
    /// Leases that live.
    pub leases: i64,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            index: Index::default(),
            history: History::default(),
            leases: Leases::default(),
            alarms: Alarms::default(),
            quota: Quota::default(),
            // As etcd: an empty store is at revision 1, and "never compacted"
            // is -1, so that compacting revision 0 is allowed once.
            revision: Store::FIRST_REVISION,
            compacted: -1,
            clock_ms: 0,
            collector: Collector { done: -1, target: -1, visited: 0 },
            stats: Stats::default(),
        }
    }
}

/// A replayed effect contradicts the state that it is applied to.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("revision {found} follows revision {current}")]
pub struct OutOfOrder {
    found: i64,
    current: i64,
}

/// Whether effects that were read follow each other, for whoever looks at them
/// before a store does.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    revision: i64,
}

impl Default for Order {
    fn default() -> Self {
        Order { revision: Store::FIRST_REVISION }
    }
}

impl Order {
    /// Looks at the next effect; an error is the one that [`Store::replay`] has.
    pub fn follow(&mut self, effect: &Effect) -> Result<(), OutOfOrder> {
        match effect {
            Effect::Write(record) if record.mod_revision() < self.revision => {
                Err(OutOfOrder { found: record.mod_revision(), current: self.revision })
            }
            Effect::Write(record) => {
                self.revision = record.mod_revision();
                Ok(())
            }
            Effect::Revision(revision) => {
                self.revision = self.revision.max(*revision);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Store {
    /// That of an empty store.
    const FIRST_REVISION: i64 = 1;

    /// The revision of the last change.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The first revision that can still be read; -1 before any compaction.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Current sizes.
    pub fn stats(&self) -> Stats {
        let (events, leases) = (self.history.len() as i64, self.leases.len() as i64);
        Stats { events, leases, ..self.stats }
    }

    /// The lease with this ID.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// All leases, in no order.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter()
    }

    /// The store time that it was last told.
    pub fn clock_ms(&self) -> i64 {
        self.clock_ms
    }

    /// Says what the store time is; it never goes back.
    pub fn tick(&mut self, clock_ms: i64) {
        self.clock_ms = self.clock_ms.max(clock_ms);
    }

    /// Whether there are keys in `span`, deleted ones included until collected.
    pub fn knows(&self, span: &Span) -> bool {
        self.index.range(span, None).next().is_some()
    }

    /// The events of `revision` and later, in order. Those before the last
    /// compaction may be missing; whoever asks compares with
    /// [`Store::compacted`] under the same borrow.
    pub fn events_since(&self, revision: i64) -> impl Iterator<Item = &Event> {
        self.history.since(revision)
    }

    /// Repeats an effect that was read from the log.
    pub fn replay(&mut self, effect: Effect) -> Result<(), OutOfOrder> {
        match effect {
            Effect::Write(record) => {
                let found = record.mod_revision();
                if found < self.revision {
                    return Err(OutOfOrder { found, current: self.revision });
                }
                self.revision = found;
                self.install(record);
            }
            Effect::LeaseGranted { id, ttl_seconds, at_ms } => {
                self.tick(at_ms.unwrap_or(0));
                self.leases.insert(id, ttl_seconds, at_ms.unwrap_or(self.clock_ms));
            }
            Effect::LeaseRenewed { id, at_ms } => {
                self.tick(at_ms);
                // Gone by now if it was revoked in the batch of its renewal.
                let _ = self.leases.renew(id, at_ms);
            }
            Effect::AllLeasesRenewed { at_ms } => {
                self.tick(at_ms);
                self.leases.renew_all(at_ms);
            }
            Effect::Clock { ms } => self.tick(ms),
            Effect::LeaseRevoked { id } => self.leases.remove(id),
            Effect::Compacted { revision } => self.compacted = self.compacted.max(revision),
            Effect::Alarm { alarm, raised } => {
                self.alarms.set(alarm, raised);
            }
            Effect::Base(record) => drop(self.place(&record)),
            Effect::Revision(revision) => self.revision = self.revision.max(revision),
            Effect::Forgotten { key, range_end } => self.forget(&Span::new(&key, &range_end)),
            Effect::RevisionCeiling(_) | Effect::Opened(_) | Effect::Ended { .. } => {}
        }
        Ok(())
    }

    /// Drops the keys of a span, as if they had never been. Their events stay until
    /// they are compacted.
    fn forget(&mut self, span: &Span) {
        let Store { index, leases, stats, .. } = self;
        index.forget(span, |latest, older| {
            leases.detach(latest);
            if !latest.is_tombstone() {
                stats.live_keys -= 1;
                stats.live_bytes -= cost_bytes(latest);
            }
            stats.total_bytes -= cost_bytes(latest) + older.iter().map(cost_bytes).sum::<i64>();
        });
    }

    /// Makes `record` the newest of its key, with all that follows from it:
    /// the event, the lease's key set, the sizes.
    pub(crate) fn install(&mut self, record: Record) {
        let previous = self.place(&record).previous;
        self.history.push(Event { record, previous });
    }

    /// As [`Store::install`], but nobody is told.
    fn place(&mut self, record: &Record) -> Before {
        let before = self.index.push(record.clone());
        let latest = before.latest.as_ref();
        self.leases.reattach(latest, record);
        if let Some(latest) = latest {
            self.stats.live_keys -= 1;
            self.stats.live_bytes -= cost_bytes(latest);
        }
        if !record.is_tombstone() {
            self.stats.live_keys += 1;
            self.stats.live_bytes += cost_bytes(record);
        }
        self.stats.total_bytes += cost_bytes(record);
        before
    }

    /// Frees what the last compaction made unreadable, visiting at most
    /// `budget` events, and says whether there is more to do at once. What can
    /// be read at `floor` or later stays, for readers in the middle of a long
    /// range; call again when the floor has risen.
    pub fn collect(&mut self, floor: i64, budget: usize) -> bool {
        if self.collector.target == self.collector.done {
            let target = self.compacted.min(floor);
            if target <= self.collector.done {
                return false;
            }
            self.collector.target = target;
        }
        let target = self.collector.target;
        for _ in 0..budget {
            let event = self.history.get(self.collector.visited);
            let Some(event) = event.filter(|event| event.revision() <= target) else {
                self.collector = Collector { done: target, target, visited: 0 };
                return target < self.compacted.min(floor);
            };
            let (key, revision) = (event.record.key().clone(), event.revision());
            let stats = &mut self.stats;
            let freed = |record: &Record| stats.total_bytes -= cost_bytes(record);
            self.index.compact(key.as_bytes(), target, freed);
            if revision < target {
                self.history.pop_front();
            } else {
                self.collector.visited += 1;
            }
        }
        true
    }

    /// Gives back what containers hold in reserve, where that moves at most
    /// `entries` entries at once.
    pub fn release_reserves(&mut self, entries: usize) {
        if self.history.len() <= entries {
            self.history.shrink();
        }
        if self.leases.len() <= entries {
            self.leases.shrink();
        }
    }

    /// Whether nothing is left in memory of what cannot be read at `revision` or
    /// later.
    pub fn collected(&self, revision: i64) -> bool {
        self.collector.done >= revision
    }

    /// Number of keys in the index, deleted ones included until collected.
    pub fn indexed_keys(&self) -> usize {
        self.index.len()
    }
}

fn cost_bytes(record: &Record) -> i64 {
    (record.key().as_bytes().len() + record.value().len()) as i64 + RECORD_OVERHEAD_BYTES
}
