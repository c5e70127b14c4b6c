//! Counts and pages while other threads create, delete and compact.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use data_dir::Identity;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Error, Pipeline, PipelineOptions, WalMode};

/// Number of keys at each revision after the preparation.
const KEYS: i64 = 5000;
/// Number of keys that the writer moves.
const MOVES: i64 = 20_000;
/// Number of keys of a page.
const PAGE: i64 = 500;

fn key(number: i64) -> Vec<u8> {
    format!("/key/{number:07}").into_bytes()
}

fn run(store: &Pipeline, command: Command) {
    block_on(store.propose(ClientId(0), command, 0)).unwrap();
}

fn put(number: i64) -> PutRequest {
    PutRequest { key: key(number).into(), value: vec![b'v'; 100].into(), ..Default::default() }
}

/// Deletes a key and creates another one. The new keys are spread over the key space.
fn move_key(store: &Pipeline, number: i64) {
    let old = DeleteRangeRequest { key: name(number).into(), ..Default::default() };
    let new = PutRequest { key: name(number + KEYS).into(), ..put(0) };
    let ops = [Request::RequestDeleteRange(old), Request::RequestPut(new)];
    let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    run(store, Command::Txn(TxnRequest { success, ..Default::default() }));
}

/// Returns a key that is different for each number up to a million.
fn name(number: i64) -> Vec<u8> {
    key(number * 7919 % 1_000_003)
}

/// Reads all keys in pages at one revision. Each count must be the number of keys that are
/// left. Returns whether the revision was compacted before the last page.
fn read_pages(store: &Pipeline) -> bool {
    let mut request = RangeRequest {
        key: key(0).into(),
        range_end: b"/key0".to_vec().into(),
        limit: PAGE,
        ..Default::default()
    };
    let mut found = 0;
    loop {
        let page = match store.range(&request) {
            Ok(page) => page.finish(),
            Err(Error::Refused(mvcc::Error::Compacted)) => return true,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(page.count, KEYS - found, "the count after {found} keys");
        found += page.kvs.len() as i64;
        assert_eq!(page.more, found < KEYS);
        if !page.more {
            return false;
        }
        if request.revision == 0 {
            request.revision = page.header.unwrap().revision;
        }
        request.key = [page.kvs.last().unwrap().key(), &[0]].concat().into();
    }
}

#[test]
fn pages_have_the_counts_of_their_revision() {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    for number in 0..KEYS {
        let put = PutRequest { key: name(number).into(), ..put(0) };
        run(&store, Command::Put(put));
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MOVES {
                move_key(&store, number);
                if number % 4000 == 3999 {
                    // It keeps the revisions of the last 2000 moves.
                    let revision = KEYS + 1 + number - 2000;
                    run(&store, Command::Compact { revision });
                }
            }
            done.store(true, Ordering::Release);
        });
        let reader = || {
            let mut complete = 0;
            while !done.load(Ordering::Acquire) || complete == 0 {
                complete += usize::from(!read_pages(&store));
            }
        };
        for _ in 0..3 {
            scope.spawn(reader);
        }
    });
}
