//! Transactions: compare, then one branch or the other, nested as deep as the
//! request goes.
//!
//! In three passes, as etcd has it. All comparisons, the nested ones included,
//! are made on the state before the transaction and fix its path; then every
//! operation on the path is checked; only then is anything carried out, which
//! can no longer fail.

use std::cmp::Ordering;

use etcdpb::Record;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    Compare, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};

use crate::apply::{Write, check_put, header};
use crate::effect::Effects;
use crate::range::{RangeCursor, readable};
use crate::{Error, Span, Store};

/// Whether no branch of `request` can change anything.
pub fn is_read_only(request: &TxnRequest) -> bool {
    let reads = |op: &RequestOp| match &op.request {
        Some(Request::RequestRange(_)) | None => true,
        Some(Request::RequestTxn(nested)) => is_read_only(nested),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
    };
    request.success.iter().chain(&request.failure).all(reads)
}

/// Carries out a transaction that may write.
pub(crate) fn apply(
    store: &mut Store,
    request: &TxnRequest,
    effects: &mut Effects,
) -> Result<TxnResponse, Error> {
    let path = check(store, request, store.revision)?;
    let mut write = Write::new(store, effects);
    let mut response = execute(&mut write, request, &mut path.into_iter());
    response.header = header(write.finish());
    Ok(response)
}

impl Store {
    /// Answers a transaction that only reads (see [`is_read_only`]) as of
    /// `current`, the newest revision that readers may see.
    pub fn read_txn(&self, request: &TxnRequest, current: i64) -> Result<TxnResponse, Error> {
        let path = check(self, request, current)?;
        let mut view = View { store: self, revision: current };
        let mut response = execute(&mut view, request, &mut path.into_iter());
        response.header = header(current);
        Ok(response)
    }
}

/// Decides each branch, parents before children, and checks what lies on it.
fn check(store: &Store, request: &TxnRequest, revision: i64) -> Result<Vec<bool>, Error> {
    let mut path = Vec::with_capacity(1);
    decide(store, request, revision, &mut path);
    check_branch(store, request, revision, &mut path.iter().copied())?;
    Ok(path)
}

fn decide(store: &Store, request: &TxnRequest, revision: i64, path: &mut Vec<bool>) {
    let succeeded = request.compare.iter().all(|compare| holds(store, revision, compare));
    path.push(succeeded);
    for op in branch(request, succeeded) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            decide(store, nested, revision, path);
        }
    }
}

fn check_branch(
    store: &Store,
    request: &TxnRequest,
    revision: i64,
    path: &mut impl Iterator<Item = bool>,
) -> Result<(), Error> {
    let succeeded = path.next().expect("one decision for each transaction");
    for op in branch(request, succeeded) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(store, revision, range)?,
            Some(Request::RequestPut(put)) => check_put(store, revision, put)?,
            Some(Request::RequestTxn(nested)) => check_branch(store, nested, revision, path)?,
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// As etcd, stricter than for a range of its own: a negative revision is taken
/// as one of the distant past.
fn check_range(store: &Store, current: i64, request: &RangeRequest) -> Result<(), Error> {
    if request.revision != 0 && request.revision < store.compacted {
        return Err(Error::Compacted);
    }
    readable(store, request.revision, current).map(drop)
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// Where the operations of a transaction take effect.
trait Executor {
    fn range(&self, request: &RangeRequest) -> RangeResponse;
    fn change(&mut self, request: &Request) -> Response;
}

fn execute(
    executor: &mut impl Executor,
    request: &TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> TxnResponse {
    let succeeded = path.next().expect("one decision for each transaction");
    let mut responses = Vec::new();
    for op in branch(request, succeeded) {
        let response = match &op.request {
            None => None,
            Some(Request::RequestRange(range)) => {
                Some(Response::ResponseRange(executor.range(range)))
            }
            Some(Request::RequestTxn(nested)) => {
                let mut nested = execute(executor, nested, path);
                // etcd gives the revision on the outermost header only.
                nested.header = Some(ResponseHeader::default());
                Some(Response::ResponseTxn(nested))
            }
            Some(change) => Some(executor.change(change)),
        };
        responses.push(ResponseOp { response });
    }
    TxnResponse { header: None, succeeded, responses }
}

impl Executor for Write<'_> {
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
                unreachable!("not a change")
            }
        }
    }
}

/// The state as of a revision, read only.
struct View<'a> {
    store: &'a Store,
    revision: i64,
}

impl Executor for View<'_> {
    fn range(&self, request: &RangeRequest) -> RangeResponse {
        range(self.store, request, self.revision)
    }

    fn change(&mut self, _: &Request) -> Response {
        unreachable!("the caller has asked is_read_only")
    }
}

fn range(store: &Store, request: &RangeRequest, current: i64) -> RangeResponse {
    let mut cursor =
        RangeCursor::new(store, request, current, true).expect("checked before execution");
    cursor.step(store, usize::MAX);
    cursor.finish()
}

/// Whether `compare` is true of every key in its span; of a span without keys
/// it is judged as if there were one with all numbers zero.
fn holds(store: &Store, revision: i64, compare: &Compare) -> bool {
    let span = Span::new(&compare.key, &compare.range_end);
    if let Some(key) = span.as_point() {
        let record = store.index.get(key).and_then(|e| e.live_at(revision));
        return holds_of(compare, record);
    }
    let mut live =
        store.index.range(&span, None).filter_map(|(_, e)| e.live_at(revision)).peekable();
    if live.peek().is_none() {
        return holds_of(compare, None);
    }
    live.all(|record| holds_of(compare, Some(record)))
}

fn holds_of(compare: &Compare, record: Option<&Record>) -> bool {
    let number = |of: fn(&Record) -> i64| record.map_or(0, of);
    let union = compare.target_union.as_ref();
    // A target without its operand compares with zero, as in etcd.
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
            // A missing key has no value, so no comparison with one is true.
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
        // As etcd: an operator from the future is true of everything.
        Err(_) => true,
    }
}
