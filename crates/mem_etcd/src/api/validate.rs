//! Validation of requests before they reach the store. The checks and the error messages
//! are those of etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use etcdpb::rpc::range_request::{SortOrder, SortTarget};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use grpc::Status;

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
    branch_changes(&request.success)?;
    branch_changes(&request.failure)?;
    Ok(())
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

/// The keys that a branch of a transaction may put, and those that it may delete.
#[derive(Default)]
struct Changes<'a> {
    puts: BTreeSet<&'a [u8]>,
    deleted_keys: BTreeSet<&'a [u8]>,
    /// The ends of deleted ranges by their start. The ranges neither overlap nor touch.
    deleted_ranges: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Changes<'a> {
    fn add_put(&mut self, key: &'a [u8]) -> Result<(), Status> {
        if self.deletes(key) || !self.puts.insert(key) {
            return Err(status::duplicate_key());
        }
        Ok(())
    }

    fn deletes(&self, key: &[u8]) -> bool {
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        let range = self.deleted_ranges.range::<[u8], _>(up_to_key).next_back();
        self.deleted_keys.contains(key) || range.is_some_and(|(_, end)| key < *end)
    }

    /// Adds a delete. The range end `"\0"` means all keys from `key` on. As in etcd, it
    /// is compared as an ordinary key here, so such a delete conflicts with no put. If a
    /// put and such a delete change the same key, they are executed in order.
    fn add_delete(&mut self, key: &'a [u8], end: &'a [u8]) {
        if end.is_empty() {
            self.deleted_keys.insert(key);
        } else if key < end {
            self.add_deleted_range(key, end);
        }
    }

    /// Adds a deleted range and merges it with the ranges that it overlaps or touches.
    fn add_deleted_range(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        while let Some((&before, &until)) = self.deleted_ranges.range(..=end).next_back() {
            if until < start {
                break;
            }
            self.deleted_ranges.remove(before);
            (start, end) = (start.min(before), end.max(until));
        }
        self.deleted_ranges.insert(start, end);
    }

    /// Adds the changes of both branches of a nested transaction. Only one branch is
    /// executed, so both may put the same key.
    fn add_nested(&mut self, then: Changes<'a>, otherwise: Changes<'a>) -> Result<(), Status> {
        then.puts.iter().try_for_each(|key| self.add_put(key))?;
        let only_otherwise = otherwise.puts.difference(&then.puts);
        only_otherwise.copied().try_for_each(|key| self.add_put(key))?;
        for branch in [then, otherwise] {
            self.deleted_keys.extend(branch.deleted_keys);
            branch
                .deleted_ranges
                .into_iter()
                .for_each(|(key, end)| self.add_deleted_range(key, end));
        }
        Ok(())
    }
}

/// Returns the changes of a branch. Fails if the branch could change a key twice. As in
/// etcd, deletes of this level are added first, then nested transactions, then puts of
/// this level.
fn branch_changes(ops: &[RequestOp]) -> Result<Changes<'_>, Status> {
    let mut changes = Changes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            changes.add_delete(&delete.key, &delete.range_end);
        }
    }
    for op in ops {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            let then = branch_changes(&nested.success)?;
            let otherwise = branch_changes(&nested.failure)?;
            changes.add_nested(then, otherwise)?;
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            changes.add_put(&put.key)?;
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
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
    fn touching_ranges_are_merged() {
        let mut changes = Changes::default();
        for (start, end) in [("b", "d"), ("h", "k"), ("d", "f"), ("a", "c"), ("e", "i"), ("x", "z")]
        {
            changes.add_delete(start.as_bytes(), end.as_bytes());
        }
        let merged: Vec<_> = changes.deleted_ranges.clone().into_iter().collect();
        assert_eq!(merged, [(&b"a"[..], &b"k"[..]), (b"x", b"z")]);
        assert!(changes.deletes(b"j") && !changes.deletes(b"k") && !changes.deletes(b"w"));
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
