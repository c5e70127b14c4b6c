//! Executes random commands and compares each reply with a naive model, which keeps a
//! full copy of the keys for every revision. proptest shrinks and prints a failing case,
//! and stores its seed in `model.seeds`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use etcdpb::{KeyValue, Record};
use mvcc::{
    BranchCursor, Command, Effect, Error, HashCursor, RangeCursor, ReadPoint, Reply,
    SnapshotCursor, Store, StoreAccess, TxnCursor, TxnLimits,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// The fields of a key-value pair without its key.
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

    fn newest(&self) -> &Keys {
        self.revisions.last().unwrap()
    }

    fn check_put(&self, put: &PutRequest) -> Result<(), Error> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(Error::LeaseNotFound);
        }
        let needs_previous = put.ignore_value || put.ignore_lease;
        if needs_previous && !self.newest().contains_key(&put.key[..]) {
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

    /// Removes the keys in a span. Returns their number.
    fn delete(&self, keys: &mut Keys, key: &[u8], end: &[u8]) -> i64 {
        let before = keys.len();
        keys.retain(|k, _| !is_in_span(k, key, end));
        (before - keys.len()) as i64
    }

    fn commit(&mut self, keys: Keys, changed: bool) {
        if changed {
            self.revisions.push(keys);
        }
    }

    /// Returns the revision that a request for revision `requested` reads.
    fn readable_revision(&self, requested: i64) -> Result<i64, Error> {
        match requested {
            ..=0 => Ok(self.revision()),
            r if r > self.revision() => Err(Error::FutureRevision),
            r if r < self.compacted => Err(Error::Compacted),
            r => Ok(r),
        }
    }

    fn compare(&self, compare: &Compare) -> bool {
        let matching: Vec<&Pair> = self
            .newest()
            .iter()
            .filter(|(k, _)| is_in_span(k, &compare.key, &compare.range_end))
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

fn is_in_span(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}

/// Checks the response to a range on the state `keys`.
fn check_range(got: &RangeResponse, keys: &Keys, request: &RangeRequest) {
    let all: Vec<_> =
        keys.iter().filter(|(k, _)| is_in_span(k, &request.key, &request.range_end)).collect();
    assert_eq!(got.count, all.len() as i64, "the count of {request:?} differs");
    if request.count_only {
        assert!(got.kvs.is_empty());
        return;
    }
    let expected_len = match request.limit {
        ..=0 => all.len(),
        limit => all.len().min(limit as usize),
    };
    assert_eq!(got.more, expected_len < all.len(), "the field `more` of {request:?} differs");
    assert_eq!(got.kvs.len(), expected_len);
    for (kv, (key, pair)) in got.kvs.iter().zip(&all) {
        assert_eq!(kv.key(), &key[..]);
        assert_eq!(to_pair(kv, request.keys_only.then_some(*pair)), **pair);
    }
}

/// Converts a pair of a response. The fields that a keys-only response omits are taken
/// from `omitted`.
fn to_pair(kv: &KeyValue, omitted: Option<&Pair>) -> Pair {
    if omitted.is_some() {
        assert!(kv.value().is_empty() && kv.lease() == 0);
    }
    Pair {
        value: omitted.map_or_else(|| kv.value().to_vec(), |pair| pair.value.clone()),
        create: kv.create_revision(),
        modified: kv.mod_revision(),
        version: kv.version(),
        lease: omitted.map_or_else(|| kv.lease(), |pair| pair.lease),
    }
}

/// Returns few keys and small numbers, so that many commands change the same keys.
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
    Execute(Command),
    Range(RangeRequest),
    /// Collects garbage. Keeps the newest `kept_revisions` revisions readable.
    Collect {
        kept_revisions: i64,
        max_events: usize,
    },
    /// Executes batches of commands and takes them back, while a range is read.
    Undo {
        batches: Vec<Vec<Command>>,
        range: RangeRequest,
    },
    /// Advances the store time.
    Tick {
        ms: i64,
    },
    /// Reads the history from a revision on.
    Watch {
        from: i64,
    },
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        8 => put().prop_map(Command::Put),
        2 => delete().prop_map(Command::DeleteRange),
        4 => txn().prop_map(Command::Txn),
        1 => (-2i64..40).prop_map(|revision| Command::Compact { revision }),
        1 => (0i64..4, prop_oneof![1i64..100, Just(i64::MAX)])
            .prop_map(|(id, ttl_seconds)| Command::LeaseGrant { id, ttl_seconds }),
        1 => (0i64..4).prop_map(|id| Command::LeaseRevoke { id }),
        1 => (0i64..4).prop_map(|id| Command::LeaseRenew { id }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let batches = prop::collection::vec(prop::collection::vec(command(), 0..6), 1..4);
    prop_oneof![
        18 => command().prop_map(Step::Execute),
        2 => (batches, range()).prop_map(|(batches, range)| Step::Undo { batches, range }),
        1 => (0i64..1000).prop_map(|ms| Step::Tick { ms }),
        6 => range().prop_map(Step::Range),
        3 => (0i64..5, 1usize..6).prop_map(|(kept_revisions, max_events)| {
            Step::Collect { kept_revisions, max_events }
        }),
        2 => (1i64..40).prop_map(|from| Step::Watch { from }),
    ]
}

/// Whether no key is put twice, or both put and deleted, in one transaction. The API layer
/// rejects other transactions, so the store does not have to handle them. As in etcd, a
/// deletion of all keys from a key on may delete keys that the transaction puts.
fn is_well_formed(request: &TxnRequest) -> bool {
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
        let mut others = spans.iter().enumerate().filter(|(j, (_, end))| i != j && end[..] != [0]);
        others.all(|(_, (start, end))| !is_in_span(key, start, end))
    })
}

/// The store and the model, after the same commands.
struct Run {
    store: Store,
    model: Model,
    /// The effects of all commands.
    log: Vec<u8>,
    /// The log without the writes of unlogged keys.
    partial_log: Vec<u8>,
    /// All events so far, derived from the states of the model.
    events: Vec<ModelEvent>,
    /// Number of keys that the ranges of a transaction visit at once.
    range_keys: usize,
    /// Transactions with open ranges, with their responses in a store that reads all ranges
    /// at once.
    open: Vec<(TxnCursor, TxnResponse)>,
}

/// Access to the store with a limit for ranges.
struct LimitedAccess<'a>(&'a mut Store, usize);

impl Deref for LimitedAccess<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.0
    }
}

impl DerefMut for LimitedAccess<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        self.0
    }
}

impl StoreAccess for LimitedAccess<'_> {
    fn visited(&mut self, _: usize) {}

    fn txn_limits(&self) -> TxnLimits {
        TxnLimits { range_keys: self.1, sort_bytes: 4 * self.1, compare_keys: usize::MAX }
    }
}

/// An event: revision, key, pair after the change, pair before the change.
type ModelEvent = (i64, Vec<u8>, Option<Pair>, Option<Pair>);

impl Run {
    /// Executes a command on the store and on the model, and compares the replies.
    fn execute_command(&mut self, command: &Command) {
        if let Command::Txn(txn) = command
            && !is_well_formed(txn)
        {
            return;
        }
        let mut effects = Vec::new();
        let bound = self.store.effect_bytes(command);
        let got = self.execute_on_store(command, &mut effects);
        let expected = self.execute_on_model(command, &got);
        match (&got, expected) {
            (Err(got), Err(expected)) => assert_eq!(*got, expected, "the error of {command:?}"),
            (Ok(_), Ok(())) => {}
            (got, expected) => panic!("{command:?} returned {got:?}; expected: {expected:?}"),
        }
        assert_eq!(self.store.revision(), self.model.revision(), "the revision after {command:?}");
        assert!(got.is_ok() || effects.is_empty(), "the rejected command {command:?} has effects");
        let before = self.log.len();
        effects.iter().for_each(|effect| effect.encode(&mut self.log));
        assert!(self.log.len() - before <= bound, "the effects of {command:?} exceed the bound");
        let logged = |effect: &&Effect| match effect {
            Effect::Write(record) => !is_unlogged(record.key()),
            _ => true,
        };
        effects.iter().filter(logged).for_each(|effect| effect.encode(&mut self.partial_log));
    }

    /// Executes a command on the store. If ranges of a transaction stay open, returns the
    /// reply of a store that reads all of them at once.
    fn execute_on_store(
        &mut self,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Error> {
        let mut at_once = self.replayed();
        let got = mvcc::apply(
            &mut LimitedAccess(&mut self.store, self.range_keys),
            command,
            &auth::Caller::Store,
            effects,
        )?;
        let Reply::OpenTxn(cursor) = got else { return Ok(got) };
        let Reply::Txn(response) = at_once.apply(command, &mut Vec::new())? else {
            panic!("not the reply to a transaction")
        };
        self.open.push((*cursor, response.clone()));
        Ok(Reply::Txn(response))
    }

    /// Executes batches of commands on the store, and takes them back. A range that began before
    /// them is read meanwhile.
    fn undo(&mut self, batches: &[Vec<Command>], range: &RangeRequest) {
        let before = state(&self.store);
        let (current, compacted) = (self.store.revision(), self.store.compacted());
        let mut cursor = RangeCursor::new(&self.store, range, current, true);
        let mut step = |store: &Store| match &mut cursor {
            Ok(cursor) => cursor.step(store, 1),
            Err(_) => true,
        };
        step(&self.store);
        let mut undos = Vec::new();
        for batch in batches {
            self.store.begin_undo();
            for command in batch {
                if matches!(command, Command::Txn(txn) if !is_well_formed(txn)) {
                    continue;
                }
                let mut access = LimitedAccess(&mut self.store, self.range_keys);
                // Nobody reads the open ranges of a transaction that is taken back.
                let _ = mvcc::apply(&mut access, command, &auth::Caller::Store, &mut Vec::new());
            }
            undos.push(self.store.end_undo());
            // What a reader before the batches needs is not collected.
            self.collect(current.min(compacted), 2);
            step(&self.store);
        }
        assert_eq!((undos[0].revision(), undos[0].compacted()), (current, compacted));
        for undo in undos.into_iter().rev() {
            self.store.undo(undo);
            step(&self.store);
        }
        while !step(&self.store) {}
        if let Ok(cursor) = cursor {
            let revision = self.model.readable_revision(range.revision).unwrap();
            check_range(&cursor.finish(), &self.model.revisions[revision as usize], range);
        }
        assert_eq!(state(&self.store), before);
    }

    /// Visits up to two more keys of each open transaction, and checks those that are
    /// complete.
    fn read_open_transactions(&mut self) {
        for (mut cursor, expected) in std::mem::take(&mut self.open) {
            cursor.gather(&self.store, 2);
            match cursor.digest().unwrap() {
                true => assert_eq!(cursor.finish(), expected),
                false => self.open.push((cursor, expected)),
            }
        }
    }

    /// Collects garbage that no open transaction needs.
    fn collect(&mut self, oldest_needed: i64, max_events: usize) {
        let open = self.open.iter().map(|(cursor, _)| cursor.oldest_needed_revision());
        self.store.collect(open.fold(oldest_needed, i64::min), max_events);
    }

    /// Executes a read-only transaction in small steps.
    fn read_txn(&self, txn: &TxnRequest) -> Result<TxnResponse, Error> {
        let point = ReadPoint::new(&self.store, self.store.revision());
        let mut branches = BranchCursor::new(txn, point.revision());
        while !branches.step(&self.store, 1) {}
        let mut cursor = TxnCursor::read(txn, point, branches)?;
        while !cursor.digest()? {
            cursor.gather(&self.store, 1);
        }
        Ok(cursor.finish())
    }

    /// Executes a command on the model, and checks the reply `got` of the store.
    fn execute_on_model(
        &mut self,
        command: &Command,
        got: &Result<Reply, Error>,
    ) -> Result<(), Error> {
        match command {
            Command::Put(put) => {
                self.model.check_put(put)?;
                let mut keys = self.model.newest().clone();
                self.model.put(&mut keys, put);
                if let Ok(Reply::Put(response)) = got {
                    let before = self.model.newest().get(&put.key[..]).filter(|_| put.prev_kv);
                    let prev = response.prev_kv.as_ref().map(|kv| to_pair(kv, None));
                    assert_eq!(prev.as_ref(), before);
                }
                self.commit(keys, true);
            }
            Command::DeleteRange(delete) => {
                let mut keys = self.model.newest().clone();
                let deleted = self.model.delete(&mut keys, &delete.key, &delete.range_end);
                let Ok(Reply::DeleteRange(response)) = got else {
                    panic!("{delete:?} returned {got:?}")
                };
                assert_eq!(response.deleted, deleted);
                let previous = if delete.prev_kv { deleted } else { 0 };
                assert_eq!(response.prev_kvs.len() as i64, previous);
                self.commit(keys, deleted > 0);
            }
            Command::Txn(txn) => return self.execute_txn_on_model(txn, got),
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
                let mut keys = self.model.newest().clone();
                keys.retain(|_, pair| pair.lease != *id);
                let changed = keys.len() != self.model.newest().len();
                self.commit(keys, changed);
            }
            Command::Alarm { .. } | Command::Auth(_) => {
                unreachable!("the steps contain no such commands")
            }
        }
        Ok(())
    }

    fn execute_txn_on_model(
        &mut self,
        txn: &TxnRequest,
        got: &Result<Reply, Error>,
    ) -> Result<(), Error> {
        let mut branches = Vec::new();
        self.select_branches(txn, &mut branches);
        self.check_txn(txn, &mut branches.iter().copied())?;
        let Ok(Reply::Txn(response)) = got else { panic!("{txn:?} returned {got:?}") };
        let mut keys = self.model.newest().clone();
        let mut changed = false;
        self.check_responses(txn, &mut branches.iter().copied(), response, &mut keys, &mut changed);
        self.commit(keys, changed);
        assert_eq!(response.header.as_ref().unwrap().revision, self.model.revision());
        if mvcc::is_read_only(txn) {
            assert_eq!(self.read_txn(txn).as_ref(), Ok(response));
        }
        Ok(())
    }

    /// Appends the selected branches of a transaction and its nested ones; true stands
    /// for success.
    fn select_branches(&self, txn: &TxnRequest, branches: &mut Vec<bool>) {
        let succeeded = txn.compare.iter().all(|compare| self.model.compare(compare));
        branches.push(succeeded);
        for op in if succeeded { &txn.success } else { &txn.failure } {
            if let Some(Request::RequestTxn(nested)) = &op.request {
                self.select_branches(nested, branches);
            }
        }
    }

    fn check_txn(
        &self,
        txn: &TxnRequest,
        branches: &mut impl Iterator<Item = bool>,
    ) -> Result<(), Error> {
        for op in if branches.next().unwrap() { &txn.success } else { &txn.failure } {
            match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    if range.revision != 0 && range.revision < self.model.compacted {
                        return Err(Error::Compacted);
                    }
                    self.model.readable_revision(range.revision)?;
                }
                Request::RequestPut(put) => self.model.check_put(put)?,
                Request::RequestTxn(nested) => self.check_txn(nested, branches)?,
                Request::RequestDeleteRange(_) => {}
            }
        }
        Ok(())
    }

    /// Executes the selected branches on `keys`, and checks the responses `got` of the
    /// store.
    fn check_responses(
        &self,
        txn: &TxnRequest,
        branches: &mut impl Iterator<Item = bool>,
        got: &TxnResponse,
        keys: &mut Keys,
        changed: &mut bool,
    ) {
        let succeeded = branches.next().unwrap();
        assert_eq!(got.succeeded, succeeded);
        let ops = if succeeded { &txn.success } else { &txn.failure };
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
                    self.check_responses(nested, branches, got, keys, changed)
                }
                (request, response) => panic!("{request:?} has the response {response:?}"),
            }
        }
    }

    /// Makes `keys` the newest state of the model, and derives the events from it.
    fn commit(&mut self, keys: Keys, changed: bool) {
        let before = self.model.newest().clone();
        self.model.commit(keys, changed);
        if changed {
            let revision = self.model.revision();
            let names: BTreeSet<_> = before.keys().chain(self.model.newest().keys()).collect();
            for key in names {
                let (old, new) = (before.get(key), self.model.newest().get(key));
                if old != new {
                    self.events.push((revision, key.clone(), new.cloned(), old.cloned()));
                }
            }
        }
    }

    /// Compares a range of the store with the model.
    fn check_range_read(&self, request: &RangeRequest, max_keys: usize) {
        let expected = self.model.readable_revision(request.revision);
        match RangeCursor::new(&self.store, request, self.store.revision(), true) {
            Err(got) => assert_eq!(Err(got), expected),
            Ok(mut cursor) => {
                while !cursor.step(&self.store, max_keys) {}
                let got = cursor.finish();
                check_range(&got, &self.model.revisions[expected.unwrap() as usize], request);
                assert_eq!(got.header.unwrap().revision, self.model.revision());
            }
        }
    }

    /// Compares the history of the store with the events of the model.
    fn check_history(&self, from: i64) {
        if from < self.model.compacted {
            return;
        }
        let pair = |record: &Record| {
            (!record.is_tombstone()).then(|| to_pair(&KeyValue::from(record.clone()), None))
        };
        let mut got: Vec<_> = self
            .store
            .events_since(from)
            .map(|event| {
                let key = event.record.key().to_vec();
                // At or before the compacted revision, the pair before the change may be
                // missing.
                let is_known = event.revision() > self.model.compacted;
                let before = event.previous.as_ref().filter(|_| is_known).and_then(pair);
                (event.revision(), key, pair(&event.record), before)
            })
            .collect();
        got.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        self.merge_changes_of_one_revision(&mut got);
        let mut expected: Vec<_> =
            self.events.iter().filter(|event| event.0 >= from).cloned().collect();
        expected.iter_mut().filter(|e| e.0 <= self.model.compacted).for_each(|e| e.3 = None);
        assert_eq!(got, expected, "events since {from}");
    }

    /// Merges the events of a transaction that changes a key twice. The model knows only the
    /// states before and after a transaction.
    fn merge_changes_of_one_revision(&self, events: &mut Vec<ModelEvent>) {
        let mut merged: Vec<ModelEvent> = Vec::new();
        let mut twice = BTreeSet::new();
        for event in events.drain(..) {
            match merged.last_mut().filter(|last| (last.0, &last.1) == (event.0, &event.1)) {
                Some(last) => {
                    assert_eq!(last.3, event.3, "the pair before a transaction");
                    last.2 = event.2;
                    twice.insert((event.0, event.1));
                }
                None => merged.push(event),
            }
        }
        let state = |revision: i64, key: &[u8]| self.model.revisions[revision as usize].get(key);
        merged.retain(|(revision, key, _, _)| {
            !twice.contains(&(*revision, key.clone()))
                || state(*revision, key) != state(*revision - 1, key)
        });
        *events = merged;
    }

    /// Compares every readable revision with the model.
    fn check_every_revision(&self) {
        for revision in self.model.compacted.max(1)..=self.model.revision() {
            self.check_range_read(&RangeRequest { revision, ..everything() }, 1);
            self.check_history(revision);
        }
    }

    /// Takes a snapshot while the commands `meanwhile` are executed. Returns a store
    /// restored from the snapshot and the log after it.
    fn restored(&mut self, meanwhile: &[Command]) -> Store {
        let mut effects = Vec::new();
        let mut cursor = SnapshotCursor::new(&self.store, &mut effects);
        let log_start = self.log.len();
        let mut meanwhile = meanwhile.iter();
        while cursor.step(&self.store, 2, &mut effects) {
            if let Some(command) = meanwhile.next() {
                self.execute_command(command);
            }
            self.store.collect(cursor.oldest_needed_revision(), 2);
        }
        let mut snapshot = Vec::new();
        effects.iter().for_each(|effect| effect.encode(&mut snapshot));
        snapshot.extend_from_slice(&self.log[log_start..]);
        replay(&snapshot)
    }

    /// Returns two stores after a restart that has lost the unlogged keys. In the first,
    /// the log does not contain their writes. In the second, they were removed because
    /// their WAL mode had changed. Both contain all other keys, at a revision after every
    /// published one, without earlier history.
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

    /// Compares the leases of `store` with those of the model. `keys` are the keys of
    /// `store`.
    fn check_leases(&self, store: &Store, keys: &Keys) {
        let found: BTreeMap<_, _> = store
            .leases()
            .map(|(id, lease)| {
                let keys: Vec<_> = lease.keys.iter().map(|k| k.as_bytes().to_vec()).collect();
                (id, (lease.ttl_start_ms, keys))
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

    /// Returns a store restored from the log.
    fn replayed(&self) -> Store {
        replay(&self.log)
    }
}

/// Returns what [`Run::undo`] must restore and other steps do not compare with the model at once.
fn state(store: &Store) -> String {
    let events: Vec<_> = store.events_since(store.compacted()).collect();
    let leases: Vec<_> = store.leases().collect();
    let stats = store.stats();
    let sizes = (stats.live_keys, stats.live_bytes, stats.leases);
    let revisions = (store.revision(), store.compacted(), store.clock_ms());
    format!("{events:?} {leases:?} {sizes:?} {revisions:?}")
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

/// Returns the hash of every readable revision.
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
        range_keys in 0usize..4,
    ) {
        let (store, model) = (Store::default(), Model::new());
        let (log, partial_log) = (Vec::new(), Vec::new());
        let (events, open) = (Vec::new(), Vec::new());
        let mut run = Run { store, model, log, partial_log, events, range_keys, open };
        for step in &steps {
            run.read_open_transactions();
            match step {
                Step::Execute(command) => run.execute_command(command),
                Step::Range(request) => run.check_range_read(request, 2),
                Step::Undo { batches, range } => run.undo(batches, range),
                Step::Watch { from } => run.check_history(*from),
                Step::Tick { ms } => {
                    run.model.clock_ms += ms;
                    run.store.tick(run.model.clock_ms);
                }
                Step::Collect { kept_revisions, max_events } => {
                    let oldest_needed = run.store.revision() - kept_revisions;
                    run.collect(oldest_needed, *max_events);
                }
            }
        }
        while !run.open.is_empty() {
            run.read_open_transactions();
        }
        let mut restored = run.restored(&meanwhile);
        let stats = run.store.stats();
        prop_assert_eq!(stats.live_keys, run.model.newest().len() as i64);
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

        let mut rest = run.model.newest().clone();
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
            run.check_every_revision();
            run.check_leases(&run.store, run.model.newest());
            run.store = store;
        }
        run.check_every_revision();
        run.check_leases(&run.store, run.model.newest());

        let revision = run.store.revision();
        let _ = run.store.apply(&Command::Compact { revision }, &mut Vec::new());
        while run.store.collect(i64::MAX, 3) {}
        let stats = run.store.stats();
        prop_assert_eq!(stats.total_bytes, stats.live_bytes);
    }
}

/// After a compaction at the newest revision and garbage collection, the index contains
/// only the existing keys, with one record each.
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
    assert_eq!(
        stats.events, 5,
        "the events of the compacted revision stay, because they can be watched"
    );
}
