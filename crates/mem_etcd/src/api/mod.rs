//! etcd's gRPC services: translate requests to commands and reads of the pipeline, and
//! the results to responses. One file per service; all state is in the pipeline.
//!
//! A put goes from `kv::put` to `Pipeline::propose`.

mod auth;
mod cluster;
mod downgrade;
mod hash;
mod health;
mod kv;
mod lease;
mod maintenance;
mod reflection;
mod snapshot;
mod status;
mod validate;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use etcdpb::rpc::ResponseHeader;
use futures_util::future::BoxFuture;
use grpc::{Code, Routes, Service, Status};
use http_body_util::BodyExt;
use mvcc::{Command, Reply};
use pipeline::Pipeline;
use tower_service::Service as _;

use self::downgrade::Downgrade;
use crate::config::Config;
use crate::metrics::Metrics;

/// The Raft term in response headers. One member holds no elections, but clients expect a
/// term above 0.
const RAFT_TERM: u64 = 2;

/// State of the services.
pub struct Api {
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
    limits: Limits,
    member: Member,
    downgrade: Downgrade,
    /// HTTP pages besides gRPC: health, version, metrics.
    pages: Router,
}

/// Limits from the configuration.
#[derive(Clone, Copy)]
struct Limits {
    request_bytes: usize,
    message_bytes: usize,
    txn_ops: usize,
    progress_interval: Duration,
    quota_bytes: i64,
}

/// What MemberList returns about this member.
struct Member {
    name: String,
    client_urls: Vec<String>,
}

impl Api {
    /// Creates the services of `pipeline`.
    pub fn new(
        pipeline: Arc<Pipeline>,
        metrics: Arc<Metrics>,
        config: &Config,
        pages: Router,
    ) -> Self {
        let limits = Limits {
            request_bytes: config.max_request_bytes,
            message_bytes: config.message_bytes(),
            txn_ops: config.max_txn_ops,
            progress_interval: config.progress_interval(),
            quota_bytes: config.quota_bytes(),
        };
        let member = Member { name: config.name.clone(), client_urls: config.advertised() };
        Api { pipeline, metrics, limits, member, downgrade: Downgrade::default(), pages }
    }

    /// Returns a response header with `revision`.
    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let identity = self.pipeline.identity();
        Some(ResponseHeader {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// Returns a response header with the published revision.
    fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.pipeline.revision())
    }

    /// Completes a header in which only the revision is set.
    fn fill(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.map_or(0, |header| header.revision);
        *header = self.header(revision);
    }

    /// Carries out a command of `bytes` on the wire and returns its reply.
    async fn propose(&self, command: Command, bytes: usize) -> Result<Reply, Status> {
        self.pipeline.propose(command, bytes).await.map_err(status::from_pipeline)
    }

    /// Carries out a command without a result and returns the revision after it.
    async fn propose_done(&self, command: Command) -> Result<i64, Status> {
        match self.propose(command, SMALL_REQUEST_BYTES).await? {
            Reply::Done { revision } => Ok(revision),
            other => unreachable!("not the reply to a command without a result: {other:?}"),
        }
    }
}

impl Service for Api {
    fn ended(&self, path: &'static str, code: Code) {
        self.metrics.ended(path, code);
    }

    fn received(&self, bytes: usize) {
        self.metrics.received.inc_by(bytes as u64);
    }

    fn sent(&self, bytes: usize) {
        self.metrics.sent.inc_by(bytes as u64);
    }

    fn page(&self, request: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
        let mut pages = self.pages.clone();
        Box::pin(async move {
            let request = request.map(|()| Body::empty());
            let Ok(response) = pages.call(request).await;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            http::Response::from_parts(parts, body)
        })
    }
}

/// Size in bytes that a request of a few numbers is accounted with in the queue.
const SMALL_REQUEST_BYTES: usize = 32;

/// Registers every method of etcd's services.
pub fn routes(api: Arc<Api>) -> Routes<Api> {
    let routes = Routes::new(api)
        .unary("/etcdserverpb.KV/Range", Api::range)
        .server_stream("/etcdserverpb.KV/RangeStream", Api::range_stream)
        .unary("/etcdserverpb.KV/Put", Api::put)
        .unary("/etcdserverpb.KV/DeleteRange", Api::delete_range)
        .unary("/etcdserverpb.KV/Txn", Api::txn)
        .unary("/etcdserverpb.KV/Compact", Api::compact)
        .bidirectional("/etcdserverpb.Watch/Watch", Api::watch)
        .unary("/etcdserverpb.Lease/LeaseGrant", Api::lease_grant)
        .unary("/etcdserverpb.Lease/LeaseRevoke", Api::lease_revoke)
        .bidirectional("/etcdserverpb.Lease/LeaseKeepAlive", Api::lease_keep_alive)
        .unary("/etcdserverpb.Lease/LeaseTimeToLive", Api::lease_time_to_live)
        .unary("/etcdserverpb.Lease/LeaseLeases", Api::lease_leases)
        .unary("/etcdserverpb.Cluster/MemberList", Api::member_list)
        .unary("/etcdserverpb.Cluster/MemberAdd", Api::member_add)
        .unary("/etcdserverpb.Cluster/MemberRemove", Api::member_remove)
        .unary("/etcdserverpb.Cluster/MemberUpdate", Api::member_update)
        .unary("/etcdserverpb.Cluster/MemberPromote", Api::member_promote)
        .unary("/etcdserverpb.Maintenance/Status", Api::status)
        .unary("/etcdserverpb.Maintenance/Alarm", Api::alarm)
        .unary("/etcdserverpb.Maintenance/Defragment", Api::defragment)
        .unary("/etcdserverpb.Maintenance/Hash", Api::hash)
        .unary("/etcdserverpb.Maintenance/HashKV", Api::hash_kv)
        .server_stream("/etcdserverpb.Maintenance/Snapshot", Api::snapshot)
        .unary("/etcdserverpb.Maintenance/MoveLeader", Api::move_leader)
        .unary("/etcdserverpb.Maintenance/Downgrade", Api::downgrade)
        .unary("/grpc.health.v1.Health/Check", Api::health_check)
        .unary("/grpc.health.v1.Health/List", Api::health_list)
        .server_stream("/grpc.health.v1.Health/Watch", Api::health_watch)
        .bidirectional("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Api::reflection)
        .bidirectional(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            Api::reflection,
        )
        .unary("/etcdserverpb.Auth/AuthStatus", Api::auth_status);
    AUTH.iter().fold(routes, |routes, path| routes.unary(path, Api::auth))
}

/// Methods that fail because authentication is not enabled.
const AUTH: [&str; 16] = [
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
];

/// Runs `work`, which may take long, on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Status::internal(format!("mem_etcd: a read failed: {error}")))
}
