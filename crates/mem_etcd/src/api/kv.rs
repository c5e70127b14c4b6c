//! KV: reading and writing keys.

use std::pin::Pin;

use etcdpb::rpc::kv_server::Kv;
use etcdpb::rpc::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use futures_util::{Stream, StreamExt, stream};
use mvcc::{Command, Reply};
use pipeline::RangeRead;
use prost::Message;
use tonic::{Request, Response, Status};

use super::{Api, check, status};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Kv for Api {
    type RangeStreamStream =
        Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        let result = self.read_range(request.into_inner()).await;
        self.outcome("etcdserverpb.KV", "Range", result)
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Answer<Self::RangeStreamStream> {
        let result = self.stream_range(request.into_inner());
        self.outcome("etcdserverpb.KV", "RangeStream", result)
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        let result = self.write_put(request.into_inner()).await;
        self.outcome("etcdserverpb.KV", "Put", result)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Answer<DeleteRangeResponse> {
        let result = self.write_delete_range(request.into_inner()).await;
        self.outcome("etcdserverpb.KV", "DeleteRange", result)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Answer<TxnResponse> {
        let result = self.do_txn(request.into_inner()).await;
        self.outcome("etcdserverpb.KV", "Txn", result)
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        // "physical" asks to wait until the history is really gone. It is gone
        // for every reader at once; memory follows within moments.
        let revision = request.into_inner().revision;
        let result = self.propose_done(Command::Compact { revision }).await;
        let result = result.map(|revision| CompactionResponse { header: self.header(revision) });
        self.outcome("etcdserverpb.KV", "Compact", result)
    }
}

impl Api {
    async fn read_range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        check::range(&request)?;
        let mut response = match self.pipeline.range(&request).map_err(status::from_pipeline)? {
            RangeRead::Done(response) => response,
            RangeRead::Rest(rest) => blocking(move || rest.finish()).await?,
        };
        self.fill(&mut response.header);
        Ok(response)
    }

    /// The pages of a range, each read when the client has room for it.
    fn stream_range(
        &self,
        request: RangeRequest,
    ) -> Result<<Self as Kv>::RangeStreamStream, Status> {
        check::range_stream(&request)?;
        let api = self.clone();
        let respond = move |page: Result<RangeResponse, pipeline::Error>| {
            let mut page = page.map_err(status::from_pipeline)?;
            if page.header.is_some() {
                api.fill(&mut page.header);
            }
            Ok(RangeStreamResponse { range_response: Some(page) })
        };
        let stopped = self.stop.clone().cancelled_owned();
        if request.count_only {
            let pipeline = self.pipeline.clone();
            let count = stream::once(async move {
                let count = move || pipeline.range(&request).map(RangeRead::finish);
                respond(blocking(count).await?)
            });
            return Ok(Box::pin(count.take_until(stopped)));
        }
        let pages = self.pipeline.pages(request).map_err(status::from_pipeline)?;
        Ok(Box::pin(stream::iter(pages.map(respond)).take_until(stopped)))
    }

    async fn write_put(&self, request: PutRequest) -> Result<PutResponse, Status> {
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

    async fn write_delete_range(
        &self,
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

    async fn do_txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
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

    /// The request's size on the wire, if it is not too large.
    fn check_size(&self, request: &impl Message) -> Result<usize, Status> {
        let bytes = request.encoded_len();
        if bytes > self.limits.request_bytes {
            return Err(status::request_too_large());
        }
        Ok(bytes)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Status::internal(format!("mem_etcd: a read failed: {error}")))
}
