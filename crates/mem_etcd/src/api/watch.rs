//! Watch service: the client sends a stream of requests; the server sends a stream of
//! responses, which contain events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use etcdpb::rpc::watch_create_request::FilterType;
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{WatchCreateRequest, WatchRequest, WatchResponse};
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use futures_util::{FutureExt, Stream, StreamExt};
use grpc::{Admission, Encoded, Reservation, Status};
use mvcc::Span;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use watch::{Delivery, Filter};

use super::service::Api;
use super::status;
use super::watch_events::{self, Fragments};
use crate::permissions::Grants;

/// Interval at which a call whose client requires a leader checks whether there is one, as in etcd
/// with its usual election timeout.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks in a row without a leader after which such a call fails, as in etcd.
const MAX_CHECKS_WITHOUT_LEADER: u32 = 3;

/// Why a watch is rejected if there is no memory for it.
const TOO_MANY_WATCHES: &str = "etcdserver: too many requests";

impl Api {
    pub(super) fn watch(
        self: Arc<Self>,
        requests: grpc::Requests<WatchRequest>,
        admission: Admission,
    ) -> impl Stream<Item = Result<Encoded, Status>> {
        self.watch_within(requests, admission, None)
    }

    /// Serves a Watch call whose watches must be permitted by `grants`, if there are any.
    pub(super) fn watch_within(
        self: Arc<Self>,
        requests: grpc::Requests<WatchRequest>,
        admission: Admission,
        grants: Option<Arc<Grants>>,
    ) -> impl Stream<Item = Result<Encoded, Status>> {
        let waker = Arc::new(AtomicWaker::new());
        let stream = {
            let waker = waker.clone();
            Arc::new(self.pipeline.watch_stream(move || waker.wake()))
        };
        let interval = jittered(self.limits.progress_interval);
        let mut progress_ticks = tokio::time::interval_at(Instant::now() + interval, interval);
        progress_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let failure = self.check_leader(&admission).err();
        let leader_checks = admission.requires_leader().then(LeaderChecks::new);
        let state = (!self.pipeline.has_state()).then(|| self.clone().until_state().boxed());
        WatchCall {
            api: self,
            grants,
            call: admission.clone(),
            requests: failure.is_none().then_some(requests),
            failure,
            leader_checks,
            state,
            stream,
            waker,
            watch_memory: admission.reserve(),
            progress_ticks,
            fragments: None,
        }
    }
}

impl Api {
    /// Waits until a member of a cluster has the state of the cluster.
    async fn until_state(self: Arc<Self>) -> Result<(), Status> {
        self.linearize().await?;
        match self.pipeline.is_learner() {
            true => Err(status::not_supported_for_learner()),
            false => Ok(()),
        }
    }
}

/// One Watch call. It has no task of its own: when the connection drops it, nothing keeps
/// running.
struct WatchCall {
    api: Arc<Api>,
    /// What the client may watch; `None` means everything.
    grants: Option<Arc<Grants>>,
    /// Who watches.
    call: Admission,
    /// Requests of the client; `None` after the client has closed its side. Events are
    /// still delivered after that.
    requests: Option<grpc::Requests<WatchRequest>>,
    /// The error with which the requests ended, if it has not been returned yet.
    failure: Option<Status>,
    stream: Arc<watch::WatchStream>,
    waker: Arc<AtomicWaker>,
    /// Counts the memory of the watches.
    watch_memory: Reservation,
    /// Ticks when idle watchers must get progress notifications.
    progress_ticks: Interval,
    /// Set if the client wants the call to fail while there is no leader.
    leader_checks: Option<LeaderChecks>,
    /// Ends when the member of a cluster knows who may watch what; `None` if it does.
    state: Option<BoxFuture<'static, Result<(), Status>>>,
    /// The parts of a split delivery that have not been returned yet.
    fragments: Option<Fragments>,
}

impl Stream for WatchCall {
    type Item = Result<Encoded, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(fragment) = self.fragments.as_mut().and_then(Iterator::next) {
            return Poll::Ready(Some(Ok(Encoded::new(&fragment))));
        }
        // The waker is registered before the queue is read, so that no delivery is
        // missed.
        self.waker.register(cx.waker());
        loop {
            if let Some(delivery) = self.api.pipeline.next_delivery(&self.stream) {
                return Poll::Ready(Some(Ok(self.encode_delivery(delivery))));
            }
            if let Some(failure) = self.failure.take() {
                return Poll::Ready(Some(Err(failure)));
            }
            self.check_leader(cx);
            let received = self.knows_users(cx) && self.receive_requests(cx);
            let tick_due = self.progress_ticks.poll_tick(cx).is_ready();
            if tick_due {
                self.stream.send_periodic_progress();
            }
            if !received && !tick_due && self.failure.is_none() {
                return Poll::Pending;
            }
        }
    }
}

/// The checks of a call whose client requires a leader.
struct LeaderChecks {
    interval: Interval,
    /// Number of checks in a row without a leader.
    without: u32,
}

impl LeaderChecks {
    fn new() -> Self {
        let mut interval = tokio::time::interval(LEADER_CHECK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        LeaderChecks { interval, without: 0 }
    }
}

impl WatchCall {
    /// Ends the call if its client requires a leader, and there is none for too long.
    fn check_leader(&mut self, cx: &mut Context<'_>) {
        let Some(checks) = &mut self.leader_checks else { return };
        while checks.interval.poll_tick(cx).is_ready() {
            let has_leader = self.api.pipeline.has_leader();
            checks.without = if has_leader { 0 } else { checks.without + 1 };
            if checks.without >= MAX_CHECKS_WITHOUT_LEADER {
                self.requests = None;
                self.failure = Some(status::no_leader());
                self.leader_checks = None;
                return;
            }
        }
    }

    /// Whether the member knows who may watch what. The call fails if it does not learn it in time.
    fn knows_users(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(state) = &mut self.state else { return true };
        let Poll::Ready(result) = state.poll_unpin(cx) else { return false };
        self.state = None;
        if let Err(failure) = result {
            self.requests = None;
            self.failure = Some(failure);
        }
        true
    }

    /// Handles requests of the client, unless the client leaves too many responses
    /// unread. Returns whether there was any request.
    fn receive_requests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut received = false;
        while self.stream.accepts_requests()
            && let Some(requests) = &mut self.requests
            && let Poll::Ready(request) = requests.poll_next_unpin(cx)
        {
            received = true;
            match request {
                Some(Ok(request)) => self.handle_request(request),
                Some(Err(failure)) => {
                    self.requests = None;
                    self.failure = Some(failure);
                }
                None => self.requests = None,
            }
        }
        received
    }

    fn handle_request(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) if create.start_revision < 0 => {
                self.stream.reject("etcdserver: mvcc: required revision has been compacted");
            }
            Some(RequestUnion::CreateRequest(create)) => self.create(&create),
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.stream.cancel(cancel.watch_id);
                self.release_memory();
            }
            Some(RequestUnion::ProgressRequest(_)) => self.stream.request_progress(),
            // As in etcd, an unknown request is ignored.
            None => {}
        }
    }

    /// Creates a watch, unless it is not permitted or there is no memory for it.
    fn create(&mut self, request: &WatchCreateRequest) {
        let permitted =
            |grants: &Arc<Grants>| grants.may_read(watched_key(request), &request.range_end);
        if !self.grants.as_ref().is_none_or(permitted) {
            return self.stream.reject(status::watch_refusal(auth::Error::PermissionDenied));
        }
        if let Err(reason) = self.api.check_watch(&self.call, watched_key(request), request) {
            return self.stream.reject(reason);
        }
        let watch = watch_from_request(request);
        let bytes = self.stream.watch_bytes() + watch.memory_bytes();
        match self.watch_memory.resize(bytes) {
            true => self.stream.create(watch),
            false => self.stream.reject(TOO_MANY_WATCHES),
        }
    }

    /// Returns the memory of watches that have ended.
    fn release_memory(&mut self) {
        // Returning memory does not fail. If no watch has ended, the result does not matter.
        let _ = self.watch_memory.resize(self.stream.watch_bytes());
    }

    fn encode_delivery(&mut self, delivery: Delivery) -> Encoded {
        if matches!(delivery, Delivery::Compacted { .. }) {
            self.release_memory();
        }
        let base = |watch_id, revision| WatchResponse {
            header: self.api.header(revision),
            watch_id,
            ..Default::default()
        };
        let response = match delivery {
            Delivery::Created { watch_id, revision } => {
                WatchResponse { created: true, ..base(watch_id, revision) }
            }
            Delivery::Rejected { reason, revision } => WatchResponse {
                created: true,
                canceled: true,
                cancel_reason: reason.into(),
                ..base(-1, revision)
            },
            Delivery::Canceled { watch_id, revision } => {
                WatchResponse { canceled: true, ..base(watch_id, revision) }
            }
            Delivery::Compacted { watch_id, compact_revision, revision } => {
                WatchResponse { canceled: true, compact_revision, ..base(watch_id, revision) }
            }
            Delivery::Progress { watch_id, revision } => base(watch_id, revision),
            Delivery::Events { watch_id, revision, events, prev_kv, fragment } => {
                let head = base(watch_id, revision);
                let limit = self.api.limits.message_bytes;
                // An encoded event has at most twice its memory.
                if !fragment || 2 * events.bytes() < limit {
                    return Encoded(watch_events::encode(&head, events, prev_kv));
                }
                let fragments = self.fragments.insert(Fragments::new(head, events, prev_kv, limit));
                fragments.next().expect("at least one part")
            }
        };
        Encoded::new(&response)
    }
}

/// Returns the first key of a watch. As in etcd, an empty key means the smallest key.
fn watched_key(request: &WatchCreateRequest) -> &[u8] {
    if request.key.is_empty() { &[0] } else { &request.key }
}

fn watch_from_request(request: &WatchCreateRequest) -> watch::Watch {
    let filtered = |filter: FilterType| request.filters.contains(&(filter as i32));
    watch::Watch {
        id: request.watch_id,
        span: Span::new(watched_key(request), &request.range_end),
        start_revision: request.start_revision,
        filter: Filter {
            no_put: filtered(FilterType::Noput),
            no_delete: filtered(FilterType::Nodelete),
        },
        prev_kv: request.prev_kv,
        progress_notify: request.progress_notify,
        fragment: request.fragment,
    }
}

/// Returns `interval` plus a random part of up to 10 %, so that Watch calls that started
/// together do not send their progress notifications together.
fn jittered(interval: Duration) -> Duration {
    interval + interval.mul_f64(rand::random_range(0.0..0.1))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use clap::Parser;
    use etcdpb::rpc::WatchCancelRequest;
    use pipeline::Pipeline;
    use prost::Message;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::Config;
    use crate::credentials::Credentials;
    use crate::metrics::Metrics;

    const KEY_BYTES: usize = 900 << 10;

    /// A Watch call.
    struct Client {
        requests: h2::SendStream<Bytes>,
        /// The head of the response. It comes with the first message.
        head: Option<h2::client::ResponseFuture>,
        responses: Option<h2::RecvStream>,
        received: Vec<u8>,
    }

    impl Client {
        /// Starts a call on a new connection.
        async fn connect(api: &Arc<Api>, options: &grpc::ServerConfig) -> Client {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let (routes, options) = (Arc::new(super::super::routes(api.clone())), options.clone());
            tokio::spawn(async move {
                grpc::serve(theirs, &[], routes, None, &options, CancellationToken::new()).await
            });
            let (mut send, connection) = h2::client::handshake(ours).await.unwrap();
            tokio::spawn(connection);
            let request = http::Request::post("http://test/etcdserverpb.Watch/Watch")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            let (head, requests) = send.send_request(request.body(()).unwrap(), false).unwrap();
            Client { requests, head: Some(head), responses: None, received: Vec::new() }
        }

        /// Sends a request, and returns the next response.
        async fn call(&mut self, request: RequestUnion) -> WatchResponse {
            self.requests.send_data(encoded(request), false).unwrap();
            if let Some(head) = self.head.take() {
                self.responses = Some(head.await.unwrap().into_body());
            }
            let responses = self.responses.as_mut().unwrap();
            loop {
                if let Some((prefix, rest)) = self.received.split_at_checked(5) {
                    let len = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                    if let Some(message) = rest.get(..len) {
                        let response = WatchResponse::decode(message).unwrap();
                        self.received.drain(..5 + len);
                        return response;
                    }
                }
                let data = responses.data().await.unwrap().unwrap();
                responses.flow_control().release_capacity(data.len()).unwrap();
                self.received.extend_from_slice(&data);
            }
        }

        /// Creates a watch of a large key. Returns the reason if it is rejected.
        async fn create(&mut self) -> Result<i64, String> {
            let key = vec![b'k'; KEY_BYTES].into();
            let create = WatchCreateRequest { key, ..Default::default() };
            let response = self.call(RequestUnion::CreateRequest(create)).await;
            assert!(response.created);
            match response.canceled {
                true => Err(response.cancel_reason),
                false => Ok(response.watch_id),
            }
        }

        async fn cancel(&mut self, watch_id: i64) {
            let cancel = WatchCancelRequest { watch_id };
            let response = self.call(RequestUnion::CancelRequest(cancel)).await;
            assert_eq!((response.canceled, response.watch_id), (true, watch_id));
        }
    }

    /// Encodes a request with gRPC's prefix.
    fn encoded(request_union: RequestUnion) -> Bytes {
        let message = WatchRequest { request_union: Some(request_union) }.encode_to_vec();
        let len = (message.len() as u32).to_be_bytes();
        [&[0], &len[..], &message].concat().into()
    }

    /// Watches are rejected if there is no memory for them. A connection may use as much
    /// as it leaves free, and a cancelled watch frees its part.
    #[tokio::test]
    async fn the_memory_of_watches_is_limited() {
        let config = Config::try_parse_from(["mem_etcd", "--wal-mode", "none"]).unwrap();
        let identity = data_dir::Identity { cluster_id: 1, member_id: 2 };
        let pipeline = Pipeline::open(&config.pipeline_options(), identity).unwrap();
        let pipeline = Arc::new(pipeline);
        let metrics = Arc::new(Metrics::new(pipeline.clone()));
        let (credentials, pages) = (Credentials::new(&config).unwrap(), axum::Router::new());
        let api = Arc::new(Api::new(pipeline, metrics, credentials, &config, pages));
        // Twice as much is for watches.
        let capacity = grpc::Capacity::new(2 << 20, 2);
        let options = grpc::ServerConfig { capacity, ..config.grpc_options() };
        let mut greedy = Client::connect(&api, &options).await;
        let first = greedy.create().await.unwrap();
        let second = greedy.create().await.unwrap();
        for _ in 0..3 {
            assert_eq!(greedy.create().await, Err(TOO_MANY_WATCHES.into()));
        }
        let mut other = Client::connect(&api, &options).await;
        other.create().await.unwrap();
        assert_eq!(other.create().await, Err(TOO_MANY_WATCHES.into()));
        greedy.cancel(first).await;
        other.create().await.unwrap();
        assert_eq!(greedy.create().await, Err(TOO_MANY_WATCHES.into()));
        greedy.cancel(second).await;
        greedy.create().await.unwrap();
    }
}
