//! The size that the quota limits.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use mvcc::{Command, Error, Quota, Store};

fn put(key: &'static str, value_bytes: usize) -> RequestOp {
    let (key, value) = (key.into(), vec![7; value_bytes].into());
    let put = PutRequest { key, value, ..Default::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

/// Deletes all keys from `key` on. Such a deletion may delete keys that the same transaction
/// puts.
fn delete_from(key: &'static str) -> RequestOp {
    let range_end = b"\0".to_vec().into();
    let delete = DeleteRangeRequest { key: key.into(), range_end, prev_kv: false };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

/// Executes a transaction 1,000 times, compacts, and collects all garbage. Returns the total
/// size and the size of the existing keys.
fn sizes_after(success: Vec<RequestOp>) -> (i64, i64) {
    let mut store = Store::default();
    let txn = Command::Txn(TxnRequest { success, ..Default::default() });
    for _ in 0..1000 {
        store.apply(&txn, &mut Vec::new()).unwrap();
    }
    let revision = store.revision();
    store.apply(&Command::Compact { revision }, &mut Vec::new()).unwrap();
    while store.collect(i64::MAX, 100) {}
    (store.stats().total_bytes, store.stats().live_bytes)
}

#[test]
fn a_put_that_its_transaction_deletes_is_not_counted_for_ever() {
    assert_eq!(sizes_after(vec![put("a", 1000), delete_from("a")]), (0, 0));
}

#[test]
fn a_deletion_that_its_transaction_overwrites_is_not_counted_for_ever() {
    let (total, live) = sizes_after(vec![delete_from("a"), put("a", 1000)]);
    assert_eq!(total, live);
    assert!(live > 1000);
}

/// Leases occupy memory as keys do. As in etcd, a store that is full of leases refuses
/// further leases and puts.
#[test]
fn leases_count_against_the_quota() {
    let mut store = Store::default();
    store.set_quota(Quota { bytes: 1_000_000, member_id: 1 });
    let grant = |id| Command::LeaseGrant { id, ttl_seconds: 60 };
    let granted =
        (1..200_000).take_while(|id| store.apply(&grant(*id), &mut Vec::new()).is_ok()).count();
    assert!((1000..20_000).contains(&granted), "{granted} leases in 1 MB");
    assert_eq!(store.apply(&grant(-1), &mut Vec::new()).unwrap_err(), Error::NoSpace);
    let put = PutRequest { key: "a".into(), ..Default::default() };
    assert_eq!(store.apply(&Command::Put(put), &mut Vec::new()).unwrap_err(), Error::NoSpace);
    assert_eq!(store.alarms().count(), 1);
    for id in 1..=granted as i64 {
        store.apply(&Command::LeaseRevoke { id }, &mut Vec::new()).unwrap();
    }
    assert_eq!((store.stats().total_bytes, store.stats().live_bytes), (0, 0));
}
