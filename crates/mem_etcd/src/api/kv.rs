//! KV service: reading and writing keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcdpb::KeyValue;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, ResponseOp, TxnRequest,
    TxnResponse,
};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use grpc::{Admission, Encoded, SlowRead, Status};
use mvcc::{Command, Reply};
use pipeline::{LargeTxn, RangePages, RangeRead, ReadStart, TxnRead};
use prost::Message;

use super::nested_txn::NestedTxn;
use super::pieces::WriteResponse;
use super::service::{Api, SMALL_REQUEST_BYTES};
use super::{pieces, status, validate};

/// Shortest and longest interval between two checks whether the memory of the compacted
/// history has been freed. A physical compaction waits for that.
const MIN_COLLECTED_POLL: Duration = Duration::from_millis(1);
const MAX_COLLECTED_POLL: Duration = Duration::from_millis(100);

/// The memory of a small reply to a transaction, which is not counted before it exists.
const SMALL_REPLY_BYTES: usize = 1 << 10;

impl Api {
    pub(super) async fn range(
        self: Arc<Self>,
        request: RangeRequest,
        admission: Admission,
    ) -> Result<Encoded, Status> {
        if !request.serializable && self.pipeline.is_learner() {
            return Err(status::not_supported_for_learner());
        }
        validate::range(&request)?;
        let permit = self.permit_range(&admission, &request)?;
        self.check_leader(&admission)?;
        if !request.serializable {
            self.linearize().await?;
        }
        let start = self.pipeline.read_start();
        match self.pipeline.range(&request).map_err(status::from_pipeline)? {
            RangeRead::Done(response) => {
                self.confirm(permit)?;
                return Ok(self.complete_range(start, request.revision, response));
            }
            // It would keep old revisions in memory while it waits for its turn.
            RangeRead::Large(range) => drop(range),
        }
        let bytes = request.encoded_len();
        let read = move |slow: &SlowRead| {
            let start = self.pipeline.read_start();
            let response = match self.pipeline.range(&request)? {
                RangeRead::Done(response) => response,
                RangeRead::Large(range) => {
                    let held = range.held_bytes();
                    range.finish_unless(&|| slow.give_way_holding(held.load(Ordering::Relaxed)))?
                }
            };
            permit.confirm(&self.pipeline)?;
            Ok(self.complete_range(start, request.revision, response))
        };
        admission.run_slow(bytes, read).await?.map_err(status::from_pipeline)
    }

    /// Completes the response to a range at `revision`, or at the newest revision if that is 0.
    fn complete_range(
        &self,
        start: ReadStart,
        revision: i64,
        mut response: RangeResponse,
    ) -> Encoded {
        if response.more {
            let newest = response.header.map_or(0, |header| header.revision);
            let revision = if revision > 0 { revision } else { newest };
            self.paged_reads.read(revision, Instant::now());
        }
        self.complete_header(&mut response.header);
        pieces::encode(&self.pipeline, start, response)
    }

    /// Streams the pages of a range. A page is read only after the client has read enough
    /// of the previous pages.
    pub(super) fn range_stream(
        self: Arc<Self>,
        request: RangeRequest,
        admission: Admission,
    ) -> BoxStream<'static, Result<RangeStreamResponse, Status>> {
        let permit =
            validate::range_stream(&request).and_then(|()| self.permit_range(&admission, &request));
        let permit = match permit {
            Ok(permit) => permit,
            Err(status) => return stream::once(async { Err(status) }).boxed(),
        };
        let api = self.clone();
        let respond = move |page: Result<RangeResponse, Status>| {
            let mut page = page?;
            api.confirm(permit)?;
            if page.header.is_some() {
                api.complete_header(&mut page.header);
            }
            Ok(RangeStreamResponse { range_response: Some(page) })
        };
        if request.count_only {
            return stream::once(self.count(request, admission)).map(respond).boxed();
        }
        let reads = self.paged_reads.clone();
        // The pages keep old revisions in memory. So they start when the stream is polled.
        let pages = async move {
            if !request.serializable {
                self.linearize().await?;
            }
            self.pipeline.pages(request).map_err(status::from_pipeline)
        };
        let pages = stream::once(pages);
        let pages = pages.map_ok(move |pages| {
            let (admission, reads) = (admission.clone(), reads.clone());
            stream::try_unfold(pages, move |pages: RangePages| {
                if !pages.is_done() {
                    reads.read(pages.revision(), Instant::now());
                }
                next_page(pages, admission.clone())
            })
        });
        pages.try_flatten().map(respond).boxed()
    }

    /// Counts the keys of a range.
    async fn count(
        self: Arc<Self>,
        request: RangeRequest,
        admission: Admission,
    ) -> Result<RangeResponse, Status> {
        if !request.serializable {
            self.linearize().await?;
        }
        let bytes = request.encoded_len();
        let count = move |slow: &SlowRead| {
            self.pipeline.range(&request)?.finish_unless(&|| slow.give_way())
        };
        admission.run_slow(bytes, count).await?.map_err(status::from_pipeline)
    }

    pub(super) async fn put(
        self: Arc<Self>,
        request: PutRequest,
        admission: Admission,
    ) -> Result<WriteResponse<PutResponse>, Status> {
        validate::put(&request)?;
        self.check_leader(&admission)?;
        let origin = self.origin(&admission)?;
        let bytes = self.checked_size(&request)?;
        let start = self.pipeline.read_start();
        match self.propose(origin, Command::Put(request), bytes).await? {
            Reply::Put(mut response) => {
                self.complete_header(&mut response.header);
                Ok(WriteResponse::new(&self.pipeline, start, response))
            }
            other => unreachable!("not the reply to a put: {other:?}"),
        }
    }

    pub(super) async fn delete_range(
        self: Arc<Self>,
        request: DeleteRangeRequest,
        admission: Admission,
    ) -> Result<WriteResponse<DeleteRangeResponse>, Status> {
        validate::delete_range(&request)?;
        self.check_leader(&admission)?;
        let origin = self.origin(&admission)?;
        let bytes = self.checked_size(&request)?;
        let start = self.pipeline.read_start();
        match self.propose(origin, Command::DeleteRange(request), bytes).await? {
            Reply::DeleteRange(mut response) => {
                self.complete_header(&mut response.header);
                Ok(WriteResponse::new(&self.pipeline, start, response))
            }
            other => unreachable!("not the reply to a delete: {other:?}"),
        }
    }

    pub(super) async fn txn(
        self: Arc<Self>,
        NestedTxn(request): NestedTxn,
        admission: Admission,
    ) -> Result<WriteResponse<TxnResponse>, Status> {
        validate::txn(&request, self.limits.txn_ops)?;
        self.check_leader(&admission)?;
        let origin = self.origin(&admission)?;
        let permit = self.permit_reads_of(&origin.caller, &request)?;
        let bytes = self.checked_size(&request)?;
        let expected = expected_reply_bytes(&request);
        let expected = (expected > SMALL_REPLY_BYTES).then(|| admission.expect_reply(expected));
        let expected = expected.transpose()?;
        let start = self.pipeline.read_start();
        match self.pipeline.txn(origin, request, bytes).await.map_err(status::from_pipeline)? {
            TxnRead::Done(mut response) => {
                self.confirm(permit)?;
                self.complete_header(&mut response.header);
                Ok(WriteResponse::new(&self.pipeline, start, response).expected(expected))
            }
            TxnRead::Large(txn) if txn.is_executed() => {
                let read = self.finish_txn(txn, start, bytes, admission).await;
                let read = read.map_err(|status| status::ranges_not_read(&status))?;
                read.map_err(status::from_executed_txn)
            }
            TxnRead::Large(txn) => {
                let read = self.clone().finish_txn(txn, start, bytes, admission).await?;
                self.confirm(permit)?;
                read.map_err(status::from_pipeline)
            }
        }
    }

    /// Reads the rest of a transaction that began at `start`. `bytes` is the size of the
    /// request. Returns an error of the admission, or of the read.
    async fn finish_txn(
        self: Arc<Self>,
        txn: LargeTxn,
        start: ReadStart,
        bytes: usize,
        admission: Admission,
    ) -> Result<Result<WriteResponse<TxnResponse>, pipeline::Error>, Status> {
        let waiting_bytes = bytes + txn.waiting_bytes();
        let read = move |slow: &SlowRead| {
            let held = txn.held_bytes();
            let stops = || slow.give_way_holding(held.load(Ordering::Relaxed));
            let mut response = txn.finish_unless(&stops)?;
            self.complete_header(&mut response.header);
            Ok(WriteResponse::Encoded(pieces::encode(&self.pipeline, start, response)))
        };
        admission.run_slow(waiting_bytes, read).await
    }

    /// Compacts the history before a revision, so that it can no longer be read. With
    /// `physical`, also waits until the memory of that history is freed. Reads in
    /// progress may delay this.
    pub(super) async fn compact(
        self: Arc<Self>,
        request: CompactionRequest,
        admission: Admission,
    ) -> Result<CompactionResponse, Status> {
        self.require_admin(&admission)?;
        let CompactionRequest { revision: compacted, physical } = request;
        let compact = Command::Compact { revision: compacted };
        let origin = self.origin(&admission)?;
        let revision = self.propose_without_result(origin, compact).await?;
        let mut pause = MIN_COLLECTED_POLL;
        while physical && !self.pipeline.is_collected(compacted).map_err(status::from_pipeline)? {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_COLLECTED_POLL);
        }
        Ok(CompactionResponse { header: self.header(revision) })
    }

    /// Returns the encoded size of the request, or an error if it is too large.
    pub(super) fn checked_size(&self, request: &impl Message) -> Result<usize, Status> {
        let bytes = request.encoded_len();
        if bytes > self.limits.request_bytes {
            return Err(status::request_too_large());
        }
        Ok(bytes)
    }
}

/// Returns an upper bound of the memory of the reply to a transaction, without keys and values:
/// until it is encoded, it refers to records of the store.
fn expected_reply_bytes(request: &TxnRequest) -> usize {
    /// The ranges of a transaction that is executed return up to this many pairs together.
    const MAX_PAIRS: usize = 1000;
    let ops = operations(request);
    let has_range = ops.ranges > 0;
    ops.all * size_of::<ResponseOp>() + usize::from(has_range) * MAX_PAIRS * size_of::<KeyValue>()
}

/// Numbers of the operations of a transaction in both branches, with those of nested ones.
#[derive(Default)]
struct Operations {
    all: usize,
    /// Ranges over several keys.
    ranges: usize,
}

fn operations(request: &TxnRequest) -> Operations {
    let mut sum = Operations::default();
    for op in request.success.iter().chain(&request.failure) {
        sum.all += 1;
        match &op.request {
            Some(Request::RequestRange(range)) => {
                sum.ranges += usize::from(!range.range_end.is_empty());
            }
            Some(Request::RequestTxn(nested)) => {
                let nested = operations(nested);
                sum.all += nested.all;
                sum.ranges += nested.ranges;
            }
            _ => {}
        }
    }
    sum
}

/// Reads the next page of a range; `None` after the last one. A page for which more keys
/// are visited than a small range has is read on a blocking thread.
async fn next_page(
    mut pages: RangePages,
    admission: Admission,
) -> Result<Option<(RangeResponse, RangePages)>, Status> {
    if pages.is_done() {
        return Ok(None);
    }
    if let Some(page) = pages.start_page().map_err(status::from_pipeline)? {
        return Ok(Some((page, pages)));
    }
    let read = move |slow: &SlowRead| {
        let page = pages.finish_page_unless(&|| slow.give_way())?;
        Ok(Some((page, pages)))
    };
    admission.run_slow(SMALL_REQUEST_BYTES, read).await?.map_err(status::from_pipeline)
}
