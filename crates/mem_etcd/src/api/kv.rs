//! KV: reading and writing keys.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use etcdpb::rpc::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use grpc::{Encoded, Payload, Status};
use mvcc::{Command, Reply};
use pipeline::RangeRead;
use prost::Message;

use super::{Api, check, status};

/// Larger answers are encoded in pieces of about this size.
const KEYS_IN_ONE_PIECE: usize = 1000;
const PIECE_BYTES: usize = 128 << 10;
/// Number of the field `kvs` in `RangeResponse`.
const KVS: u32 = 2;

/// How long to wait between two looks at whether garbage is gone: little at first.
const COLLECTED_FIRST_PAUSE: Duration = Duration::from_millis(1);
const COLLECTED_LAST_PAUSE: Duration = Duration::from_millis(100);

impl Api {
    pub(super) async fn range(self: Arc<Self>, request: RangeRequest) -> Result<Encoded, Status> {
        check::range(&request)?;
        let encoded = move |api: &Api, mut response: RangeResponse| {
            api.fill(&mut response.header);
            encode(response)
        };
        match self.pipeline.range(&request).map_err(status::from_pipeline)? {
            RangeRead::Done(response) => Ok(encoded(&self, response)),
            RangeRead::Large(range) => blocking(move || encoded(&self, range.finish())).await,
        }
    }

    /// The pages of a range, each read when the client has room for it.
    pub(super) fn range_stream(
        self: Arc<Self>,
        request: RangeRequest,
    ) -> BoxStream<'static, Result<RangeStreamResponse, Status>> {
        if let Err(status) = check::range_stream(&request) {
            return stream::once(async { Err(status) }).boxed();
        }
        let api = self.clone();
        let respond = move |page: Result<RangeResponse, pipeline::Error>| {
            let mut page = page.map_err(status::from_pipeline)?;
            if page.header.is_some() {
                api.fill(&mut page.header);
            }
            Ok(RangeStreamResponse { range_response: Some(page) })
        };
        if request.count_only {
            let count = move || self.pipeline.range(&request).map(RangeRead::finish);
            let counted = blocking(count).map(move |count| respond(count?));
            return stream::once(counted).boxed();
        }
        match self.pipeline.pages(request) {
            Ok(pages) => stream::iter(pages.map(respond)).boxed(),
            Err(error) => stream::once(async { Err(status::from_pipeline(error)) }).boxed(),
        }
    }

    pub(super) async fn put(self: Arc<Self>, request: PutRequest) -> Result<PutResponse, Status> {
        check::put(&request)?;
        let bytes = self.check_size(&request)?;
        match self.propose(Command::Put(request), bytes).await? {
            Reply::Put(mut response) => {
                self.fill(&mut response.header);
                Ok(response)
            }
            other => unreachable!("not the reply to a put: {other:?}"),
        }
    }

    pub(super) async fn delete_range(
        self: Arc<Self>,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        check::delete_range(&request)?;
        let bytes = self.check_size(&request)?;
        match self.propose(Command::DeleteRange(request), bytes).await? {
            Reply::DeleteRange(mut response) => {
                self.fill(&mut response.header);
                Ok(response)
            }
            other => unreachable!("not the reply to a deletion: {other:?}"),
        }
    }

    pub(super) async fn txn(self: Arc<Self>, request: TxnRequest) -> Result<TxnResponse, Status> {
        check::txn(&request, self.limits.txn_ops)?;
        let bytes = self.check_size(&request)?;
        let mut response = if mvcc::is_read_only(&request) {
            let pipeline = self.pipeline.clone();
            let read = move || pipeline.read_txn(&request).map_err(status::from_pipeline);
            // How much it reads cannot be told beforehand.
            blocking(read).await??
        } else {
            match self.propose(Command::Txn(request), bytes).await? {
                Reply::Txn(response) => response,
                other => unreachable!("not the reply to a transaction: {other:?}"),
            }
        };
        self.fill(&mut response.header);
        Ok(response)
    }

    /// The history is gone for every reader at once. "physical" asks to wait until
    /// it is gone from memory as well, which takes longer where somebody still
    /// reads it.
    pub(super) async fn compact(
        self: Arc<Self>,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        let CompactionRequest { revision: compacted, physical } = request;
        let revision = self.propose_done(Command::Compact { revision: compacted }).await?;
        let mut pause = COLLECTED_FIRST_PAUSE;
        while physical && !self.pipeline.collected(compacted).map_err(status::from_pipeline)? {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(COLLECTED_LAST_PAUSE);
        }
        Ok(CompactionResponse { header: self.header(revision) })
    }

    /// The request's size on the wire, if it is not too large.
    fn check_size(&self, request: &impl Message) -> Result<usize, Status> {
        let bytes = request.encoded_len();
        if bytes > self.limits.request_bytes {
            return Err(status::request_too_large());
        }
        Ok(bytes)
    }
}

/// Does what takes a while on a thread that nobody else needs.
/// Encodes an answer; a large one while it is sent.
fn encode(mut response: RangeResponse) -> Encoded {
    if response.kvs.len() <= KEYS_IN_ONE_PIECE {
        return Encoded::of(&response);
    }
    let len = response.encoded_len();
    let mut pairs = std::mem::take(&mut response.kvs).into_iter();
    // The order of fields does not matter.
    let mut last = Some(Bytes::from(response.encode_to_vec()));
    let pieces = std::iter::from_fn(move || {
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES
            && let Some(pair) = pairs.next()
        {
            prost::encoding::message::encode(KVS, &pair, &mut piece);
        }
        if piece.is_empty() { last.take() } else { Some(piece.freeze()) }
    });
    Encoded(Payload::in_pieces(len, pieces))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Status::internal(format!("mem_etcd: a read failed: {error}")))
}
