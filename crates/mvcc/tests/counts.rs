//! Counts and pages at the newest and at earlier revisions, compared with a naive model. There
//! are more changes than `model.rs` has, so that counts use all the ways of `key_changes.rs`.

use std::collections::BTreeMap;

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use mvcc::{Command, Effect, RangeCursor, Store};
use proptest::prelude::*;

/// Number of keys.
const KEYS: u16 = 700;

/// For each key the revisions at which it was changed, and whether it existed then.
#[derive(Default)]
struct Model {
    changes: BTreeMap<Vec<u8>, Vec<(i64, bool)>>,
}

impl Model {
    fn set(&mut self, key: &[u8], revision: i64, exists: bool) {
        let changes = self.changes.entry(key.to_vec()).or_default();
        changes.retain(|(changed, _)| *changed < revision);
        changes.push((revision, exists));
    }

    /// Returns the keys of a span that exist at `revision`.
    fn keys(&self, request: &RangeRequest, revision: i64) -> Vec<Vec<u8>> {
        let span = request.key.to_vec()..request.range_end.to_vec();
        let exists_at = |changes: &Vec<(i64, bool)>| {
            let visible = changes.partition_point(|(changed, _)| *changed <= revision);
            changes[..visible].last().is_some_and(|(_, exists)| *exists)
        };
        let found = self.changes.range(span).filter(|(_, changes)| exists_at(changes));
        found.map(|(key, _)| key.clone()).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Puts a number of keys, each at its own revision.
    Put {
        first: u16,
        stride: u16,
        count: u16,
    },
    /// Deletes a span of keys at one revision.
    Delete {
        first: u16,
        len: u16,
    },
    /// Deletes a span of keys, and puts some of them again at the same revision.
    Replace {
        first: u16,
        len: u16,
        put: u16,
    },
    /// Compacts the oldest part of the readable revisions, in percent.
    Compact {
        percent: i64,
    },
    Collect {
        max_events: usize,
    },
    /// Starts to read a span. `age` is that of the revision, in percent of the readable ones.
    Read {
        first: u16,
        len: u16,
        age: i64,
        limit: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let first = || 0u16..KEYS;
    prop_oneof![
        6 => (first(), 1u16..30, 1u16..500)
            .prop_map(|(first, stride, count)| Step::Put { first, stride, count }),
        4 => (first(), 1u16..500).prop_map(|(first, len)| Step::Delete { first, len }),
        2 => (first(), 1u16..500, 0u16..50)
            .prop_map(|(first, len, put)| Step::Replace { first, len, put }),
        1 => (0i64..100).prop_map(|percent| Step::Compact { percent }),
        3 => (1usize..3000).prop_map(|max_events| Step::Collect { max_events }),
        8 => (first(), 0u16..KEYS, 0i64..=100, prop_oneof![Just(-1i64), Just(0), 1i64..40])
            .prop_map(|(first, len, age, limit)| Step::Read { first, len, age, limit }),
    ]
}

fn key(number: u16) -> Vec<u8> {
    format!("/key/{number:04}").into_bytes()
}

fn delete(first: u16, len: u16) -> DeleteRangeRequest {
    let (key, range_end) = (key(first).into(), key(first + len).into());
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

fn put(key: Vec<u8>) -> PutRequest {
    PutRequest { key: key.into(), ..Default::default() }
}

/// A read in progress, with the keys that it must find.
struct Read {
    cursor: RangeCursor,
    request: RangeRequest,
    expected: Vec<Vec<u8>>,
}

/// The store and the model after the same commands.
#[derive(Default)]
struct Run {
    store: Store,
    model: Model,
    /// The effects of all commands.
    log: Vec<Effect>,
    reads: Vec<Read>,
}

impl Run {
    fn execute(&mut self, step: &Step) {
        match *step {
            Step::Put { first, stride, count } => {
                let keys = (0..count).map(|n| key((first + n * stride) % KEYS));
                keys.for_each(|key| self.put(key));
            }
            Step::Delete { first, len } => self.delete(first, len),
            Step::Replace { first, len, put } => self.replace(first, len, put.min(len)),
            Step::Compact { percent } => {
                let revision = self.readable(100 - percent);
                let compaction = Command::Compact { revision };
                // The revision may already be compacted.
                let _ = self.store.apply(&compaction, &mut self.log);
            }
            Step::Collect { max_events } => {
                let read = self.reads.iter().map(|read| read.cursor.revision());
                self.store.collect(read.min().unwrap_or(i64::MAX), max_events);
            }
            Step::Read { first, len, age, limit } => self.start_read(first, len, age, limit),
        }
    }

    fn put(&mut self, key: Vec<u8>) {
        self.apply(&Command::Put(put(key.clone())));
        self.model.set(&key, self.store.revision(), true);
    }

    fn delete(&mut self, first: u16, len: u16) {
        self.apply(&Command::DeleteRange(delete(first, len)));
        self.delete_in_model(first, len);
    }

    fn replace(&mut self, first: u16, len: u16, put_keys: u16) {
        let mut ops = vec![Request::RequestDeleteRange(delete(first, len))];
        let keys: Vec<_> = (0..put_keys).map(|n| key(first + n)).collect();
        ops.extend(keys.iter().cloned().map(|key| Request::RequestPut(put(key))));
        let op = |request| RequestOp { request: Some(request) };
        let success = ops.into_iter().map(op).collect();
        self.apply(&Command::Txn(TxnRequest { success, ..Default::default() }));
        self.delete_in_model(first, len);
        keys.iter().for_each(|key| self.model.set(key, self.store.revision(), true));
    }

    fn delete_in_model(&mut self, first: u16, len: u16) {
        let revision = self.store.revision();
        let request = RangeRequest {
            key: key(first).into(),
            range_end: key(first + len).into(),
            ..Default::default()
        };
        // If no key existed, the revision is that of an earlier change.
        for key in self.model.keys(&request, revision) {
            self.model.set(&key, revision, false);
        }
    }

    fn apply(&mut self, command: &Command) {
        self.store.apply(command, &mut self.log).unwrap();
    }

    /// Returns the readable revision with this age, in percent.
    fn readable(&self, age: i64) -> i64 {
        let (oldest, newest) = (self.store.compacted().max(1), self.store.revision());
        newest - (newest - oldest) * age / 100
    }

    /// Starts a read. A negative limit stands for a count without keys.
    fn start_read(&mut self, first: u16, len: u16, age: i64, limit: i64) {
        let revision = self.readable(age);
        let request = RangeRequest {
            key: key(first).into(),
            range_end: key(first + len).into(),
            limit: limit.max(0),
            count_only: limit < 0,
            revision,
            ..Default::default()
        };
        let cursor = RangeCursor::new(&self.store, &request, self.store.revision(), true).unwrap();
        let expected = self.model.keys(&request, revision);
        self.reads.push(Read { cursor, request, expected });
    }

    /// Continues all reads, and checks those that are complete.
    fn continue_reads(&mut self, max_keys: usize) {
        for mut read in std::mem::take(&mut self.reads) {
            match read.cursor.step(&self.store, max_keys) {
                true => read.check(),
                false => self.reads.push(read),
            }
        }
    }

    /// Counts spans at many revisions.
    fn check_counts(&mut self) {
        for age in (0..=100).step_by(5) {
            self.start_read(0, KEYS, age, -1);
            self.start_read(KEYS / 3, KEYS / 3, age, -1);
        }
        self.continue_reads(usize::MAX);
        assert!(self.reads.is_empty());
    }
}

impl Read {
    fn check(self) {
        let Read { cursor, request, expected } = self;
        let found = cursor.finish();
        assert_eq!(found.count, expected.len() as i64, "the count of {request:?}");
        let returned = match request.limit {
            _ if request.count_only => 0,
            0 => expected.len(),
            limit => expected.len().min(limit as usize),
        };
        assert!(found.kvs.iter().map(|kv| kv.key()).eq(&expected[..returned]));
        assert_eq!(found.more, !request.count_only && returned < expected.len());
    }
}

/// Returns a store that the effects were replayed to.
fn replay(effects: &[Effect]) -> Store {
    let mut store = Store::default();
    effects.iter().for_each(|effect| store.replay(effect.clone()).unwrap());
    store
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_and_pages_equal_those_of_the_naive_model(
        steps in prop::collection::vec((step(), 1usize..200), 1..60),
    ) {
        let mut run = Run::default();
        for (step, max_keys) in &steps {
            run.continue_reads(*max_keys);
            run.execute(step);
        }
        while !run.reads.is_empty() {
            run.continue_reads(100);
        }
        run.check_counts();
        while run.store.collect(i64::MAX, 100) {}
        run.check_counts();
        run.store = replay(&run.log);
        run.check_counts();
    }
}

/// After 100,000 creations and deletions, a count at an old revision visits few of them once
/// their blocks are sorted.
#[test]
fn a_count_at_an_old_revision_takes_few_steps() {
    let mut run = Run::default();
    (0..KEYS).for_each(|number| run.put(key(number)));
    let revision = run.store.revision();
    for n in 0..50_000u32 {
        let number = (n % u32::from(KEYS)) as u16;
        run.delete(number, 1);
        run.put(key(number));
    }
    let request = RangeRequest {
        key: key(100).into(),
        range_end: key(600).into(),
        count_only: true,
        revision,
        ..Default::default()
    };
    let steps = || {
        let current = run.store.revision();
        let mut cursor = RangeCursor::new(&run.store, &request, current, true).unwrap();
        let steps = 1 + (0..).take_while(|_| !cursor.step(&run.store, 1000)).count();
        assert_eq!(cursor.finish().count, 500);
        steps
    };
    assert!(steps() >= 90, "the first count sorts each block");
    let steps = steps();
    assert!(steps <= 5, "{steps} steps");
}

/// The changes that are too old for any count are removed with the events.
#[test]
fn a_collection_removes_old_changes() {
    let mut run = Run::default();
    for _ in 0..5 {
        (0..KEYS).for_each(|number| run.put(key(number)));
        run.delete(0, KEYS);
    }
    (0..10).for_each(|number| run.put(key(number)));
    assert!(run.store.key_changes() > 7000);
    let revision = run.store.revision();
    run.apply(&Command::Compact { revision });
    while run.store.collect(i64::MAX, 100) {}
    assert!(run.store.key_changes() <= 1024, "only an incomplete block is left");
    run.check_counts();
}
