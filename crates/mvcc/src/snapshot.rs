//! The whole state as effects, in steps.
//!
//! A snapshot repeats what is needed to answer every read and every watch from
//! the compaction on: the leases, the alarms, the pairs as they were just before it, and all
//! events since. It is taken while the store goes on changing, so it describes
//! the revision at which it began, and whoever takes it keeps the history from
//! the compaction on from being collected.

use etcdpb::Key;

use crate::effect::{Effect, Effects};
use crate::{Span, Store};

/// A snapshot on its way through the state.
pub struct SnapshotCursor {
    stage: Stage,
    /// Everything, to walk the index with.
    span: Span,
    compacted: i64,
    revision: i64,
}

enum Stage {
    Base {
        after: Option<Key>,
    },
    /// Events from this revision on are to be written.
    Events {
        from: i64,
    },
    Done,
}

impl SnapshotCursor {
    /// Begins a snapshot of the present; the effects so far are the beginning of
    /// it. What can be read from [`SnapshotCursor::floor`] on must stay.
    pub fn new(store: &Store, effects: &mut Effects) -> Self {
        SnapshotCursor::at(store, store.revision, effects)
    }

    /// As [`SnapshotCursor::new`], but the keys are those of `revision`, which is
    /// not before the compaction.
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

    /// The first revision that is still needed.
    pub fn floor(&self) -> i64 {
        self.compacted
    }

    /// Appends the effects of at most about `budget` keys or events, and says
    /// whether there is more.
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

/// The pairs before the events of `compacted`; returns where to go on.
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
        // What changed at `compacted` itself comes with the events.
        let record = entry.live_at(compacted).filter(|r| r.mod_revision() < compacted);
        effects.extend(record.cloned().map(Effect::Base));
    }
    None
}

/// The events from one revision to another; returns where to go on, which is
/// never inside a revision.
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
