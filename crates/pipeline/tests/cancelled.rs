//! Reads and commands whose caller no longer waits for the result.

use std::cell::Cell;
use std::task::{Context, Waker};

use data_dir::Identity;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Error, Pipeline, PipelineOptions, RangeRead, TxnRead, WalMode};

const KEYS: usize = 20_000;

fn store() -> Pipeline {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    (0..KEYS).for_each(|n| {
        block_on(store.propose(ClientId(0), put(&format!("key{n:07}")), 0)).unwrap();
    });
    store
}

fn put_request(key: &str) -> PutRequest {
    PutRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
}

fn put(key: &str) -> Command {
    Command::Put(put_request(key))
}

fn all_keys() -> RangeRequest {
    let (key, range_end) = (b"key".to_vec().into(), b"kez".to_vec().into());
    RangeRequest { key, range_end, ..Default::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn ranges(count: usize) -> Vec<RequestOp> {
    vec![op(Request::RequestRange(all_keys())); count]
}

/// Runs a read that is cancelled after ten steps. It must end with the next step.
fn assert_stops<T>(what: &str, read: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error>) {
    let steps = Cell::new(0);
    let cancelled = || {
        steps.set(steps.get() + 1);
        steps.get() > 10
    };
    let result = read(&cancelled).err();
    assert!(matches!(result, Some(Error::Cancelled)), "{what}: {result:?}");
    assert_eq!(steps.get(), 11, "{what}: steps");
}

fn large(store: &Pipeline, request: TxnRequest) -> pipeline::LargeTxn {
    match block_on(store.txn(ClientId(0), request, 0)).unwrap() {
        TxnRead::Large(txn) => txn,
        TxnRead::Done(_) => panic!("the transaction is not large"),
    }
}

#[test]
fn cancelled_reads_end_with_the_next_step() {
    let store = store();
    let range = |request: RangeRequest| match store.range(&request).unwrap() {
        RangeRead::Large(range) => range,
        RangeRead::Done(_) => panic!("the range is not large"),
    };
    assert_stops("range", |cancelled| range(all_keys()).finish_unless(cancelled));

    // A count at an old revision visits the creations since. The first one takes the longest.
    let first = RangeRequest { limit: 1, revision: 3, ..all_keys() };
    let mut pages = store.pages(first).unwrap();
    assert!(pages.start_page().unwrap().is_none(), "the keys after the page are counted");
    assert_stops("pages", |cancelled| pages.finish_page_unless(cancelled));
    let other = self::store();
    let count = RangeRequest { count_only: true, revision: 3, ..all_keys() };
    match other.range(&count).unwrap() {
        RangeRead::Large(count) => assert_stops("count", |stops| count.finish_unless(stops)),
        RangeRead::Done(_) => panic!("the count is not large"),
    }

    let read_only = TxnRequest { success: ranges(3), ..Default::default() };
    assert_stops("transaction", |cancelled| large(&store, read_only).finish_unless(cancelled));
    let put = op(Request::RequestPut(put_request("a")));
    let success = ranges(3).into_iter().chain([put]).collect();
    let written = large(&store, TxnRequest { success, ..Default::default() });
    assert_stops("transaction that writes", |cancelled| written.finish_unless(cancelled));
    let points = |count| vec![op(Request::RequestRange(RangeRequest::default())); count];
    let many_small = TxnRequest { success: points(10_000), ..Default::default() };
    assert_stops("small ranges", |cancelled| large(&store, many_small).finish_unless(cancelled));
    assert_stops("hash", |cancelled| store.hash_unless(0, &|_| cancelled()));

    (1..=KEYS as i64).for_each(|id| {
        block_on(store.propose(ClientId(0), Command::LeaseGrant { id, ttl_seconds: 60 }, 0))
            .unwrap();
        let put = PutRequest { lease: 1, ..put_request(&format!("leased{id:07}")) };
        block_on(store.propose(ClientId(0), Command::Put(put), 0)).unwrap();
    });
    assert_stops("leases", |cancelled| store.leases_unless(&|_| cancelled()));
    assert_stops("TTLs", |cancelled| store.lease_ttls_unless(&|_| cancelled()));
    assert_stops("keys of a lease", |cancelled| store.lease_keys_unless(1, &|_| cancelled()));
    assert!(store.few_leases().is_none() && store.few_lease_keys(1).is_none());
    assert_eq!(store.leases_unless(&|_| false).unwrap(), (1..=KEYS as i64).collect::<Vec<_>>());
    assert_eq!(store.lease_ttls_unless(&|_| false).unwrap().len(), KEYS);
    let keys = store.lease_keys_unless(1, &|_| false).unwrap();
    assert!(keys.len() == KEYS && keys.is_sorted());

    // A store that was never compacted exports its keys as events, after it has visited them
    // all once for nothing.
    let mut export = store.export_unless(&|_| false).unwrap();
    assert!(!export.start_chunk().unwrap(), "the keys have not been visited");
    assert_stops("export", |cancelled| export.finish_chunk_unless(cancelled));

    // Nothing is pinned any more.
    drop((pages, export));
    let revision = store.revision();
    block_on(store.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
    (0..2000)
        .for_each(|_| drop(block_on(store.propose(ClientId(0), self::put("other"), 0)).unwrap()));
    assert!(store.is_collected(revision).unwrap());
}

/// Returns the most memory that a read reports between its steps.
fn most_held(read: impl FnOnce(&dyn Fn(usize) -> bool)) -> usize {
    let most = std::cell::Cell::new(0);
    read(&|held| {
        most.set(most.get().max(held));
        false
    });
    most.get()
}

/// A hash and an export gather memory before their first result. The caller counts it.
#[test]
fn hashes_and_exports_report_their_memory() {
    let store = store();
    let revision = store.revision();
    block_on(store.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
    block_on(store.propose(ClientId(0), put("other"), 0)).unwrap();
    let hashed = most_held(|stops| assert!(store.hash_unless(0, stops).is_ok()));
    assert!(hashed >= KEYS * size_of::<usize>(), "{hashed} bytes for {KEYS} keys");
    assert!(store.hash_unless(0, &|held| held > hashed / 2).is_err());
    (1..=KEYS as i64).for_each(|id| {
        block_on(store.propose(ClientId(0), Command::LeaseGrant { id, ttl_seconds: 60 }, 0))
            .unwrap();
    });
    let exported = most_held(|stops| drop(store.export_unless(stops).unwrap()));
    assert!(exported >= KEYS * 24, "{exported} bytes for {KEYS} leases");
    let mut export = store.export_unless(&|_| false).unwrap();
    assert!(export.held_bytes() >= KEYS * 24);
    while export.next().is_some() {}
    assert!(export.held_bytes() < KEYS, "the leases are encoded");
}

#[test]
fn pages_are_complete_whether_they_wait_or_not() {
    let store = store();
    let request = RangeRequest { limit: 2500, ..all_keys() };
    let mut pages = store.pages(request).unwrap();
    let mut counts = Vec::new();
    while !pages.is_done() {
        let page = match pages.start_page().unwrap() {
            Some(page) => page,
            None => pages.finish_page_unless(&|| false).unwrap(),
        };
        counts.push((page.kvs.len(), page.more, page.count, page.header.is_some()));
    }
    let last = (500, true, KEYS as i64, true);
    assert_eq!(counts, [(1000, false, 0, false), (1000, false, 0, false), last]);
}

/// Polls a future once, which submits its command, and drops it.
fn abandon(future: impl Future) {
    let mut future = Box::pin(future);
    let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

/// A transaction or deletion that still waits in the queue is not executed. A put costs less
/// than finding out.
#[test]
fn abandoned_commands_that_may_take_long_are_not_executed() {
    let store = store();
    let before = store.revision();
    let (key, range_end) = (b"key".to_vec().into(), b"kez".to_vec().into());
    let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
    let written = vec![op(Request::RequestPut(put_request("b")))];
    abandon(store.propose(ClientId(0), Command::DeleteRange(delete.clone()), 10));
    abandon(store.txn(ClientId(0), TxnRequest { success: written, ..Default::default() }, 10));
    abandon(store.propose(ClientId(0), put("c"), 10));
    block_on(store.propose(ClientId(0), put("d"), 0)).unwrap();
    assert_eq!(store.revision(), before + 2, "only the puts are executed");
    block_on(store.propose(ClientId(0), Command::DeleteRange(delete), 0)).unwrap();
    // They no longer count as queued.
    assert_eq!(store.status().queued_commands, 0);
    assert_eq!(store.range(&all_keys()).unwrap().finish().count, 0);
}
