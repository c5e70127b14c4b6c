//! Code that the services share: their state, response headers, and the submission of
//! commands to the pipeline.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use etcdpb::rpc::ResponseHeader;
use futures_util::future::BoxFuture;
use grpc::{Admission, Code, Service, Status};
use http_body_util::BodyExt;
use mvcc::{Command, Reply};
use pipeline::{Origin, Pipeline};
use tower_service::Service as _;

use super::downgrade::Downgrade;
use super::status;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::metrics::Metrics;
use crate::paged_reads::PagedReads;

/// The Raft term in the response headers of a store without peers. It holds no elections, but
/// clients expect a term above 0.
const TERM_WITHOUT_PEERS: u64 = 2;

/// What a learner answers, as in etcd. It also answers ranges only if they are serializable.
const LEARNER_METHODS: [&str; 3] = [
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Snapshot",
];

/// The state of the services.
pub struct Api {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) credentials: Credentials,
    pub(super) limits: Limits,
    pub(super) member: Member,
    pub(super) downgrade: Downgrade,
    pub(super) paged_reads: Arc<PagedReads>,
    /// HTTP pages: health, version, metrics.
    pub(super) pages: Router,
}

/// Limits and intervals from the configuration.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) request_bytes: usize,
    pub(super) message_bytes: usize,
    pub(super) txn_ops: usize,
    pub(super) progress_interval: Duration,
    pub(super) quota_bytes: i64,
}

/// The properties of this member that MemberList returns.
pub(super) struct Member {
    pub(super) name: String,
    /// The peer URLs of a server without peers.
    pub(super) peer_urls: Vec<String>,
    pub(super) client_urls: Vec<String>,
}

impl Api {
    /// Creates the state of the services.
    pub fn new(
        pipeline: Arc<Pipeline>,
        metrics: Arc<Metrics>,
        credentials: Credentials,
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
        let member = Member {
            name: config.name.clone(),
            peer_urls: config.advertised_peer_urls(),
            client_urls: config.advertised_client_urls(),
        };
        let (downgrade, paged_reads) = (Downgrade::default(), Arc::default());
        Api { pipeline, metrics, credentials, limits, member, downgrade, paged_reads, pages }
    }

    /// Returns the reads in pages that clients have not finished.
    pub fn paged_reads(&self) -> Arc<PagedReads> {
        self.paged_reads.clone()
    }

    /// Returns a response header with `revision`.
    pub(super) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let identity = self.pipeline.identity();
        Some(ResponseHeader {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            revision,
            raft_term: self.raft_term(),
        })
    }

    /// Returns the Raft term.
    pub(super) fn raft_term(&self) -> u64 {
        self.pipeline.raft_term().unwrap_or(TERM_WITHOUT_PEERS)
    }

    /// Waits until this member knows everything that any member has acknowledged.
    #[inline]
    pub(super) async fn linearize(&self) -> Result<(), Status> {
        self.pipeline.linearize().await.map_err(status::from_pipeline)
    }

    /// Fails if the client wants it while the cluster has no leader.
    #[inline]
    pub(super) fn check_leader(&self, call: &Admission) -> Result<(), Status> {
        match call.requires_leader() && !self.pipeline.has_leader() {
            true => Err(status::no_leader()),
            false => Ok(()),
        }
    }

    /// Returns a response header with the published revision.
    pub(super) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.pipeline.revision())
    }

    /// Sets the other fields of a header that contains only the revision.
    pub(super) fn complete_header(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.map_or(0, |header| header.revision);
        *header = self.header(revision);
    }

    /// Executes a command and returns its reply. `bytes` is the encoded size of the request. Large
    /// commands of different connections take turns.
    pub(super) async fn propose(
        &self,
        origin: Origin,
        command: Command,
        bytes: usize,
    ) -> Result<Reply, Status> {
        self.pipeline.propose(origin, command, bytes).await.map_err(status::from_pipeline)
    }

    /// Executes a command that has no result. Returns the revision after the command.
    pub(super) async fn propose_without_result(
        &self,
        origin: Origin,
        command: Command,
    ) -> Result<i64, Status> {
        match self.propose(origin, command, SMALL_REQUEST_BYTES).await? {
            Reply::Done { revision } => Ok(revision),
            other => unreachable!("not the reply to a command without a result: {other:?}"),
        }
    }
}

impl Service for Api {
    #[inline]
    fn check_call(&self, path: &'static str) -> Result<(), Status> {
        match self.pipeline.is_learner() && !LEARNER_METHODS.contains(&path) {
            true => Err(status::not_supported_for_learner()),
            false => Ok(()),
        }
    }

    fn call_ended(&self, path: &'static str, code: Code) {
        self.metrics.call_ended(path, code);
    }

    fn bytes_received(&self, bytes: usize) {
        self.metrics.received_bytes.inc_by(bytes as u64);
    }

    fn bytes_sent(&self, bytes: usize) {
        self.metrics.sent_bytes.inc_by(bytes as u64);
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

/// The size in bytes for which a request without keys and values counts in the queue of
/// commands.
pub(super) const SMALL_REQUEST_BYTES: usize = 32;
