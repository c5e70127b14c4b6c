//! Transactions. As in etcd, a transaction is executed in three passes:
//! 1. Evaluate all comparisons, including those of nested transactions, on the state before
//!    the transaction. They select the branches to execute ([`BranchCursor`]).
//! 2. Check every operation of these branches.
//! 3. Execute the operations. They can no longer fail. Large ranges are left to a
//!    [`TxnCursor`].

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};

use crate::access::{STEP_KEYS, StoreAccess, TxnLimits};
use crate::branches::{BranchCursor, branch};
use crate::command::Reply;
use crate::effect::Effects;
use crate::error::Error;
use crate::range::{RangeCursor, readable_revision};
use crate::store::Store;
use crate::txn_cursor::{OpenRanges, TxnCursor};
use crate::write::{Write, check_put, header};

/// Executes a transaction that may write.
pub(crate) fn apply(
    store: &mut impl StoreAccess,
    request: &TxnRequest,
    effects: &mut Effects,
) -> Result<Reply, Error> {
    let branches = select_branches(store, request)?;
    let point = ReadPoint { compacted: store.compacted, revision: store.revision };
    let check_put = |request: &_| check_put(store, store.revision, request);
    check_branch(point, request, &mut branches.iter().copied(), &check_put)?;

    let TxnLimits { range_keys, sort_bytes, .. } = store.txn_limits();
    let write = Write::new(store, effects);
    let mut execution = WriteExecution { write, range_keys, sort_bytes, started_ranges: 0 };
    let mut response = execute(&mut execution, request, &mut branches.into_iter());
    let (revision, ranges) = execution.write.finish_txn();
    response.header = header(revision);
    Ok(match ranges.is_empty() {
        true => Reply::Txn(response),
        false => Reply::OpenTxn(Box::new(TxnCursor::new(response, ranges))),
    })
}

/// Pass 1 with exclusive access to the store.
fn select_branches(store: &mut impl StoreAccess, request: &TxnRequest) -> Result<Vec<bool>, Error> {
    let mut cursor = BranchCursor::new(request, store.revision);
    let max_keys = store.txn_limits().compare_keys;
    let mut keys_left = max_keys;
    loop {
        let step = STEP_KEYS.min(keys_left);
        if cursor.step(store, step) {
            break;
        }
        keys_left -= step;
        if keys_left == 0 {
            return Err(Error::TooManyComparedKeys { max_keys });
        }
        store.visited(step);
    }
    Ok(cursor.finish())
}

/// The state of the store that a read-only transaction reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadPoint {
    /// The compacted revision at the start of the transaction.
    compacted: i64,
    /// The published revision at the start of the transaction.
    revision: i64,
}

impl ReadPoint {
    /// Returns the current state of the store. `revision` is the published revision.
    pub fn new(store: &Store, revision: i64) -> Self {
        ReadPoint { compacted: store.published_compacted, revision }
    }

    /// Returns the revision that the transaction reads, unless a range requests another one.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the first revision whose history `request` may need. The store must not
    /// collect it until the transaction is complete.
    pub fn oldest_needed_revision(&self, request: &TxnRequest) -> i64 {
        let ops = request.success.iter().chain(&request.failure);
        let of_op = |op: &RequestOp| match &op.request {
            Some(Request::RequestRange(range)) => {
                readable_revision(self.compacted, range.revision, self.revision).ok()
            }
            Some(Request::RequestTxn(nested)) => Some(self.oldest_needed_revision(nested)),
            _ => None,
        };
        ops.filter_map(of_op).fold(self.revision, i64::min)
    }
}

impl TxnCursor {
    /// Starts a read-only transaction (see [`crate::is_read_only`]) at `point`, when
    /// `branches` has selected its branches.
    ///
    /// # Errors
    /// Fails if a range requests a revision that is compacted or in the future.
    pub fn read(
        request: &TxnRequest,
        point: ReadPoint,
        branches: BranchCursor<'_>,
    ) -> Result<Self, Error> {
        let branches = branches.finish();
        check_branch(point, request, &mut branches.iter().copied(), &|_| Ok(()))?;
        // No range has this revision, because the transaction changes nothing.
        let ranges = OpenRanges::new(i64::MAX);
        let mut execution = ReadExecution { point, started_ranges: 0, ranges };
        let mut response = execute(&mut execution, request, &mut branches.into_iter());
        response.header = header(point.revision);
        Ok(TxnCursor::new(response, execution.ranges))
    }
}

/// Pass 2: checks the operations of the selected branches.
fn check_branch(
    point: ReadPoint,
    request: &TxnRequest,
    branches: &mut impl Iterator<Item = bool>,
    check_put: &impl Fn(&PutRequest) -> Result<(), Error>,
) -> Result<(), Error> {
    let succeeded = branches.next().expect("a branch was selected for each transaction");
    for op in branch(request, succeeded) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(point, range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestTxn(nested)) => check_branch(point, nested, branches, check_put)?,
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// Checks the revision of a range in a transaction. As in etcd, this check is stricter
/// than the one for other ranges: a negative revision counts as compacted.
fn check_range(point: ReadPoint, request: &RangeRequest) -> Result<(), Error> {
    if request.revision != 0 && request.revision < point.compacted {
        return Err(Error::Compacted);
    }
    readable_revision(point.compacted, request.revision, point.revision).map(drop)
}

/// Executes single operations of a transaction.
trait OpExecutor {
    fn range(&mut self, request: &RangeRequest) -> RangeResponse;
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
    let ops = branch(request, succeeded);
    let mut responses = Vec::with_capacity(ops.len());
    for op in ops {
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

/// Executes a transaction that may write. Leaves ranges open that visit too many keys or sort
/// too much.
struct WriteExecution<'a, A> {
    write: Write<'a, A>,
    /// Number of keys that ranges may still visit.
    range_keys: usize,
    /// Number of bytes of values that ranges may still sort.
    sort_bytes: usize,
    /// Number of ranges so far.
    started_ranges: usize,
}

impl<A: StoreAccess> OpExecutor for WriteExecution<'_, A> {
    fn range(&mut self, request: &RangeRequest) -> RangeResponse {
        let (position, write) = (self.started_ranges, &mut self.write);
        self.started_ranges += 1;
        let mut cursor = RangeCursor::new(write.store, request, write.revision(), true)
            .expect("the revision was checked in pass 2");
        let complete = cursor.step(write.store, self.range_keys);
        self.range_keys = self.range_keys.saturating_sub(cursor.visited());
        if complete && let Some(left) = self.sort_bytes.checked_sub(cursor.bytes_to_sort()) {
            self.sort_bytes = left;
            return cursor.finish();
        }
        write.open_ranges.push(position, cursor);
        RangeResponse::default()
    }

    fn change(&mut self, request: &Request) -> Response {
        match request {
            Request::RequestPut(put) => Response::ResponsePut(self.write.put(put)),
            Request::RequestDeleteRange(delete) => {
                Response::ResponseDeleteRange(self.write.delete_range(delete))
            }
            Request::RequestRange(_) | Request::RequestTxn(_) => {
                unreachable!("execute handles ranges and nested transactions")
            }
        }
    }
}

/// Starts the ranges of a read-only transaction.
struct ReadExecution {
    point: ReadPoint,
    /// Number of ranges so far.
    started_ranges: usize,
    ranges: OpenRanges,
}

impl OpExecutor for ReadExecution {
    fn range(&mut self, request: &RangeRequest) -> RangeResponse {
        let ReadPoint { compacted, revision: current } = self.point;
        let revision = readable_revision(compacted, request.revision, current)
            .expect("the revision was checked in pass 2");
        let cursor = RangeCursor::pinned(request, current, revision).counting_all();
        self.ranges.push(self.started_ranges, cursor);
        self.started_ranges += 1;
        RangeResponse::default()
    }

    fn change(&mut self, _: &Request) -> Response {
        unreachable!("the caller has checked is_read_only")
    }
}
