//! Snapshots: the whole state as effects, produced in bounded steps.
//!
//! A snapshot contains what reads and watches from the compacted revision on need:
//! leases, alarms, users and roles, the key-value pairs just before the compacted revision, and all events
//! since. It describes the revision at which it was started, even if the store changes
//! between steps. Until the snapshot is complete, the store must not collect history from
//! [`SnapshotCursor::oldest_needed_revision`] on.

use std::sync::Arc;

use etcdpb::{Key, Record};

use crate::effect::{Effect, Effects};
use crate::lease::LeaseCursor;
use crate::span::Span;
use crate::store::Store;

/// A step ends after the effect with which the keys and values exceed this size in bytes. So a
/// file with the effects of each step in one record has no record that is too large.
const STEP_BYTES: usize = 1 << 20;

/// A snapshot in progress.
pub struct SnapshotCursor {
    stage: Stage,
    /// The span of all keys.
    span: Span,
    /// The compacted revision when the snapshot was started.
    compacted: i64,
    /// The revision of the snapshot.
    revision: i64,
}

/// What the next step appends.
enum Stage {
    /// Leases, and at their end the `alarms`. Then users and roles.
    Leases { cursor: LeaseCursor, alarms: Effects, auth: Arc<auth::State> },
    /// Users and roles.
    Auth(auth::Export),
    /// Pairs from before the compacted revision, after this key.
    Base { after: Option<Key> },
    /// Events from this revision on, without its first `visited` events.
    Events { from: i64, visited: usize },
    /// Nothing: the snapshot is complete.
    Done,
}

impl SnapshotCursor {
    /// Starts a snapshot at the current revision, and appends its first effect.
    pub fn new(store: &Store, effects: &mut Effects) -> Self {
        SnapshotCursor::at_revision(store, store.revision, effects)
    }

    /// Starts a snapshot with the keys at `revision`, which must not be before the
    /// compacted revision. Everything else has its current state. Appends its first
    /// effect.
    pub fn at_revision(store: &Store, revision: i64, effects: &mut Effects) -> Self {
        let compacted = store.compacted;
        debug_assert!(compacted <= revision);
        effects.push(Effect::Clock { ms: store.clock_ms });
        let raised = |alarm| Effect::Alarm { alarm, raised: true };
        let alarms = store.alarms().map(raised).collect();
        let cursor = LeaseCursor::new(&store.leases, store.clock_ms);
        let stage = Stage::Leases { cursor, alarms, auth: store.auth.clone() };
        SnapshotCursor { stage, span: Span::new(&[], &[0]), compacted, revision }
    }

    /// Whether the next step appends leases. Until it does not, the leases that are revoked
    /// occupy memory.
    pub fn reads_leases(&self) -> bool {
        matches!(self.stage, Stage::Leases { .. })
    }

    /// Returns the first revision whose history the snapshot still needs.
    pub fn oldest_needed_revision(&self) -> i64 {
        self.compacted
    }

    /// Appends the effects of about `max_entries` leases, keys or events, or fewer if they are large:
    /// about 1 MiB. Returns false if the snapshot was already complete.
    pub fn step(&mut self, store: &Store, max_entries: usize, effects: &mut Effects) -> bool {
        match &mut self.stage {
            Stage::Leases { cursor, alarms, auth } => {
                if !cursor.step(&store.leases, max_entries, effects) {
                    effects.append(alarms);
                    self.stage = Stage::Auth(auth::Export::new(auth.clone()));
                }
            }
            Stage::Auth(export) => {
                if !push_auth(export, max_entries, effects) {
                    effects.push(Effect::Compacted { revision: self.compacted });
                    self.stage = Stage::Base { after: None };
                }
            }
            Stage::Base { after } => {
                let last = push_base(
                    store,
                    &self.span,
                    after.take(),
                    self.compacted,
                    max_entries,
                    effects,
                );
                self.stage = match last {
                    Some(last) => Stage::Base { after: Some(last) },
                    None => Stage::Events { from: self.compacted, visited: 0 },
                };
            }
            Stage::Events { from, visited } => {
                let after = (*from, *visited);
                match push_events(store, after, self.revision, max_entries, effects) {
                    Some(next) => (*from, *visited) = next,
                    None => {
                        effects.push(Effect::Revision(self.revision));
                        self.stage = Stage::Done;
                    }
                }
            }
            Stage::Done => return false,
        }
        true
    }
}

/// Appends users and roles. Returns whether there may be more.
fn push_auth(export: &mut auth::Export, max_entries: usize, effects: &mut Effects) -> bool {
    let mut bytes = 0;
    for _ in 0..max_entries {
        let Some(change) = export.next() else { return false };
        bytes += change.kind.content_len();
        effects.push(Effect::Auth(change));
        if bytes > STEP_BYTES {
            break;
        }
    }
    true
}

/// Appends pairs from before the compacted revision. Returns the key after which the next
/// step continues; `None` if there are no more pairs.
fn push_base(
    store: &Store,
    span: &Span,
    after: Option<Key>,
    compacted: i64,
    max_entries: usize,
    effects: &mut Effects,
) -> Option<Key> {
    let (mut last, mut bytes) = (None, 0);
    let after = after.as_ref().map(Key::as_bytes);
    for (visited, entry) in store.index.range(span, after).enumerate() {
        if visited == max_entries || bytes > STEP_BYTES {
            return last.map(Key::new);
        }
        last = Some(entry.key());
        // Changes at the compacted revision itself are appended as events.
        let record = entry.live_at(compacted).filter(|r| r.mod_revision() < compacted);
        bytes += record.map_or(0, record_bytes);
        effects.extend(record.cloned().map(Effect::Base));
    }
    None
}

/// Appends the events with revisions from `from` to `to`, without the first `visited` events of
/// `from`. Returns where the next step continues; `None` if there are no more events. A revision
/// can have millions of events, so a step may end within one.
fn push_events(
    store: &Store,
    (from, visited): (i64, usize),
    to: i64,
    max_entries: usize,
    effects: &mut Effects,
) -> Option<(i64, usize)> {
    let (mut revision, mut in_revision, mut bytes) = (from, visited, 0);
    for (count, event) in store.history.since(from).skip(visited).enumerate() {
        if event.revision() > to {
            return None;
        }
        if event.revision() > revision {
            (revision, in_revision) = (event.revision(), 0);
        }
        if count == max_entries || bytes > STEP_BYTES {
            return Some((revision, in_revision));
        }
        in_revision += 1;
        bytes += record_bytes(&event.record);
        effects.push(Effect::Write(event.record.clone()));
    }
    None
}

/// Returns the size of the key and the value in bytes.
fn record_bytes(record: &Record) -> usize {
    record.key().len() + record.value().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest step of a snapshot of `store` in bytes, and the number of effects.
    fn largest_step(store: &Store) -> (usize, usize) {
        let (mut effects, mut largest, mut count) = (Effects::new(), 0, 0);
        let mut cursor = SnapshotCursor::new(store, &mut effects);
        while cursor.step(store, 1000, &mut effects) {
            let mut payload = Vec::new();
            effects.iter().for_each(|effect| effect.encode(&mut payload));
            count += effects.len();
            effects.clear();
            largest = largest.max(payload.len());
        }
        (largest, count)
    }

    /// A step of many large values would not fit into a record of the file.
    #[test]
    fn a_step_ends_after_a_number_of_bytes() {
        let mut store = Store::default();
        let value = vec![b'x'; 300_000];
        for number in 1..=20 {
            let key = format!("key{number:02}");
            let record = Record::put(key.as_bytes(), &value, number + 1, number + 1, 1, 0);
            store.replay(Effect::Write(record)).unwrap();
        }
        let as_events = largest_step(&store);
        store.replay(Effect::Compacted { revision: 21 }).unwrap();
        let as_base = largest_step(&store);
        for (largest, effects) in [as_events, as_base] {
            assert!(largest < 2 << 20, "a step of {largest} bytes");
            assert!((22..=24).contains(&effects), "{effects} effects");
        }
    }

    /// A deletion of many keys is one revision.
    #[test]
    fn a_large_revision_is_read_in_steps() {
        let mut store = Store::default();
        let key = |number: i64| format!("key{number:04}").into_bytes();
        for number in 1..=1000 {
            let record = Record::put(&key(number), b"value", 2, 2, 1, 0);
            store.replay(Effect::Write(record)).unwrap();
        }
        for number in 1..=1000 {
            store.replay(Effect::Write(Record::tombstone(&key(number), 3))).unwrap();
        }
        let mut all = Effects::new();
        let mut cursor = SnapshotCursor::new(&store, &mut all);
        loop {
            let mut effects = Effects::new();
            if !cursor.step(&store, 64, &mut effects) {
                break;
            }
            assert!(effects.len() <= 66, "a step of {} effects", effects.len());
            all.append(&mut effects);
        }
        let mut restored = Store::default();
        all.into_iter().for_each(|effect| restored.replay(effect).unwrap());
        assert_eq!(restored.revision(), 3);
        let events = |store: &Store| -> Vec<_> {
            store.events_since(0).map(|e| (e.revision(), e.record.key().to_vec())).collect()
        };
        assert_eq!(events(&restored), events(&store));
        assert_eq!(events(&restored).len(), 2000);
    }

    fn store_with_leases(count: i64) -> Store {
        let mut store = Store::default();
        (1..=count).for_each(|id| grant(&mut store, id));
        store
    }

    fn grant(store: &mut Store, id: i64) {
        store.replay(Effect::LeaseGranted { id, ttl_seconds: 10, at_ms: Some(id) }).unwrap();
    }

    /// A snapshot reads leases in steps, and contains those of its start, whatever happens to
    /// them meanwhile.
    #[test]
    fn leases_are_read_in_steps() {
        let mut store = store_with_leases(100);
        for id in [7, 90] {
            store.replay(Effect::LeaseRevoked { id }).unwrap();
        }
        let mut effects = Effects::new();
        let mut cursor = SnapshotCursor::new(&store, &mut effects);
        let mut changes = (1..=100).rev().chain(101..200);
        loop {
            let before = effects.len();
            if !cursor.step(&store, 10, &mut effects) {
                break;
            }
            assert!(effects.len() - before <= 12, "{} effects", effects.len() - before);
            for id in changes.by_ref().take(8) {
                store.replay(Effect::LeaseRevoked { id }).unwrap();
                store.replay(Effect::LeaseGranted { id, ttl_seconds: 99, at_ms: None }).unwrap();
            }
        }
        assert!(changes.next().is_none_or(|id| id > 100), "every lease has changed");
        let mut restored = Store::default();
        effects.into_iter().for_each(|effect| restored.replay(effect).unwrap());
        let found: Vec<_> =
            restored.leases().map(|(id, l)| (id, l.ttl_seconds, l.ttl_start_ms)).collect();
        let ids = (1..=100).filter(|id| ![7, 90].contains(id));
        assert_eq!(found, ids.map(|id| (id, 10, id)).collect::<Vec<_>>());
    }
}
