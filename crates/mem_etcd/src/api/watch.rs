//! Watch service: the client sends a stream of requests; the server sends a stream of
//! responses, which contain events.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use etcdpb::KeyValue;
use etcdpb::mvccpb;
use etcdpb::mvccpb::event::EventType;
use etcdpb::rpc::watch_create_request::FilterType;
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{WatchCreateRequest, WatchRequest, WatchResponse};
use futures_util::task::AtomicWaker;
use futures_util::{Stream, StreamExt};
use grpc::{Admission, Encoded, Payload, Reservation, Status};
use mvcc::Span;
use prost::Message;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use watch::{Delivery, Filter};

use super::service::Api;

/// While more responses than this are unread, no more requests of the client are read.
const MAX_UNREAD_RESPONSES: usize = 1024;
/// Why a watch is rejected if there is no memory for its keys.
const TOO_MANY_KEYS: &str = "etcdserver: too many requests";
/// Number of the field `events` in `WatchResponse`.
const EVENTS_FIELD: u32 = 11;

impl Api {
    pub(super) fn watch(
        self: Arc<Self>,
        requests: grpc::Requests<WatchRequest>,
        admission: Admission,
    ) -> impl Stream<Item = Result<Encoded, Status>> {
        let waker = Arc::new(AtomicWaker::new());
        let stream = {
            let waker = waker.clone();
            Arc::new(self.pipeline.watch_stream(move || waker.wake()))
        };
        let interval = jittered(self.limits.progress_interval);
        let mut progress_ticks = tokio::time::interval_at(Instant::now() + interval, interval);
        progress_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        WatchCall {
            api: self,
            requests: Some(requests),
            failure: None,
            stream,
            waker,
            key_memory: admission.reserve(),
            progress_ticks,
            fragments: VecDeque::new(),
        }
    }
}

/// One Watch call. It has no task of its own: when the connection drops it, nothing keeps
/// running.
struct WatchCall {
    api: Arc<Api>,
    /// Requests of the client; `None` after the client has closed its side. Events are
    /// still delivered after that.
    requests: Option<grpc::Requests<WatchRequest>>,
    /// The error with which the requests ended, if it has not been returned yet.
    failure: Option<Status>,
    stream: Arc<watch::WatchStream>,
    waker: Arc<AtomicWaker>,
    /// Counts the keys of the watches.
    key_memory: Reservation,
    /// Ticks when idle watchers must get progress notifications.
    progress_ticks: Interval,
    /// The parts of a split delivery that have not been returned yet.
    fragments: VecDeque<WatchResponse>,
}

impl Stream for WatchCall {
    type Item = Result<Encoded, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(fragment) = self.fragments.pop_front() {
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
            let received = self.receive_requests(cx);
            let tick_due = self.progress_ticks.poll_tick(cx).is_ready();
            if tick_due {
                self.stream.send_periodic_progress();
            }
            if !received && !tick_due {
                return Poll::Pending;
            }
        }
    }
}

impl WatchCall {
    /// Handles requests of the client, unless the client leaves too many responses
    /// unread. Returns whether there was any request.
    fn receive_requests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut received = false;
        while self.stream.queue_len() <= MAX_UNREAD_RESPONSES
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
            Some(RequestUnion::CreateRequest(create)) => self.create(watch_from_request(&create)),
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.stream.cancel(cancel.watch_id);
                self.release_keys();
            }
            Some(RequestUnion::ProgressRequest(_)) => self.stream.request_progress(),
            // As in etcd, an unknown request is ignored.
            None => {}
        }
    }

    /// Creates a watch, unless there is no memory for its keys.
    fn create(&mut self, watch: watch::Watch) {
        let key_bytes = self.stream.key_bytes() + watch.span.key_bytes();
        match self.key_memory.resize(key_bytes) {
            true => self.stream.create(watch),
            false => self.stream.reject(TOO_MANY_KEYS),
        }
    }

    /// Returns the memory of the keys of watches that have ended.
    fn release_keys(&mut self) {
        // Returning memory does not fail. If no watch has ended, the result does not matter.
        let _ = self.key_memory.resize(self.stream.key_bytes());
    }

    fn encode_delivery(&mut self, delivery: Delivery) -> Encoded {
        if matches!(delivery, Delivery::Compacted { .. }) {
            self.release_keys();
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
                let encoded = events.encoded(prev_kv, |events| encode_events(events, prev_kv));
                let limit = self.api.limits.message_bytes;
                if !fragment || encoded.len() + head.encoded_len() < limit {
                    return Encoded(Payload::concatenated(&head, encoded));
                }
                let wire = |event: &mvcc::Event| wire_event(event, prev_kv);
                let events = events.as_slice().iter().map(wire).collect();
                self.fragments = split_response(WatchResponse { events, ..head }, limit);
                self.fragments.pop_front().expect("at least one part")
            }
        };
        Encoded::new(&response)
    }
}

fn watch_from_request(request: &WatchCreateRequest) -> watch::Watch {
    // As in etcd, an empty key means the smallest key.
    let key = if request.key.is_empty() { &[0][..] } else { &request.key };
    let filtered = |filter: FilterType| request.filters.contains(&(filter as i32));
    watch::Watch {
        id: request.watch_id,
        span: Span::new(key, &request.range_end),
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

/// Encodes the field `events` of a response. It is appended to the other fields.
fn encode_events(events: &[mvcc::Event], prev_kv: bool) -> Bytes {
    let mut bytes = Vec::new();
    for event in events {
        prost::encoding::message::encode(EVENTS_FIELD, &wire_event(event, prev_kv), &mut bytes);
    }
    bytes.into()
}

fn wire_event(event: &mvcc::Event, prev_kv: bool) -> mvccpb::Event {
    let deleted = event.record.is_tombstone();
    // An event that creates a key has no previous value, even if the same transaction
    // deleted the key before.
    let previous = event.previous.as_ref().filter(|_| prev_kv && !event.record.is_create());
    mvccpb::Event {
        r#type: if deleted { EventType::Delete } else { EventType::Put } as i32,
        kv: Some(KeyValue::from(event.record.clone())),
        prev_kv: previous.cloned().map(KeyValue::from),
    }
}

/// Splits a response into parts of less than `limit` bytes. A part with only one event
/// may be larger.
fn split_response(response: WatchResponse, limit: usize) -> VecDeque<WatchResponse> {
    if response.events.len() < 2 || response.encoded_len() < limit {
        return VecDeque::from([response]);
    }
    let part_head = WatchResponse { events: Vec::new(), fragment: true, ..response.clone() };
    let mut parts = VecDeque::from([part_head.clone()]);
    let mut bytes = part_head.encoded_len();
    for event in response.events {
        let event_bytes =
            event.encoded_len() + prost::length_delimiter_len(event.encoded_len()) + 1;
        let part = parts.back_mut().expect("never empty");
        if !part.events.is_empty() && bytes + event_bytes >= limit {
            parts.push_back(part_head.clone());
            bytes = part_head.encoded_len();
        }
        bytes += event_bytes;
        parts.back_mut().expect("never empty").events.push(event);
    }
    parts.back_mut().expect("never empty").fragment = false;
    parts
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use etcdpb::rpc::WatchCancelRequest;
    use etcdpb::{Key, Record};
    use pipeline::Pipeline;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::Config;
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
                grpc::serve(theirs, &[], routes, &options, CancellationToken::new()).await
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

    /// Watches are rejected if there is no memory for their keys. A connection may use as much
    /// as it leaves free, and a cancelled watch frees its part.
    #[tokio::test]
    async fn the_keys_of_watches_are_limited() {
        let config = Config::try_parse_from(["mem_etcd", "--wal-mode", "none"]).unwrap();
        let identity = data_dir::Identity { cluster_id: 1, member_id: 2 };
        let pipeline = Pipeline::open(&config.pipeline_options(), identity).unwrap();
        let pipeline = Arc::new(pipeline);
        let metrics = Arc::new(Metrics::new(pipeline.clone()));
        let api = Arc::new(Api::new(pipeline, metrics, &config, axum::Router::new()));
        // Half of it is for keys.
        let capacity = grpc::Capacity::new(8 << 20, 2);
        let options = grpc::ServerConfig { capacity, ..config.grpc_options() };
        let mut greedy = Client::connect(&api, &options).await;
        let first = greedy.create().await.unwrap();
        let second = greedy.create().await.unwrap();
        for _ in 0..3 {
            assert_eq!(greedy.create().await, Err(TOO_MANY_KEYS.into()));
        }
        let mut other = Client::connect(&api, &options).await;
        other.create().await.unwrap();
        assert_eq!(other.create().await, Err(TOO_MANY_KEYS.into()));
        greedy.cancel(first).await;
        other.create().await.unwrap();
        assert_eq!(greedy.create().await, Err(TOO_MANY_KEYS.into()));
        greedy.cancel(second).await;
        greedy.create().await.unwrap();
    }

    #[test]
    fn split_response_returns_all_events_in_small_parts() {
        let event = |revision| {
            let record = Record::put(Key::new(b"key"), &[b'v'; 100], 1, revision, revision, 0);
            mvcc::Event { record, previous: None }
        };
        let events: Vec<_> = (1..50).map(event).collect();
        let encoded = encode_events(&events, false);
        let events: Vec<_> = events.iter().map(|event| wire_event(event, false)).collect();
        let whole = WatchResponse { watch_id: 7, events: events.clone(), ..Default::default() };
        let head = WatchResponse { watch_id: 7, ..Default::default() };
        assert_eq!(whole.encode_to_vec(), [&head.encode_to_vec()[..], &encoded].concat());
        let parts = split_response(whole, 1000);
        assert!(parts.len() > 4 && parts.iter().all(|part| part.encoded_len() <= 1000));
        assert!(parts.iter().all(|part| part.watch_id == 7));
        let last = parts.len() - 1;
        assert!(parts.iter().enumerate().all(|(i, part)| part.fragment == (i < last)));
        let joined: Vec<_> = parts.into_iter().flat_map(|part| part.events).collect();
        assert_eq!(joined, events);
    }
}
