//! The whole state as effects, produced in bounded steps.
//!
//! A snapshot contains everything needed to serve reads and watches from the last
//! compaction on: leases, alarms, the key-value pairs just before the compacted revision,
//! and all events since. The store may change between steps: the snapshot describes the
//! revision at which it was started. Until the snapshot is complete, the caller must not
//! let the store collect history from [`SnapshotCursor::floor`] on.

use etcdpb::Key;

use crate::effect::{Effect, Effects};
use crate::span::Span;
use crate::store::Store;

/// A snapshot in progress.
pub struct SnapshotCursor {
    stage: Stage,
    /// The span of all keys.
    span: Span,
    compacted: i64,
    revision: i64,
}

enum Stage {
    Base {
        after: Option<Key>,
    },
    /// Events from this revision on are still to be written.
    Events {
        from: i64,
    },
    Done,
}

impl SnapshotCursor {
    /// Starts a snapshot at the current revision and appends its first effects.
    pub fn new(store: &Store, effects: &mut Effects) -> Self {
        SnapshotCursor::at(store, store.revision, effects)
    }

    /// Starts a snapshot of the keys at `revision`, which must not be before the
    /// last compaction.
    pub fn at(store: &Store, revision: i64, effects: &mut Effects) -> Self {
        let compacted = store.compacted;
        debug_assert!(compacted <= revision);
        effects.push(Effect::Clock { ms: store.clock_ms });
        effects.extend(store.leases.iter().map(|(id, lease)| Effect::LeaseGranted {
            id,
            ttl_seconds: lease.ttl_seconds,
            at_ms: Some(lease.since_ms),
        }));
        effects.extend(store.alarms().map(|alarm| Effect::Alarm { alarm, raised: true }));
        effects.push(Effect::Compacted { revision: compacted });
        let stage = Stage::Base { after: None };
        SnapshotCursor { stage, span: Span::new(&[], &[0]), compacted, revision }
    }

    /// The first revision whose history the snapshot still needs.
    pub fn floor(&self) -> i64 {
        self.compacted
    }

    /// Appends the effects of about `budget` keys or events. Returns false if the
    /// snapshot was already complete.
    pub fn step(&mut self, store: &Store, budget: usize, effects: &mut Effects) -> bool {
        match &mut self.stage {
            Stage::Base { after } => {
                let last = base(store, &self.span, after.take(), self.compacted, budget, effects);
                self.stage = match last {
                    Some(last) => Stage::Base { after: Some(last) },
                    None => Stage::Events { from: self.compacted },
                };
            }
            Stage::Events { from } => match events(store, *from, self.revision, budget, effects) {
                Some(next) => *from = next,
                None => {
                    effects.push(Effect::Revision(self.revision));
                    self.stage = Stage::Done;
                }
            },
            Stage::Done => return false,
        }
        true
    }
}

/// Appends the pairs before the events of `compacted`. Returns the key after which
/// the next step continues.
fn base(
    store: &Store,
    span: &Span,
    after: Option<Key>,
    compacted: i64,
    budget: usize,
    effects: &mut Effects,
) -> Option<Key> {
    let mut last: Option<&Key> = None;
    let after = after.as_ref().map(Key::as_bytes);
    for (visited, (key, entry)) in store.index.range(span, after).enumerate() {
        if visited == budget {
            return last.cloned();
        }
        last = Some(key);
        // Changes at `compacted` itself are written as events.
        let record = entry.live_at(compacted).filter(|r| r.mod_revision() < compacted);
        effects.extend(record.cloned().map(Effect::Base));
    }
    None
}

/// Appends the events from one revision to another. Returns the revision at which
/// the next step continues; a revision is never split.
fn events(store: &Store, from: i64, to: i64, budget: usize, effects: &mut Effects) -> Option<i64> {
    let mut last = from;
    for (visited, event) in store.history.since(from).enumerate() {
        if event.revision() > to {
            return None;
        }
        if visited >= budget && event.revision() > last {
            return Some(event.revision());
        }
        last = event.revision();
        effects.push(Effect::Write(event.record.clone()));
    }
    None
}
