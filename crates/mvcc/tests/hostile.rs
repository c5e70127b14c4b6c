//! Transactions that repeat spans, and unusual compares.

use std::time::{Duration, Instant};

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use mvcc::{Command, Effects, Reply, Store};

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn store(keys: usize) -> Store {
    let mut store = Store::default();
    for n in 0..keys {
        let key = format!("{n:07}").into_bytes().into();
        let put = PutRequest { key, value: vec![1].into(), ..Default::default() };
        store.apply(&Command::Put(put), &mut Effects::new()).unwrap();
    }
    store
}

/// 2,500 deletions of all keys, in nested transactions.
fn repeated_deletes() -> TxnRequest {
    let delete =
        DeleteRangeRequest { key: vec![b'0'].into(), range_end: vec![0].into(), prev_kv: false };
    let inner = TxnRequest {
        success: vec![op(Request::RequestDeleteRange(delete)); 50],
        ..Default::default()
    };
    TxnRequest { success: vec![op(Request::RequestTxn(inner)); 50], ..Default::default() }
}

/// Neither the bound of the effects nor the execution visits each key for each deletion. On a busy
/// machine they may take longer, but not each time.
#[test]
fn repeated_deletes_visit_each_key_a_few_times_at_most() {
    const ATTEMPTS: usize = 5;
    let txn = Command::Txn(repeated_deletes());
    let (mut of_bound, mut of_execution) = (Duration::MAX, Duration::MAX);
    for _ in 0..ATTEMPTS {
        let mut store = store(20_000);
        let start = Instant::now();
        let bound = store.effect_bytes(&txn);
        of_bound = of_bound.min(start.elapsed());
        assert!((20_000 * 7..20_000 * 100).contains(&bound), "{bound} bytes");
        let start = Instant::now();
        store.apply(&txn, &mut Effects::new()).unwrap();
        of_execution = of_execution.min(start.elapsed());
        assert_eq!(store.stats().live_keys, 0);
        if of_bound < Duration::from_millis(500) && of_execution < Duration::from_millis(1000) {
            return;
        }
    }
    panic!("the bound took {of_bound:?} at least, and the execution {of_execution:?}");
}

/// A branch that is not selected does not count.
#[test]
fn branches_that_are_not_executed_have_no_effects() {
    let store = store(1000);
    let compare = Compare { key: b"none".to_vec().into(), ..Default::default() };
    let failing = Compare { result: 1, ..compare };
    let txn = TxnRequest { compare: vec![failing], ..repeated_deletes() };
    let bound = store.effect_bytes(&Command::Txn(txn));
    assert!(bound < 100, "{bound} bytes");
}

/// In etcd, a compare with an unknown target compares nothing: the result is "equal".
#[test]
fn an_unknown_compare_target_is_equal() {
    let mut store = store(1);
    let compare = Compare { target: 9, key: b"0000000".to_vec().into(), ..Default::default() };
    let txn = TxnRequest { compare: vec![compare], ..Default::default() };
    let reply = store.apply(&Command::Txn(txn), &mut Effects::new()).unwrap();
    let Reply::Txn(response) = reply else { panic!("{reply:?}") };
    assert!(response.succeeded);
}
