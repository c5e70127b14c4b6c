//! Large commands: the thread that submits one does not execute it, and others do not wait for
//! many of them.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use data_dir::Identity;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions, WalMode};

const KEYS: usize = 20_000;

fn store() -> Pipeline {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    (0..KEYS).for_each(|n| {
        drop(block_on(store.propose(ClientId(0), put(&format!("key{n:07}")), 0)).unwrap())
    });
    store
}

fn put_request(key: &str) -> PutRequest {
    PutRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
}

fn put(key: &str) -> Command {
    Command::Put(put_request(key))
}

fn delete_all() -> Command {
    let (key, range_end) = ("key".into(), "kez".into());
    Command::DeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false })
}

/// A transaction that compares all keys.
fn large() -> TxnRequest {
    let compare = Compare {
        key: "key".into(),
        range_end: "kez".into(),
        result: CompareResult::Greater as i32,
        target: CompareTarget::Version as i32,
        target_union: Some(TargetUnion::Version(0)),
    };
    let put = RequestOp { request: Some(Request::RequestPut(put_request("large"))) };
    TxnRequest { compare: vec![compare], success: vec![put], ..Default::default() }
}

/// Polls a future.
fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_submitting_thread_does_not_execute_large_commands() {
    let store = store();
    let mut delete = Box::pin(store.propose(ClientId(0), delete_all(), 0));
    assert!(poll(&mut delete).is_pending(), "the first poll submits");
    assert!(poll(&mut delete).is_pending(), "the second poll has executed the command");
    block_on(delete).unwrap();
}

#[test]
fn others_wait_for_a_few_large_commands_only() {
    let store = store();
    let hog = ClientId(1);
    let mut txns: Vec<_> = (0..400).map(|_| Box::pin(store.txn(hog, large(), 0))).collect();
    assert!(txns.iter_mut().all(|txn| poll(txn).is_pending()));
    let executed = |txns: &mut Vec<Pin<Box<_>>>| {
        let before = txns.len();
        txns.retain_mut(|txn| poll(txn).is_pending());
        before - txns.len()
    };
    block_on(store.propose(ClientId(0), put("a"), 0)).unwrap();
    let before_put = executed(&mut txns);
    assert!(before_put < 200, "{before_put} commands were executed before a put");
    block_on(store.txn(ClientId(2), large(), 0)).unwrap();
    let before_txn = executed(&mut txns);
    assert!(before_txn < 200, "{before_txn} commands were executed before that of another client");
    assert_eq!(
        txns.into_iter().map(block_on).filter(Result::is_ok).count(),
        400 - before_put - before_txn
    );
}
