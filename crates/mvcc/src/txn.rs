//! Transactions. As in etcd, a transaction is executed in three passes:
//! 1. Evaluate all comparisons, including those of nested transactions, on the state before
//!    the transaction. They select the branches to execute.
//! 2. Check every operation of these branches.
//! 3. Execute the operations. They can no longer fail.

use std::cmp::Ordering;

use etcdpb::Record;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};

use crate::effect::Effects;
use crate::error::Error;
use crate::range::{RangeCursor, readable_revision};
use crate::span::Span;
use crate::store::Store;
use crate::write::{Write, check_put, header};

/// Executes a transaction that may write.
pub(crate) fn apply(
    store: &mut Store,
    request: &TxnRequest,
    effects: &mut Effects,
) -> Result<TxnResponse, Error> {
    let branches = select_and_check(store, request, store.revision)?;
    let mut write = Write::new(store, effects);
    let mut response = execute(&mut write, request, &mut branches.into_iter());
    response.header = header(write.finish());
    Ok(response)
}

impl Store {
    /// Executes a read-only transaction (see [`crate::is_read_only`]) at `current`, the
    /// published revision.
    ///
    /// # Errors
    /// Fails if a range requests a revision that is compacted or in the future.
    pub fn read_txn(&self, request: &TxnRequest, current: i64) -> Result<TxnResponse, Error> {
        let branches = select_and_check(self, request, current)?;
        let mut view = View { store: self, revision: current };
        let mut response = execute(&mut view, request, &mut branches.into_iter());
        response.header = header(current);
        Ok(response)
    }
}

/// Passes 1 and 2. Returns the selected branches of the transaction and its nested
/// transactions, parents before children; true stands for the success branch.
fn select_and_check(
    store: &Store,
    request: &TxnRequest,
    revision: i64,
) -> Result<Vec<bool>, Error> {
    let mut branches = Vec::with_capacity(1);
    select_branches(store, request, revision, &mut branches);
    check_branch(store, request, revision, &mut branches.iter().copied())?;
    Ok(branches)
}

/// Pass 1: appends the selected branches to `branches`.
fn select_branches(store: &Store, request: &TxnRequest, revision: i64, branches: &mut Vec<bool>) {
    let succeeded = request.compare.iter().all(|compare| compare_holds(store, revision, compare));
    branches.push(succeeded);
    for op in branch(request, succeeded) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            select_branches(store, nested, revision, branches);
        }
    }
}

/// Pass 2: checks the operations of the selected branches.
fn check_branch(
    store: &Store,
    request: &TxnRequest,
    revision: i64,
    branches: &mut impl Iterator<Item = bool>,
) -> Result<(), Error> {
    let succeeded = branches.next().expect("a branch was selected for each transaction");
    for op in branch(request, succeeded) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(store, revision, range)?,
            Some(Request::RequestPut(put)) => check_put(store, revision, put)?,
            Some(Request::RequestTxn(nested)) => check_branch(store, nested, revision, branches)?,
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// Checks the revision of a range in a transaction. As in etcd, this check is stricter
/// than the one for other ranges: a negative revision counts as compacted.
fn check_range(store: &Store, current: i64, request: &RangeRequest) -> Result<(), Error> {
    if request.revision != 0 && request.revision < store.compacted {
        return Err(Error::Compacted);
    }
    readable_revision(store, request.revision, current).map(drop)
}

/// Returns the operations of a branch.
fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// Executes single operations of a transaction.
trait OpExecutor {
    fn range(&self, request: &RangeRequest) -> RangeResponse;
    /// Executes a put or a delete.
    fn change(&mut self, request: &Request) -> Response;
}

/// Pass 3: executes the operations of the selected branches.
fn execute(
    executor: &mut impl OpExecutor,
    request: &TxnRequest,
    branches: &mut impl Iterator<Item = bool>,
) -> TxnResponse {
    let succeeded = branches.next().expect("a branch was selected for each transaction");
    let mut responses = Vec::new();
    for op in branch(request, succeeded) {
        let response = match &op.request {
            None => None,
            Some(Request::RequestRange(range)) => {
                Some(Response::ResponseRange(executor.range(range)))
            }
            Some(Request::RequestTxn(nested)) => {
                let mut nested = execute(executor, nested, branches);
                // etcd sets the revision only in the outermost header.
                nested.header = Some(ResponseHeader::default());
                Some(Response::ResponseTxn(nested))
            }
            Some(change) => Some(executor.change(change)),
        };
        responses.push(ResponseOp { response });
    }
    TxnResponse { header: None, succeeded, responses }
}

impl OpExecutor for Write<'_> {
    fn range(&self, request: &RangeRequest) -> RangeResponse {
        range(self.store, request, self.revision())
    }

    fn change(&mut self, request: &Request) -> Response {
        match request {
            Request::RequestPut(put) => Response::ResponsePut(self.put(put)),
            Request::RequestDeleteRange(delete) => {
                Response::ResponseDeleteRange(self.delete_range(delete))
            }
            Request::RequestRange(_) | Request::RequestTxn(_) => {
                unreachable!("execute handles ranges and nested transactions")
            }
        }
    }
}

/// A read-only view of the store at a revision.
struct View<'a> {
    store: &'a Store,
    revision: i64,
}

impl OpExecutor for View<'_> {
    fn range(&self, request: &RangeRequest) -> RangeResponse {
        range(self.store, request, self.revision)
    }

    fn change(&mut self, _: &Request) -> Response {
        unreachable!("the caller has checked is_read_only")
    }
}

/// Executes a range whose revision was checked in pass 2.
fn range(store: &Store, request: &RangeRequest, current: i64) -> RangeResponse {
    let mut cursor = RangeCursor::new(store, request, current, true)
        .expect("the revision was checked in pass 2");
    cursor.step(store, usize::MAX);
    cursor.finish()
}

/// Whether `compare` is true for every key in its span. If no key exists in the span, one
/// key that does not exist is compared.
fn compare_holds(store: &Store, revision: i64, compare: &Compare) -> bool {
    let span = Span::new(&compare.key, &compare.range_end);
    if let Some(key) = span.as_point() {
        let record = store.index.get(key).and_then(|e| e.live_at(revision));
        return compare_record(compare, record);
    }
    let mut live =
        store.index.range(&span, None).filter_map(|(_, e)| e.live_at(revision)).peekable();
    if live.peek().is_none() {
        return compare_record(compare, None);
    }
    live.all(|record| compare_record(compare, Some(record)))
}

/// Whether `compare` is true for one key. `record` is `None` for a key that does not
/// exist: its version, revisions and lease are then 0.
fn compare_record(compare: &Compare, record: Option<&Record>) -> bool {
    let number = |of: fn(&Record) -> i64| record.map_or(0, of);
    let union = compare.target_union.as_ref();
    // As in etcd, a missing operand counts as 0.
    let operand = |pick: fn(&TargetUnion) -> Option<i64>| union.and_then(pick).unwrap_or(0);
    let order = match compare.target() {
        CompareTarget::Version => number(Record::version).cmp(&operand(|u| match u {
            TargetUnion::Version(n) => Some(*n),
            _ => None,
        })),
        CompareTarget::Create => number(Record::create_revision).cmp(&operand(|u| match u {
            TargetUnion::CreateRevision(n) => Some(*n),
            _ => None,
        })),
        CompareTarget::Mod => number(Record::mod_revision).cmp(&operand(|u| match u {
            TargetUnion::ModRevision(n) => Some(*n),
            _ => None,
        })),
        CompareTarget::Lease => number(Record::lease).cmp(&operand(|u| match u {
            TargetUnion::Lease(n) => Some(*n),
            _ => None,
        })),
        CompareTarget::Value => {
            // A key that does not exist has no value. As in etcd, a comparison of its
            // value is false.
            let Some(record) = record else { return false };
            let value: &[u8] = match union {
                Some(TargetUnion::Value(value)) => value,
                _ => &[],
            };
            record.value().cmp(value)
        }
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order == Ordering::Equal,
        Ok(CompareResult::NotEqual) => order != Ordering::Equal,
        Ok(CompareResult::Greater) => order == Ordering::Greater,
        Ok(CompareResult::Less) => order == Ordering::Less,
        // As in etcd, an unknown operator is always true.
        Err(_) => true,
    }
}
