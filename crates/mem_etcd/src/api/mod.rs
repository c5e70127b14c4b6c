//! etcd's gRPC services. Decodes a request into a command or a read, encodes
//! the answer; knows gRPC, knows no state.

mod auth;
mod check;
mod cluster;
mod kv;
mod lease;
mod maintenance;
mod status;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use etcdpb::rpc::ResponseHeader;
use etcdpb::rpc::auth_server::AuthServer;
use etcdpb::rpc::cluster_server::ClusterServer;
use etcdpb::rpc::kv_server::KvServer;
use etcdpb::rpc::lease_server::LeaseServer;
use etcdpb::rpc::maintenance_server::MaintenanceServer;
use etcdpb::rpc::watch_server::WatchServer;
use mvcc::{Command, Reply};
use pipeline::Pipeline;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use crate::config::Config;
use crate::metrics::Metrics;

/// etcd lets a message be this much larger than the request in it may be.
const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;
/// There are no elections with one member; the term only must not be zero.
const RAFT_TERM: u64 = 2;

/// What every service needs.
#[derive(Clone)]
pub struct Api {
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
    limits: Limits,
    member: Arc<Member>,
    /// Ends streams when the server does.
    stop: CancellationToken,
}

#[derive(Clone, Copy)]
struct Limits {
    request_bytes: usize,
    txn_ops: usize,
    progress_interval: Duration,
}

impl Limits {
    /// The size of a message that holds a request of the largest size.
    fn message_bytes(self) -> usize {
        self.request_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES)
    }
}

struct Member {
    name: String,
    client_urls: Vec<String>,
}

impl Api {
    /// The services of `pipeline`.
    pub fn new(
        pipeline: Arc<Pipeline>,
        metrics: Arc<Metrics>,
        config: &Config,
        stop: CancellationToken,
    ) -> Self {
        let limits = Limits {
            request_bytes: config.max_request_bytes,
            txn_ops: config.max_txn_ops,
            progress_interval: config.progress_interval(),
        };
        let member = Member { name: config.name.clone(), client_urls: config.advertised() };
        Api { pipeline, metrics, limits, member: Arc::new(member), stop }
    }

    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let identity = self.pipeline.identity();
        Some(ResponseHeader {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// A header that says what is current.
    fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.pipeline.revision())
    }

    /// Completes a header that so far has a revision only.
    fn fill(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.map_or(0, |header| header.revision);
        *header = self.header(revision);
    }

    /// Submits a command of `bytes` on the wire and waits for the reply.
    async fn propose(&self, command: Command, bytes: usize) -> Result<Reply, Status> {
        let receiver = self.pipeline.submit(command, bytes).map_err(status::from_pipeline)?;
        match receiver.await {
            Ok(reply) => reply.map_err(status::from_pipeline),
            Err(_) => Err(status::from_pipeline(pipeline::Error::Stopped)),
        }
    }

    /// Submits a command whose reply is that it was done; the revision then.
    async fn propose_done(&self, command: Command) -> Result<i64, Status> {
        match self.propose(command, SMALL_REQUEST_BYTES).await? {
            Reply::Done { revision } => Ok(revision),
            other => unreachable!("not the reply to such a command: {other:?}"),
        }
    }

    /// Counts the outcome of a call on its way out.
    fn outcome<T>(
        &self,
        service: &str,
        method: &str,
        result: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let code = result.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok);
        self.metrics.handled(service, method, code);
        result.map(Response::new)
    }
}

/// What a request of a few numbers is taken to weigh in the queue.
const SMALL_REQUEST_BYTES: usize = 32;

/// All services as HTTP routes.
pub fn routes(api: Api) -> axum::Router {
    let message_bytes = api.limits.message_bytes();
    macro_rules! service {
        ($server:ident) => {
            $server::new(api.clone()).max_decoding_message_size(message_bytes)
        };
    }
    tonic::service::Routes::new(service!(KvServer))
        .add_service(service!(WatchServer))
        .add_service(service!(LeaseServer))
        .add_service(service!(ClusterServer))
        .add_service(service!(MaintenanceServer))
        .add_service(service!(AuthServer))
        .prepare()
        .into_axum_router()
}
