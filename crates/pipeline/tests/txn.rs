//! Transactions and deletions over many keys: what they return, and that they do not hold up
//! other clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use data_dir::Identity;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Error, Pipeline, PipelineOptions, TxnRead, WalMode};

/// Number of keys for which a range or a deletion takes much longer than a put.
const MANY_KEYS: usize = 50_000;

fn store_with(keys: usize, value_bytes: usize) -> Pipeline {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    for n in 0..keys {
        put_now(&store, &key(n), &vec![b'v'; value_bytes], 0);
    }
    store
}

fn key(n: usize) -> String {
    format!("key{n:07}")
}

fn put_request(key: &str, value: &[u8], lease: i64) -> PutRequest {
    let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
    PutRequest { key, value, lease, ..Default::default() }
}

fn put_now(store: &Pipeline, key: &str, value: &[u8], lease: i64) {
    block_on(store.propose(ClientId(0), Command::Put(put_request(key, value, lease)), 0)).unwrap();
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put_op(key: &str, value: &str) -> RequestOp {
    op(Request::RequestPut(put_request(key, value.as_bytes(), 0)))
}

fn delete(key: &str, end: &str) -> DeleteRangeRequest {
    let (key, range_end) = (key.as_bytes().to_vec().into(), end.as_bytes().to_vec().into());
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

/// A range over all keys that begin with "key".
fn all_keys() -> RangeRequest {
    let (key, range_end) = (b"key".to_vec().into(), b"kez".to_vec().into());
    RangeRequest { key, range_end, ..Default::default() }
}

fn range_op(range: RangeRequest) -> RequestOp {
    op(Request::RequestRange(range))
}

/// A compare that is true for every existing key.
fn compare_all_keys() -> Compare {
    let RangeRequest { key, range_end, .. } = all_keys();
    Compare {
        key,
        range_end,
        target: CompareTarget::Version as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::Version(0)),
    }
}

fn execute(store: &Pipeline, success: Vec<RequestOp>) -> Result<TxnResponse, Error> {
    let txn = TxnRequest { success, ..Default::default() };
    block_on(store.txn(ClientId(0), txn, 0)).and_then(TxnRead::finish)
}

/// Runs `long`, and `short` again and again meanwhile. Returns the duration of `long` and of
/// the longest `short`.
fn run_beside<T: Send>(
    long: impl FnOnce() -> T + Send,
    mut short: impl FnMut(),
) -> (T, Duration, Duration) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let long = scope.spawn(|| {
            let start = Instant::now();
            let result = long();
            let duration = start.elapsed();
            done.store(true, Ordering::Release);
            (result, duration)
        });
        let mut longest = Duration::ZERO;
        while !done.load(Ordering::Acquire) {
            let start = Instant::now();
            short();
            longest = longest.max(start.elapsed());
        }
        let (result, duration) = long.join().unwrap();
        (result, duration, longest)
    })
}

/// Checks that other clients wait much shorter than `run` takes. `run` returns its duration and
/// the longest wait. On a busy machine a client may also wait for a processor; one that waits
/// for the store waits in each attempt.
fn assert_not_held_up(what: &str, mut run: impl FnMut() -> (Duration, Duration)) {
    const ATTEMPTS: usize = 5;
    let mut attempts = Vec::new();
    while attempts.len() < ATTEMPTS {
        let (duration, longest) = run();
        if longest * 4 < duration {
            return;
        }
        attempts.push((duration, longest));
    }
    panic!("{what} held up another client (duration, longest wait): {attempts:?}");
}

#[test]
fn puts_do_not_wait_for_the_ranges_of_a_transaction() {
    let store = store_with(MANY_KEYS, 1);
    let put_other = || put_now(&store, "other", b"", 0);
    // No key was created so early: the ranges visit all keys and return none.
    let ranges = || vec![range_op(RangeRequest { max_create_revision: 1, ..all_keys() }); 16];
    for first in [None, Some(put_op("first", ""))] {
        assert_not_held_up(&format!("a transaction with {first:?}"), || {
            let ops: Vec<_> = first.clone().into_iter().chain(ranges()).collect();
            let (response, duration, longest) = run_beside(|| execute(&store, ops), put_other);
            for range in ranges_of(&response.unwrap()) {
                assert_eq!(range.count, MANY_KEYS as i64);
            }
            (duration, longest)
        });
    }
}

/// Before a command is executed, space for its effects is reserved in the log. The deletions
/// of a branch that is not executed must not cost a visit of all keys for each.
#[test]
fn puts_do_not_wait_for_deletes_that_are_not_executed() {
    let directory = tempfile::tempdir().unwrap();
    let options = PipelineOptions { data_dir: directory.path().to_owned(), ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    (0..MANY_KEYS).for_each(|n| put_now(&store, &key(n), b"v", 0));
    let nested = |ops| op(Request::RequestTxn(TxnRequest { success: ops, ..Default::default() }));
    let delete = op(Request::RequestDeleteRange(delete("key", "kez")));
    let compare = Compare { result: CompareResult::Less as i32, ..compare_all_keys() };
    let success = vec![nested(vec![delete; 50]); 50];
    let txn = TxnRequest { compare: vec![compare], success, failure: vec![] };
    // It may take longer on a busy machine, but not each time.
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let response = block_on(store.txn(ClientId(0), txn.clone(), 0));
        least = least.min(start.elapsed());
        assert!(!response.and_then(TxnRead::finish).unwrap().succeeded);
        if least < Duration::from_secs(2) {
            return;
        }
    }
    panic!("nothing was executed, in {least:?}");
}

#[test]
fn puts_do_not_wait_for_the_compares_of_a_read_only_transaction() {
    let store = store_with(MANY_KEYS, 1);
    let compare = vec![compare_all_keys(); 16];
    let success = vec![range_op(RangeRequest { count_only: true, ..all_keys() })];
    let txn = TxnRequest { compare, success, ..Default::default() };
    assert_not_held_up("the transaction", || {
        let (response, duration, longest) = run_beside(
            || block_on(store.txn(ClientId(0), txn.clone(), 0)).and_then(TxnRead::finish),
            || put_now(&store, "other", b"", 0),
        );
        assert!(response.unwrap().succeeded);
        (duration, longest)
    });
}

#[test]
fn reads_do_not_wait_for_the_deletion_of_many_keys() {
    assert_not_held_up("the deletion", || {
        let store = store_with(4 * MANY_KEYS, 1);
        let command = Command::DeleteRange(delete("key", "kez"));
        let (reply, duration, longest) = run_beside(
            || block_on(store.propose(ClientId(0), command, 0)),
            || read_one(&store, &key(0)),
        );
        reply.unwrap();
        assert_eq!(store.range(&all_keys()).unwrap().finish().count, 0);
        (duration, longest)
    });
}

#[test]
fn reads_do_not_wait_for_the_end_of_a_lease_with_many_keys() {
    assert_not_held_up("the revocation", || {
        let store = store_with(0, 0);
        let grant = Command::LeaseGrant { id: 5, ttl_seconds: 1000 };
        block_on(store.propose(ClientId(0), grant, 0)).unwrap();
        (0..4 * MANY_KEYS).for_each(|n| put_now(&store, &key(n), b"v", 5));
        let revoke = Command::LeaseRevoke { id: 5 };
        let (reply, duration, longest) = run_beside(
            || block_on(store.propose(ClientId(0), revoke, 0)),
            || read_one(&store, &key(0)),
        );
        reply.unwrap();
        assert_eq!(store.range(&all_keys()).unwrap().finish().count, 0);
        (duration, longest)
    });
}

fn read_one(store: &Pipeline, key: &str) {
    let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() };
    store.range(&request).unwrap().finish();
}

/// The ranges of a transaction and of nested ones, in order.
fn ranges_of(txn: &TxnResponse) -> Vec<&RangeResponse> {
    txn.responses
        .iter()
        .flat_map(|op| match &op.response {
            Some(Response::ResponseRange(range)) => vec![range],
            Some(Response::ResponseTxn(nested)) => ranges_of(nested),
            _ => Vec::new(),
        })
        .collect()
}

/// The number of keys that a range returned, the first key, and the value of the key 5.
fn seen(range: &RangeResponse) -> (i64, String, Option<String>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fifth = range.kvs.iter().find(|kv| kv.key() == key(5).as_bytes());
    assert_eq!(range.count, range.kvs.len() as i64);
    (range.count, text(range.kvs[0].key()), fifth.map(|kv| text(kv.value())))
}

#[test]
fn a_large_range_sees_exactly_the_changes_before_it() {
    let store = store_with(3000, 1);
    let all = || range_op(all_keys());
    let past = || range_op(RangeRequest { revision: 2001, ..all_keys() });
    let nested =
        TxnRequest { success: vec![all(), put_op(&key(9999), "new"), all()], ..Default::default() };
    let ops = vec![
        all(),
        put_op(&key(5), "changed"),
        all(),
        op(Request::RequestDeleteRange(delete(&key(0), &key(3)))),
        past(),
        op(Request::RequestTxn(nested)),
        // It deletes keys that the transaction has put.
        op(Request::RequestDeleteRange(delete(&key(4), "\0"))),
        op(Request::RequestRange(RangeRequest { count_only: true, ..all_keys() })),
    ];
    let txn = TxnRequest { success: ops, ..Default::default() };
    let read = block_on(store.txn(ClientId(0), txn, 0)).unwrap();
    assert!(matches!(read, TxnRead::Large(_)));

    // What happens after the transaction does not change what its ranges return.
    put_now(&store, &key(5), b"later", 0);
    block_on(store.propose(ClientId(0), Command::DeleteRange(delete("key", "kez")), 0)).unwrap();
    let revision = store.revision();
    block_on(store.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
    for _ in 0..200 {
        put_now(&store, "other", b"", 0);
    }

    let response = read.finish().unwrap();
    let ranges = ranges_of(&response);
    let v = |value: &str| Some(value.to_owned());
    let expected = [
        (3000, key(0), v("v")),
        (3000, key(0), v("changed")),
        (2000, key(0), v("v")),
        (2997, key(3), v("changed")),
        (2998, key(3), v("changed")),
    ];
    assert_eq!(ranges[..5].iter().map(|range| seen(range)).collect::<Vec<_>>(), expected);
    assert_eq!(ranges[5].count, 1);
    let revisions: Vec<_> = ranges.iter().map(|range| range.header.unwrap().revision).collect();
    assert_eq!(revisions, [3001, 3002, 3002, 3002, 3002, 3002]);
    assert_eq!(response.header.unwrap().revision, 3002);
}

#[test]
fn history_is_collected_after_a_large_transaction_was_read() {
    let store = store_with(3000, 1);
    let txn = TxnRequest {
        success: vec![range_op(all_keys())],
        failure: vec![put_op("a", "")],
        ..Default::default()
    };
    let read = block_on(store.txn(ClientId(0), txn, 0)).unwrap();
    put_now(&store, &key(0), b"", 0);
    let revision = store.revision();
    block_on(store.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
    let collect = || (0..500).for_each(|_| put_now(&store, "other", b"", 0));
    collect();
    assert!(!store.is_collected(revision).unwrap());
    assert_eq!(ranges_of(&read.finish().unwrap())[0].kvs[0].value(), b"v");
    collect();
    assert!(store.is_collected(revision).unwrap());
}

#[test]
fn a_transaction_with_a_huge_response_is_refused() {
    let store = store_with(25, 1 << 20);
    let ranges = vec![range_op(all_keys()); 128];
    for write in [None, Some(put_op("first", ""))] {
        let ops: Vec<_> = write.into_iter().chain(ranges.clone()).collect();
        let response = execute(&store, ops);
        assert!(matches!(response, Err(Error::Refused(mvcc::Error::ResponseTooLarge))));
    }
}

#[test]
fn compares_of_too_many_keys_are_refused_if_the_transaction_writes() {
    let store = store_with(100_000, 1);
    let txn = |op: RequestOp| {
        let txn =
            TxnRequest { compare: vec![compare_all_keys()], success: vec![op], failure: vec![] };
        block_on(store.txn(ClientId(0), txn, 0)).and_then(TxnRead::finish)
    };
    assert!(txn(put_op("other", "")).unwrap().succeeded);
    put_now(&store, &key(100_000), b"v", 0);
    let refused = txn(put_op("other", "")).unwrap_err().to_string();
    assert_eq!(
        refused,
        "mem_etcd: the compares of a transaction that writes may read 100000 keys at most: compare smaller ranges"
    );
    assert!(txn(range_op(RangeRequest { count_only: true, ..all_keys() })).unwrap().succeeded);
}
