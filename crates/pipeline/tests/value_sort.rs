//! Ranges that sort by value. Comparing long values takes long, so it is not done while other
//! calls or commands wait.

use data_dir::Identity;
use etcdpb::rpc::range_request::{SortOrder, SortTarget};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse};
use futures_executor::block_on;
use mvcc::Command;
use pipeline::{ClientId, Pipeline, PipelineOptions, RangeRead, TxnRead, WalMode};

const KEYS: usize = 20;

/// Creates a store with values of `bytes` bytes, which are in the reverse order of their keys.
fn store(bytes: usize) -> Pipeline {
    let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
    let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
    for n in 0..KEYS {
        let value = [&vec![b'v'; bytes][..], format!("{:03}", KEYS - n).as_bytes()].concat();
        let put = put(&format!("key{n:03}"), value);
        block_on(store.propose(ClientId(0), Command::Put(put), 0)).unwrap();
    }
    store
}

fn put(key: &str, value: Vec<u8>) -> PutRequest {
    let (key, value) = (key.as_bytes().to_vec().into(), value.into());
    PutRequest { key, value, ..Default::default() }
}

fn by_value() -> RangeRequest {
    RangeRequest {
        key: b"key".to_vec().into(),
        range_end: b"kez".to_vec().into(),
        sort_target: SortTarget::Value as i32,
        sort_order: SortOrder::Ascend as i32,
        limit: 3,
        ..Default::default()
    }
}

fn txn(ops: impl IntoIterator<Item = Request>) -> TxnRequest {
    let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    TxnRequest { success, ..Default::default() }
}

fn assert_last_keys(range: &RangeResponse) {
    let keys: Vec<_> = range.kvs.iter().map(|pair| pair.key().to_vec()).collect();
    assert_eq!(keys, [&b"key019"[..], b"key018", b"key017"]);
    assert_eq!(range.count, KEYS as i64);
}

fn assert_ranges(response: &TxnResponse, count: usize) {
    let ranges: Vec<_> = response
        .responses
        .iter()
        .filter_map(|op| match &op.response {
            Some(Response::ResponseRange(range)) => Some(range),
            _ => None,
        })
        .collect();
    assert_eq!(ranges.len(), count);
    ranges.into_iter().for_each(assert_last_keys);
}

#[test]
fn long_values_are_sorted_later() {
    let range = || Request::RequestRange(by_value());
    for (bytes, later) in [(100, false), (50_000, true)] {
        let store = store(bytes);
        let read = store.range(&by_value()).unwrap();
        assert_eq!(matches!(read, RangeRead::Large(_)), later, "range, {bytes} bytes");
        assert_last_keys(&read.finish());

        let writes = Request::RequestPut(put("other", vec![]));
        for (what, request) in [
            ("read-only transaction", txn([range(), range()])),
            ("transaction that writes", txn([range(), writes, range()])),
        ] {
            let read = block_on(store.txn(ClientId(0), request, 0)).unwrap();
            assert_eq!(matches!(read, TxnRead::Large(_)), later, "{what}, {bytes} bytes");
            assert_ranges(&read.finish().unwrap(), 2);
        }
    }
}

/// A transaction that writes sorts 256 KiB in total with other commands waiting.
#[test]
fn the_ranges_of_a_transaction_share_a_limit() {
    let store = store(2000);
    let writes = Request::RequestPut(put("other", vec![]));
    for (ranges, later) in [(5, false), (7, true)] {
        let ops = std::iter::repeat_n(Request::RequestRange(by_value()), ranges);
        let read = block_on(store.txn(ClientId(0), txn(ops.chain([writes.clone()])), 0)).unwrap();
        assert_eq!(matches!(read, TxnRead::Large(_)), later, "{ranges} ranges");
        assert_ranges(&read.finish().unwrap(), ranges);
    }
}
