//! Random commands, with each reply compared with a naive model: a full copy of the
//! key space for every revision. proptest shrinks and prints a failing case and
//! stores its seed in `model.seeds`.

use std::collections::{BTreeMap, BTreeSet};

use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use etcdpb::{KeyValue, Record};
use mvcc::{Command, Effect, Error, HashCursor, RangeCursor, Reply, SnapshotCursor, Store};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[derive(Clone, Debug, PartialEq)]
struct Pair {
    value: Vec<u8>,
    create: i64,
    modified: i64,
    version: i64,
    lease: i64,
}

type Keys = BTreeMap<Vec<u8>, Pair>;

/// The naive model: all keys at each revision.
struct Model {
    revisions: Vec<Keys>,
    compacted: i64,
    /// The store time of the grant or the last renewal, by lease ID.
    leases: BTreeMap<i64, i64>,
    clock_ms: i64,
}

impl Model {
    fn new() -> Self {
        // Revision 0 does not exist, revision 1 is the empty store.
        let revisions = vec![Keys::new(), Keys::new()];
        Model { revisions, compacted: -1, leases: BTreeMap::new(), clock_ms: 0 }
    }

    fn revision(&self) -> i64 {
        self.revisions.len() as i64 - 1
    }

    fn now(&self) -> &Keys {
        self.revisions.last().unwrap()
    }

    fn check_put(&self, put: &PutRequest) -> Result<(), Error> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(Error::LeaseNotFound);
        }
        let needs = put.ignore_value || put.ignore_lease;
        if needs && !self.now().contains_key(&put.key[..]) {
            return Err(Error::KeyNotFound);
        }
        Ok(())
    }

    fn put(&self, keys: &mut Keys, put: &PutRequest) {
        let next = self.revision() + 1;
        let before = keys.get(&put.key[..]).cloned();
        let pair = Pair {
            value: match &before {
                Some(b) if put.ignore_value => b.value.clone(),
                _ => put.value.to_vec(),
            },
            create: before.as_ref().map_or(next, |b| b.create),
            modified: next,
            version: before.as_ref().map_or(1, |b| b.version + 1),
            lease: match &before {
                Some(b) if put.ignore_lease => b.lease,
                _ => put.lease,
            },
        };
        keys.insert(put.key.to_vec(), pair);
    }

    fn delete(&self, keys: &mut Keys, key: &[u8], end: &[u8]) -> i64 {
        let before = keys.len();
        keys.retain(|k, _| !inside(k, key, end));
        (before - keys.len()) as i64
    }

    fn commit(&mut self, keys: Keys, changed: bool) {
        if changed {
            self.revisions.push(keys);
        }
    }

    fn readable(&self, requested: i64) -> Result<i64, Error> {
        match requested {
            ..=0 => Ok(self.revision()),
            r if r > self.revision() => Err(Error::FutureRevision),
            r if r < self.compacted => Err(Error::Compacted),
            r => Ok(r),
        }
    }

    fn compare(&self, compare: &Compare) -> bool {
        let matching: Vec<&Pair> = self
            .now()
            .iter()
            .filter(|(k, _)| inside(k, &compare.key, &compare.range_end))
            .map(|(_, pair)| pair)
            .collect();
        let holds = |pair: Option<&Pair>| {
            let order = match compare.target_union.as_ref().unwrap() {
                TargetUnion::Version(n) => pair.map_or(0, |p| p.version).cmp(n),
                TargetUnion::CreateRevision(n) => pair.map_or(0, |p| p.create).cmp(n),
                TargetUnion::ModRevision(n) => pair.map_or(0, |p| p.modified).cmp(n),
                TargetUnion::Lease(n) => pair.map_or(0, |p| p.lease).cmp(n),
                TargetUnion::Value(v) => match pair {
                    None => return false,
                    Some(p) => p.value[..].cmp(&v[..]),
                },
            };
            match compare.result() {
                CompareResult::Equal => order.is_eq(),
                CompareResult::NotEqual => order.is_ne(),
                CompareResult::Greater => order.is_gt(),
                CompareResult::Less => order.is_lt(),
            }
        };
        match matching.is_empty() {
            true => holds(None),
            false => matching.into_iter().all(|pair| holds(Some(pair))),
        }
    }
}

fn inside(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}

fn check_range(got: &RangeResponse, keys: &Keys, request: &RangeRequest) {
    let all: Vec<_> =
        keys.iter().filter(|(k, _)| inside(k, &request.key, &request.range_end)).collect();
    assert_eq!(got.count, all.len() as i64, "count of {request:?}");
    if request.count_only {
        assert!(got.kvs.is_empty());
        return;
    }
    let wanted = match request.limit {
        ..=0 => all.len(),
        limit => all.len().min(limit as usize),
    };
    assert_eq!(got.more, wanted < all.len(), "more of {request:?}");
    assert_eq!(got.kvs.len(), wanted);
    for (kv, (key, pair)) in got.kvs.iter().zip(&all) {
        assert_eq!(kv.key(), &key[..]);
        assert_eq!(pair_of(kv, request.keys_only.then_some(*pair)), **pair);
    }
}

/// Converts a pair of a response. The fields that a keys-only response omits are
/// taken from `rest`.
fn pair_of(kv: &KeyValue, rest: Option<&Pair>) -> Pair {
    if rest.is_some() {
        assert!(kv.value().is_empty() && kv.lease() == 0);
    }
    Pair {
        value: rest.map_or_else(|| kv.value().to_vec(), |pair| pair.value.clone()),
        create: kv.create_revision(),
        modified: kv.mod_revision(),
        version: kv.version(),
        lease: rest.map_or_else(|| kv.lease(), |pair| pair.lease),
    }
}

/// Few keys and small numbers, so that commands affect the same keys.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0u8..8).prop_map(|n| vec![b'a' + n]),
        (0u8..4, 0u8..3).prop_map(|(a, b)| vec![b'a' + a, b]),
    ]
}

fn end() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => Just(vec![]), 1 => Just(vec![0]), 3 => key()]
}

fn put() -> impl Strategy<Value = PutRequest> {
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), any::<bool>());
    (
        key(),
        prop::collection::vec(any::<u8>(), 0..4),
        prop_oneof![4 => Just(0i64), 1 => 1i64..4],
        flags,
    )
        .prop_map(|(key, value, lease, (ignore_value, ignore_lease, prev_kv))| PutRequest {
            key: key.into(),
            value: if ignore_value { Default::default() } else { value.into() },
            lease: if ignore_lease { 0 } else { lease },
            prev_kv,
            ignore_value,
            ignore_lease,
        })
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), end(), any::<bool>()).prop_map(|(key, end, prev_kv)| DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        prev_kv,
    })
}

fn range() -> impl Strategy<Value = RangeRequest> {
    (key(), end(), -1i64..4, -1i64..40, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(key, end, limit, revision, keys_only, count_only)| RangeRequest {
            key: key.into(),
            range_end: end.into(),
            limit,
            revision,
            keys_only,
            count_only,
            ..Default::default()
        },
    )
}

fn compare() -> impl Strategy<Value = Compare> {
    let operand = prop_oneof![
        (0i64..4).prop_map(TargetUnion::Version),
        (0i64..20).prop_map(TargetUnion::CreateRevision),
        (0i64..20).prop_map(TargetUnion::ModRevision),
        (0i64..4).prop_map(TargetUnion::Lease),
        prop::collection::vec(any::<u8>(), 0..2).prop_map(|v| TargetUnion::Value(v.into())),
    ];
    (key(), end(), operand, 0i32..4).prop_map(|(key, end, operand, result)| Compare {
        result,
        target: match operand {
            TargetUnion::Version(_) => CompareTarget::Version,
            TargetUnion::CreateRevision(_) => CompareTarget::Create,
            TargetUnion::ModRevision(_) => CompareTarget::Mod,
            TargetUnion::Value(_) => CompareTarget::Value,
            TargetUnion::Lease(_) => CompareTarget::Lease,
        } as i32,
        key: key.into(),
        target_union: Some(operand),
        range_end: end.into(),
    })
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let op = prop_oneof![
        range().prop_map(Request::RequestRange),
        put().prop_map(Request::RequestPut),
        delete().prop_map(Request::RequestDeleteRange),
    ]
    .prop_map(|request| RequestOp { request: Some(request) });
    let leaf = (
        prop::collection::vec(compare(), 0..2),
        prop::collection::vec(op.clone(), 0..4),
        prop::collection::vec(op, 0..4),
    )
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure });
    leaf.prop_recursive(2, 8, 2, |inner| {
        (inner.clone(), inner, any::<bool>()).prop_map(|(mut outer, inner, first)| {
            let op = RequestOp { request: Some(Request::RequestTxn(inner)) };
            let ops = if first { &mut outer.success } else { &mut outer.failure };
            ops.insert(0, op);
            outer
        })
    })
}

#[derive(Clone, Debug)]
enum Step {
    Do(Command),
    Range(RangeRequest),
    Collect { floor_back: i64, budget: usize },
    Tick { ms: i64 },
    Watch { from: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => put().prop_map(|put| Step::Do(Command::Put(put))),
        2 => delete().prop_map(|delete| Step::Do(Command::DeleteRange(delete))),
        4 => txn().prop_map(|txn| Step::Do(Command::Txn(txn))),
        1 => (-2i64..40).prop_map(|revision| Step::Do(Command::Compact { revision })),
        1 => (0i64..4, prop_oneof![1i64..100, Just(i64::MAX)])
            .prop_map(|(id, ttl_seconds)| Step::Do(Command::LeaseGrant { id, ttl_seconds })),
        1 => (0i64..4).prop_map(|id| Step::Do(Command::LeaseRevoke { id })),
        1 => (0i64..4).prop_map(|id| Step::Do(Command::LeaseRenew { id })),
        1 => (0i64..1000).prop_map(|ms| Step::Tick { ms }),
        6 => range().prop_map(Step::Range),
        3 => (0i64..5, 1usize..6).prop_map(|(floor_back, budget)| Step::Collect { floor_back, budget }),
        2 => (1i64..40).prop_map(|from| Step::Watch { from }),
    ]
}

/// Whether no key is put twice, or put and deleted, in one transaction. The API layer
/// rejects such transactions, so the store does not have to handle them.
fn well_formed(request: &TxnRequest) -> bool {
    fn written_spans(request: &TxnRequest, out: &mut Vec<(Vec<u8>, Vec<u8>)>) {
        for op in request.success.iter().chain(&request.failure) {
            match &op.request {
                Some(Request::RequestPut(p)) => out.push((p.key.to_vec(), vec![])),
                Some(Request::RequestDeleteRange(d)) => {
                    out.push((d.key.to_vec(), d.range_end.to_vec()))
                }
                Some(Request::RequestTxn(nested)) => written_spans(nested, out),
                _ => {}
            }
        }
    }
    let mut spans = Vec::new();
    written_spans(request, &mut spans);
    let points: Vec<_> = spans.iter().enumerate().filter(|(_, s)| s.1.is_empty()).collect();
    points.iter().all(|(i, (key, _))| {
        spans.iter().enumerate().all(|(j, (start, end))| *i == j || !inside(key, start, end))
    })
}

struct Run {
    store: Store,
    model: Model,
    log: Vec<u8>,
    /// The log without the writes of unlogged keys.
    partial_log: Vec<u8>,
    /// Every event so far, derived from the model.
    events: Vec<Change>,
}

/// A revision, a key, and the pair after and before the change.
type Change = (i64, Vec<u8>, Option<Pair>, Option<Pair>);

impl Run {
    fn command(&mut self, command: &Command) {
        if let Command::Txn(txn) = command
            && !well_formed(txn)
        {
            return;
        }
        let mut effects = Vec::new();
        let bound = self.store.effect_bytes(command);
        let got = self.store.apply(command, &mut effects);
        let expected = self.expect(command, &got);
        match (&got, expected) {
            (Err(got), Err(expected)) => assert_eq!(*got, expected, "{command:?}"),
            (Ok(_), Ok(())) => {}
            (got, expected) => panic!("{command:?}: {got:?}, expected {expected:?}"),
        }
        assert_eq!(self.store.revision(), self.model.revision(), "{command:?}");
        assert!(got.is_ok() || effects.is_empty(), "a rejected command has effects");
        let before = self.log.len();
        effects.iter().for_each(|effect| effect.encode(&mut self.log));
        assert!(self.log.len() - before <= bound, "the effects of {command:?} exceed the bound");
        let logged = |effect: &&Effect| match effect {
            Effect::Write(record) => !is_unlogged(record.key().as_bytes()),
            _ => true,
        };
        effects.iter().filter(logged).for_each(|effect| effect.encode(&mut self.partial_log));
    }

    fn expect(&mut self, command: &Command, got: &Result<Reply, Error>) -> Result<(), Error> {
        match command {
            Command::Put(put) => {
                self.model.check_put(put)?;
                let mut keys = self.model.now().clone();
                self.model.put(&mut keys, put);
                if let Ok(Reply::Put(response)) = got {
                    let before = self.model.now().get(&put.key[..]).filter(|_| put.prev_kv);
                    let prev = response.prev_kv.as_ref().map(|kv| pair_of(kv, None));
                    assert_eq!(prev.as_ref(), before);
                }
                self.commit(keys, true);
            }
            Command::DeleteRange(delete) => {
                let mut keys = self.model.now().clone();
                let deleted = self.model.delete(&mut keys, &delete.key, &delete.range_end);
                let Ok(Reply::DeleteRange(response)) = got else { panic!("{got:?}") };
                assert_eq!(response.deleted, deleted);
                let previous = if delete.prev_kv { deleted } else { 0 };
                assert_eq!(response.prev_kvs.len() as i64, previous);
                self.commit(keys, deleted > 0);
            }
            Command::Txn(txn) => return self.expect_txn(txn, got),
            Command::Compact { revision } => {
                if *revision <= self.model.compacted {
                    return Err(Error::Compacted);
                }
                if *revision > self.model.revision() {
                    return Err(Error::FutureRevision);
                }
                self.model.compacted = *revision;
            }
            Command::LeaseGrant { id, ttl_seconds } => match () {
                () if *id == 0 => return Err(Error::LeaseNotFound),
                () if *ttl_seconds == i64::MAX => return Err(Error::LeaseTtlTooLarge),
                () if self.model.leases.contains_key(id) => return Err(Error::LeaseExists),
                () => drop(self.model.leases.insert(*id, self.model.clock_ms)),
            },
            Command::LeaseRenew { id } => {
                let clock_ms = self.model.clock_ms;
                *self.model.leases.get_mut(id).ok_or(Error::LeaseNotFound)? = clock_ms;
            }
            Command::LeaseRevoke { id } => {
                if self.model.leases.remove(id).is_none() {
                    return Err(Error::LeaseNotFound);
                }
                let mut keys = self.model.now().clone();
                keys.retain(|_, pair| pair.lease != *id);
                let changed = keys.len() != self.model.now().len();
                self.commit(keys, changed);
            }
            Command::Alarm { .. } => unreachable!("not among the steps"),
        }
        Ok(())
    }

    fn expect_txn(&mut self, txn: &TxnRequest, got: &Result<Reply, Error>) -> Result<(), Error> {
        let mut path = Vec::new();
        self.decide(txn, &mut path);
        self.check_txn(txn, &mut path.iter().copied())?;
        let Ok(Reply::Txn(response)) = got else { panic!("{txn:?}: {got:?}") };
        let mut keys = self.model.now().clone();
        let mut changed = false;
        self.execute(txn, &mut path.iter().copied(), response, &mut keys, &mut changed);
        self.commit(keys, changed);
        assert_eq!(response.header.as_ref().unwrap().revision, self.model.revision());
        if mvcc::is_read_only(txn) {
            let again = self.store.read_txn(txn, self.store.revision());
            assert_eq!(again.as_ref(), Ok(response));
        }
        Ok(())
    }

    fn decide(&self, txn: &TxnRequest, path: &mut Vec<bool>) {
        let taken = txn.compare.iter().all(|compare| self.model.compare(compare));
        path.push(taken);
        for op in if taken { &txn.success } else { &txn.failure } {
            if let Some(Request::RequestTxn(nested)) = &op.request {
                self.decide(nested, path);
            }
        }
    }

    fn check_txn(
        &self,
        txn: &TxnRequest,
        path: &mut impl Iterator<Item = bool>,
    ) -> Result<(), Error> {
        for op in if path.next().unwrap() { &txn.success } else { &txn.failure } {
            match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    if range.revision != 0 && range.revision < self.model.compacted {
                        return Err(Error::Compacted);
                    }
                    self.model.readable(range.revision)?;
                }
                Request::RequestPut(put) => self.model.check_put(put)?,
                Request::RequestTxn(nested) => self.check_txn(nested, path)?,
                Request::RequestDeleteRange(_) => {}
            }
        }
        Ok(())
    }

    fn execute(
        &self,
        txn: &TxnRequest,
        path: &mut impl Iterator<Item = bool>,
        got: &TxnResponse,
        keys: &mut Keys,
        changed: &mut bool,
    ) {
        let taken = path.next().unwrap();
        assert_eq!(got.succeeded, taken);
        let ops = if taken { &txn.success } else { &txn.failure };
        assert_eq!(got.responses.len(), ops.len());
        for (op, response) in ops.iter().zip(&got.responses) {
            match (op.request.as_ref().unwrap(), response.response.as_ref().unwrap()) {
                (Request::RequestRange(range), Response::ResponseRange(got)) => {
                    let past = (range.revision > 0)
                        .then(|| self.model.revisions[range.revision as usize].clone());
                    check_range(got, past.as_ref().unwrap_or(keys), range);
                }
                (Request::RequestPut(put), Response::ResponsePut(_)) => {
                    self.model.put(keys, put);
                    *changed = true;
                }
                (Request::RequestDeleteRange(d), Response::ResponseDeleteRange(got)) => {
                    assert_eq!(got.deleted, self.model.delete(keys, &d.key, &d.range_end));
                    *changed |= got.deleted > 0;
                }
                (Request::RequestTxn(nested), Response::ResponseTxn(got)) => {
                    self.execute(nested, path, got, keys, changed)
                }
                (request, response) => panic!("{request:?} answered by {response:?}"),
            }
        }
    }

    fn commit(&mut self, keys: Keys, changed: bool) {
        let before = self.model.now().clone();
        self.model.commit(keys, changed);
        if changed {
            let revision = self.model.revision();
            let names: BTreeSet<_> = before.keys().chain(self.model.now().keys()).collect();
            for key in names {
                let (old, new) = (before.get(key), self.model.now().get(key));
                if old != new {
                    self.events.push((revision, key.clone(), new.cloned(), old.cloned()));
                }
            }
        }
    }

    fn range(&self, request: &RangeRequest, budget: usize) {
        let expected = self.model.readable(request.revision);
        match RangeCursor::new(&self.store, request, self.store.revision(), true) {
            Err(got) => assert_eq!(Err(got), expected),
            Ok(mut cursor) => {
                while !cursor.step(&self.store, budget) {}
                let got = cursor.finish();
                check_range(&got, &self.model.revisions[expected.unwrap() as usize], request);
                assert_eq!(got.header.unwrap().revision, self.model.revision());
            }
        }
    }

    fn watch(&self, from: i64) {
        if from < self.model.compacted {
            return;
        }
        let pair = |record: &Record| {
            (!record.is_tombstone()).then(|| pair_of(&KeyValue::from(record.clone()), None))
        };
        let mut got: Vec<_> = self
            .store
            .events_since(from)
            .map(|event| {
                let key = event.record.key().as_bytes().to_vec();
                // The pair before the compaction may or may not be known.
                let is_known = event.revision() > self.model.compacted;
                let before = event.previous.as_ref().filter(|_| is_known).and_then(pair);
                (event.revision(), key, pair(&event.record), before)
            })
            .collect();
        got.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut expected: Vec<_> =
            self.events.iter().filter(|event| event.0 >= from).cloned().collect();
        expected.iter_mut().filter(|e| e.0 <= self.model.compacted).for_each(|e| e.3 = None);
        assert_eq!(got, expected, "events since {from}");
    }

    fn every_revision(&self) {
        for revision in self.model.compacted.max(1)..=self.model.revision() {
            self.range(&RangeRequest { revision, ..everything() }, 1);
            self.watch(revision);
        }
    }

    /// A store restored from a snapshot that is taken while commands are executed.
    fn restored(&mut self, meanwhile: &[Command]) -> Store {
        let mut effects = Vec::new();
        let mut cursor = SnapshotCursor::new(&self.store, &mut effects);
        let log_start = self.log.len();
        let mut meanwhile = meanwhile.iter();
        while cursor.step(&self.store, 2, &mut effects) {
            if let Some(command) = meanwhile.next() {
                self.command(command);
            }
            self.store.collect(cursor.floor(), 2);
        }
        let mut snapshot = Vec::new();
        effects.iter().for_each(|effect| effect.encode(&mut snapshot));
        snapshot.extend_from_slice(&self.log[log_start..]);
        replay(&snapshot)
    }

    /// Stores after a restart in which some keys are not durable: once because their
    /// writes were never logged, once because they were removed when the WAL mode
    /// changed. All other keys are there, at a revision after every published one,
    /// without earlier history.
    fn without_unlogged_keys(&self) -> [Store; 2] {
        let (first, end) = (UNLOGGED.to_vec(), vec![UNLOGGED[0] + 1]);
        let mut removed = replay(&self.log);
        removed.replay(Effect::SpanRemoved { key: first, range_end: end }).unwrap();
        let mut stores = [replay(&self.partial_log), removed];
        let restart = self.model.revision() + 2;
        for store in &mut stores {
            store.replay(Effect::Revision(restart)).unwrap();
            store.replay(Effect::Compacted { revision: restart }).unwrap();
            while store.collect(i64::MAX, 3) {}
        }
        stores
    }

    fn check_leases(&self, store: &Store, keys: &Keys) {
        let found: BTreeMap<_, _> = store
            .leases()
            .map(|(id, lease)| {
                let keys: Vec<_> = lease.keys.iter().map(|k| k.as_bytes().to_vec()).collect();
                (id, (lease.since_ms, keys))
            })
            .collect();
        let attached = |id| keys.iter().filter(move |(_, pair)| pair.lease == id);
        let expected: BTreeMap<_, _> = self
            .model
            .leases
            .iter()
            .map(|(id, since)| (*id, (*since, attached(*id).map(|(k, _)| k.clone()).collect())))
            .collect();
        assert_eq!(found, expected);
    }

    /// A store restored from the log.
    fn replayed(&self) -> Store {
        replay(&self.log)
    }
}

/// The prefix of keys whose writes a WAL mode does not log.
const UNLOGGED: &[u8] = b"c";

fn is_unlogged(key: &[u8]) -> bool {
    key.starts_with(UNLOGGED)
}

fn replay(mut log: &[u8]) -> Store {
    let mut store = Store::default();
    while !log.is_empty() {
        store.replay(Effect::decode(&mut log).unwrap()).unwrap();
    }
    store
}

fn everything() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() }
}

/// The hash of every readable revision.
fn hashes(store: &Store) -> Vec<u32> {
    let current = store.revision();
    let hash = |revision| {
        let mut cursor = HashCursor::new(store, revision, current).unwrap();
        while cursor.gather(store, 2) {
            cursor.digest();
        }
        cursor.finish().0
    };
    (store.compacted().max(1)..=current).map(hash).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model.seeds"))), ..ProptestConfig::default() })]

    #[test]
    fn replies_equal_those_of_the_naive_model(
        steps in prop::collection::vec(step(), 1..60),
        meanwhile in prop::collection::vec(put().prop_map(Command::Put), 0..10),
    ) {
        let (store, model) = (Store::default(), Model::new());
        let (log, partial_log) = (Vec::new(), Vec::new());
        let mut run = Run { store, model, log, partial_log, events: Vec::new() };
        for step in &steps {
            match step {
                Step::Do(command) => run.command(command),
                Step::Range(request) => run.range(request, 2),
                Step::Watch { from } => run.watch(*from),
                Step::Tick { ms } => {
                    run.model.clock_ms += ms;
                    run.store.tick(run.model.clock_ms);
                }
                Step::Collect { floor_back, budget } => {
                    let floor = run.store.revision() - floor_back;
                    run.store.collect(floor, *budget);
                }
            }
        }
        let mut restored = run.restored(&meanwhile);
        let stats = run.store.stats();
        prop_assert_eq!(stats.live_keys, run.model.now().len() as i64);
        let hashes = hashes(&run.store);

        while run.store.collect(i64::MAX, 3) {}
        let mut replayed = run.replayed();
        while replayed.collect(i64::MAX, 3) {}
        let collected = run.store.stats();
        prop_assert_eq!(replayed.stats(), collected);
        prop_assert!(collected.total_bytes >= collected.live_bytes);
        prop_assert_eq!(collected.live_bytes, stats.live_bytes);

        while restored.collect(i64::MAX, 3) {}
        prop_assert_eq!(restored.stats(), collected);
        for store in [&run.store, &replayed, &restored] {
            prop_assert_eq!(&self::hashes(store), &hashes);
        }

        let mut rest = run.model.now().clone();
        rest.retain(|key, _| !is_unlogged(key));
        for store in run.without_unlogged_keys() {
            let mut cursor =
                RangeCursor::new(&store, &everything(), store.revision(), true).unwrap();
            cursor.step(&store, usize::MAX);
            check_range(&cursor.finish(), &rest, &everything());
            run.check_leases(&store, &rest);
            let stats = store.stats();
            prop_assert_eq!(stats.live_keys as usize, rest.len());
            prop_assert_eq!((store.indexed_keys(), stats.events), (rest.len(), 0));
            prop_assert_eq!(stats.total_bytes, stats.live_bytes);
        }

        for store in [replayed, restored] {
            run.every_revision();
            run.check_leases(&run.store, run.model.now());
            run.store = store;
        }
        run.every_revision();
        run.check_leases(&run.store, run.model.now());
    }
}

/// After a compaction to the newest revision and collection, the index contains only
/// the live keys with one record each.
#[test]
fn collection_leaves_only_live_records() {
    let mut store = Store::default();
    let mut effects = Vec::new();
    for n in 0..1000u32 {
        let key = (n % 10).to_string().into_bytes();
        let put = PutRequest { key: key.into(), value: vec![0; 100].into(), ..Default::default() };
        store.apply(&Command::Put(put), &mut effects).unwrap();
    }
    let delete = DeleteRangeRequest {
        key: b"0".to_vec().into(),
        range_end: b"5".to_vec().into(),
        ..Default::default()
    };
    store.apply(&Command::DeleteRange(delete), &mut effects).unwrap();
    let revision = store.revision();
    store.apply(&Command::Compact { revision }, &mut effects).unwrap();
    while store.collect(i64::MAX, 7) {}
    let stats = store.stats();
    assert_eq!((store.indexed_keys(), stats.live_keys), (5, 5));
    assert_eq!(stats.total_bytes, stats.live_bytes);
    assert_eq!(stats.events, 5, "the events of the compacted revision can be watched");
}
