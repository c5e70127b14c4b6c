//! Validation of requests before they reach the store. The checks and the error messages
//! are those of etcd.

use etcdpb::rpc::range_request::{SortOrder, SortTarget};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use grpc::Status;

use super::duplicate_keys::has_duplicate_key;
use super::status;

/// Validates a range request.
pub fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::empty_key());
    }
    let valid_sort = SortOrder::try_from(request.sort_order).is_ok()
        && SortTarget::try_from(request.sort_target).is_ok();
    if valid_sort { Ok(()) } else { Err(status::invalid_sort_option()) }
}

/// Validates a range stream. As in etcd, a range stream returns keys only in key order,
/// and supports no filters by revision.
pub fn range_stream(request: &RangeRequest) -> Result<(), Status> {
    range(request)?;
    let by_key = request.sort_target() == SortTarget::Key;
    let ordered = request.sort_order() == SortOrder::None
        || (by_key && request.sort_order() == SortOrder::Ascend);
    if !ordered {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    let revisions = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    if revisions != [0; 4] {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

/// Validates a put.
pub fn put(request: &PutRequest) -> Result<(), Status> {
    match () {
        () if request.key.is_empty() => Err(status::empty_key()),
        () if request.ignore_value && !request.value.is_empty() => Err(status::value_provided()),
        () if request.ignore_lease && request.lease != 0 => Err(status::lease_provided()),
        () => Ok(()),
    }
}

/// Validates a delete.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(status::empty_key()) } else { Ok(()) }
}

/// Validates a transaction and all nested transactions. The limit of a nested transaction
/// is `max_ops` minus the operations of the transactions around it.
pub fn txn(request: &TxnRequest, max_ops: usize) -> Result<(), Status> {
    txn_operations(request, max_ops)?;
    if has_duplicate_key(request) { Err(status::duplicate_key()) } else { Ok(()) }
}

/// Validates the compares and operations of a transaction and of all nested transactions.
fn txn_operations(request: &TxnRequest, max_ops: usize) -> Result<(), Status> {
    let widest = request.compare.len().max(request.success.len()).max(request.failure.len());
    let remaining_ops = max_ops.checked_sub(widest).ok_or_else(status::too_many_ops)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(status::empty_key());
    }
    request.success.iter().chain(&request.failure).try_for_each(|op| match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(nested)) => txn_operations(nested, remaining_ops),
        None => Err(status::key_not_found()),
    })
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::RequestOp;

    use super::*;

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put_op(key: &'static str) -> RequestOp {
        op(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() }))
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        let (key, range_end) = (key.into(), end.into());
        op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op(Request::RequestTxn(TxnRequest { compare: vec![], success, failure }))
    }

    fn check(success: Vec<RequestOp>) -> Result<(), String> {
        let request = TxnRequest { compare: vec![], success, failure: vec![] };
        txn(&request, 4).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn a_key_is_changed_at_most_once() {
        let duplicate = Err("etcdserver: duplicate key given in txn request".to_owned());
        assert_eq!(check(vec![put_op("a"), put_op("b")]), Ok(()));
        assert_eq!(check(vec![put_op("a"), put_op("a")]), duplicate);
        assert_eq!(check(vec![put_op("b"), delete_op("a", "c")]), duplicate);
        assert_eq!(check(vec![put_op("c"), delete_op("a", "c")]), Ok(()));
        assert_eq!(check(vec![put_op("b"), delete_op("a", "\0")]), Ok(()));
        assert_eq!(check(vec![put_op("a"), nested(vec![put_op("a")], vec![])]), duplicate);
        assert_eq!(check(vec![nested(vec![put_op("a")], vec![put_op("a")])]), Ok(()));
        let twice = vec![nested(vec![put_op("a")], vec![]), nested(vec![], vec![put_op("a")])];
        assert_eq!(check(twice), duplicate);
        assert_eq!(check(vec![delete_op("a", ""), delete_op("a", "")]), Ok(()));
    }

    #[test]
    fn nested_operations_count_towards_the_limit() {
        let many = Err("etcdserver: too many operations in txn request".to_owned());
        assert_eq!(check(vec![put_op("a"), put_op("b"), put_op("c"), put_op("d")]), Ok(()));
        assert_eq!(check(["a", "b", "c", "d", "e"].map(put_op).to_vec()), many);
        let inner = nested(["b", "c", "d", "e"].map(put_op).to_vec(), vec![]);
        assert_eq!(check(vec![inner]), many);
    }

    #[test]
    fn missing_keys_and_operations_are_reported() {
        let empty = Err("etcdserver: key is not provided".to_owned());
        assert_eq!(check(vec![put_op("")]), empty);
        let nothing = Err("etcdserver: key not found".to_owned());
        assert_eq!(check(vec![RequestOp { request: None }]), nothing);
    }
}
