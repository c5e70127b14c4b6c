//! The cache of Leases in front of a store that loses its history, is another one, or reports nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use etcd_client::{TlsFiles, with_prefix};
use etcdpb::mvccpb::Event;
use etcdpb::mvccpb::event::EventType;
use etcdpb::rpc::watch_request::RequestUnion;
use etcdpb::rpc::{RangeRequest, RangeResponse, ResponseHeader, WatchRequest, WatchResponse};
use etcdpb::{Key, KeyValue, Record};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::cache::Cache;
use super::health::Health;
use super::kind::Kind;
use super::object::Object;
use super::selector::Selector;
use super::shared::SharedCache;
use super::store_feed::{MAX_SILENCE, StoreFeed};
use super::store_source::Keys;
use super::wire::{put_bytes, put_envelope_head, put_envelope_tail};
use crate::metrics::Metrics;
use crate::node_path::permission::Permission;

const PREFIX: &str = "/registry/leases/";
const NAMESPACE: &str = "a";
/// The time within which everything must have happened.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a store has.
#[derive(Clone, Default)]
struct History {
    cluster: u64,
    revision: u64,
    changes: Vec<Change>,
}

/// A change of a Lease. The value is `None` if it was deleted.
#[derive(Clone)]
struct Change {
    revision: u64,
    name: &'static str,
    value: Option<Bytes>,
}

impl History {
    fn put(&mut self, name: &'static str, text: &str) {
        self.change(name, Some(stored(name, text)));
    }

    fn change(&mut self, name: &'static str, value: Option<Bytes>) {
        self.revision += 1;
        self.changes.push(Change { revision: self.revision, name, value });
    }

    /// The last changes of all Leases up to a revision.
    fn state(&self, revision: u64) -> BTreeMap<&'static str, &Change> {
        let known = self.changes.iter().filter(|change| change.revision <= revision);
        let mut state: BTreeMap<_, _> = known.map(|change| (change.name, change)).collect();
        state.retain(|_, change| change.value.is_some());
        state
    }

    fn header(&self) -> Option<ResponseHeader> {
        let (cluster_id, revision) = (self.cluster, self.revision.cast_signed());
        Some(ResponseHeader { cluster_id, revision, ..Default::default() })
    }

    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let revision = match request.revision {
            0 => self.revision,
            revision => revision.cast_unsigned(),
        };
        let selects = |change: &&Change| {
            let key = change.key();
            let last = [&request.key[..], b"\0"].concat();
            let end = if request.range_end.is_empty() { &last[..] } else { &request.range_end[..] };
            (&request.key[..]..end).contains(&key.as_bytes())
        };
        let state = self.state(revision);
        let kvs = state.into_values().filter(selects).map(Change::pair).collect();
        RangeResponse { header: self.header(), kvs, ..Default::default() }
    }
}

impl Change {
    fn key(&self) -> Key {
        Key::new(format!("{PREFIX}{NAMESPACE}/{}", self.name).as_bytes())
    }

    fn pair(&self) -> KeyValue {
        let revision = self.revision.cast_signed();
        let value = self.value.clone().unwrap_or_default();
        Record::put(self.key().as_bytes(), &value, revision, revision, 1, 0).into()
    }

    fn event(&self) -> Event {
        let event = if self.value.is_some() { EventType::Put } else { EventType::Delete };
        Event { r#type: event.into(), kv: Some(self.pair()), ..Default::default() }
    }
}

/// The value of a Lease as kube-apiserver stores it. The text is its uid.
fn stored(name: &str, text: &str) -> Bytes {
    let mut metadata = Vec::new();
    for (number, value) in [(1, name), (2, ""), (3, NAMESPACE), (4, ""), (5, text), (6, "")] {
        put_bytes(&mut metadata, number, value.as_bytes());
    }
    metadata.extend_from_slice(&[7 << 3, 0]);
    put_bytes(&mut metadata, 8, b"");
    let mut raw = Vec::new();
    put_bytes(&mut raw, 1, &metadata);
    put_bytes(&mut raw, 2, b"");
    let mut value = Vec::new();
    put_envelope_head(&mut value, Kind::Leases.names().api_version, "Lease", raw.len());
    value.extend_from_slice(&raw);
    put_envelope_tail(&mut value);
    value.into()
}

/// A store that answers over HTTP/2.
#[derive(Default)]
struct Store {
    history: Mutex<History>,
    connections: Mutex<Vec<AbortHandle>>,
    /// Whether watches report nothing.
    is_mute: Mutex<bool>,
}

impl Store {
    async fn accept(self: Arc<Store>, listener: TcpListener) {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            let connection = tokio::spawn(self.clone().serve(io));
            self.connections.lock().push(connection.abort_handle());
        }
    }

    async fn serve(self: Arc<Store>, io: TcpStream) {
        let mut connection = h2::server::handshake(io).await.unwrap();
        let mut calls = JoinSet::new();
        while let Some(Ok((request, respond))) = connection.accept().await {
            calls.spawn(self.clone().answer(request, respond));
        }
    }

    async fn answer(
        self: Arc<Store>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Option<()> {
        let is_watch = request.uri().path() == "/etcdserverpb.Watch/Watch";
        let requires_leader = request.headers().contains_key("hasleader");
        assert_eq!(is_watch, requires_leader);
        let mut requests = request.into_body();
        let mut send = respond.send_response(Response::new(()), false).ok()?;
        if is_watch {
            return self.watch(requests, send).await;
        }
        let request: RangeRequest = next(&mut requests).await?;
        let answer = self.history.lock().range(&request);
        send.send_data(with_prefix(&answer), false).ok()?;
        let status = ("grpc-status".parse().ok()?, HeaderValue::from_static("0"));
        send.send_trailers(HeaderMap::from_iter([status])).ok()
    }

    async fn watch(&self, mut requests: RecvStream, mut send: SendStream<Bytes>) -> Option<()> {
        let created: WatchRequest = next(&mut requests).await?;
        let RequestUnion::CreateRequest(create) = created.request_union? else { return None };
        let mut sent = create.start_revision.cast_unsigned() - 1;
        let created = WatchResponse { created: true, ..Default::default() };
        send.send_data(with_prefix(&created), false).ok()?;
        loop {
            let has_request = tokio::select! {
                request = next::<WatchRequest>(&mut requests) => request.map(|_| true)?,
                () = tokio::time::sleep(Duration::from_millis(10)) => false,
            };
            let history = self.history.lock().clone();
            // A watch that begins in the future reports nothing.
            if *self.is_mute.lock() || history.revision < sent {
                continue;
            }
            let new = history.changes.iter().filter(|change| change.revision > sent);
            let events: Vec<_> = new.map(Change::event).collect();
            sent = history.revision;
            if has_request || !events.is_empty() {
                let header = history.header();
                let response = WatchResponse { header, events, ..Default::default() };
                send.send_data(with_prefix(&response), false).ok()?;
            }
        }
    }
}

/// Receives a request, which is one DATA frame.
async fn next<R: Message + Default>(requests: &mut RecvStream) -> Option<R> {
    let data = requests.data().await?.ok()?;
    requests.flow_control().release_capacity(data.len()).ok()?;
    R::decode(data.slice(5..)).ok()
}

/// A store and the cache in front of it.
struct Trial {
    store: Arc<Store>,
    cache: Arc<SharedCache>,
}

impl Trial {
    /// Begins with three changes of Leases, of the revisions 10 to 12.
    async fn start() -> Trial {
        let mut history = History { cluster: 7, revision: 9, changes: Vec::new() };
        for name in ["x", "y", "x"] {
            history.put(name, "first");
        }
        let store = Arc::new(Store::default());
        *store.history.lock() = history;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(store.clone().accept(listener));
        let cache = Arc::new(SharedCache::new(Kind::Leases, Cache::new(Kind::Leases), None));
        let permission = Permission::default();
        permission.allow();
        let metrics = Arc::new(Metrics::new());
        let health = Health::new(cache.clone(), permission, metrics, MAX_SILENCE);
        let keys = Keys::new("/registry");
        let feed = StoreFeed::new(health, vec![url], TlsFiles::default(), keys);
        tokio::spawn(feed.run_forever());
        let trial = Trial { store, cache };
        trial.is_current("it begins").await;
        trial
    }

    /// Changes what the store has.
    fn change(&self, change: impl FnOnce(&mut History)) {
        change(&mut self.store.history.lock());
    }

    /// Ends all connections, and changes what the store has.
    fn restart(&self, change: impl FnOnce(&mut History)) {
        let mut history = self.store.history.lock();
        self.store.connections.lock().drain(..).for_each(|connection| connection.abort());
        change(&mut history);
    }

    /// Waits until the cache serves what the store has.
    async fn is_current(&self, what: &str) {
        eventually(what, || {
            let history = self.store.history.lock().clone();
            let listed = self.cache.lock().list(&Selector::Without(Default::default()), 0);
            let Ok((version, objects)) = listed else { return false };
            let expected = history.state(history.revision).into_values();
            version == history.revision
                && expected.map(sent).eq(objects.iter().map(|object| object.envelope().clone()))
        })
        .await;
    }
}

/// The Lease as it is sent.
fn sent(change: &Change) -> Bytes {
    let value = change.value.clone().unwrap_or_default();
    let lease = node_lease::StoredLease::parse(&value).unwrap();
    let sent = lease.sent(change.revision);
    Object::parse(Kind::Leases, sent.into()).unwrap().envelope().clone()
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn changes_and_the_revisions_of_other_keys_are_followed() {
    let trial = Trial::start().await;
    trial.change(|history| history.put("z", "new"));
    trial.change(|history| history.change("x", None));
    trial.is_current("changes").await;
    trial.change(|history| history.revision += 5);
    trial.is_current("changes of other keys").await;
    trial.restart(|history| history.put("y", "while the connection was lost"));
    trial.is_current("a change while the connection was lost").await;
}

#[tokio::test]
async fn a_store_that_went_back_is_read_again() {
    // The revision to which it goes back, and where its new history is when the gateway comes back.
    for (back, revision) in [(10, 11), (10, 20), (10, 30), (12, 13), (12, 20), (12, 30)] {
        let trial = Trial::start().await;
        trial.change(|history| history.revision = 20);
        trial.is_current("changes of other keys").await;
        trial.restart(|history| {
            history.changes.retain(|change| change.revision <= back);
            history.revision = back;
            history.put("lost", "other");
            history.revision = revision;
        });
        trial.is_current(&format!("back at {back}, and then at {revision}")).await;
        trial.change(|history| history.put("x", "later"));
        trial.is_current("a later change").await;
    }
}

#[tokio::test]
async fn a_watch_that_goes_on_must_show_that_the_history_is_the_same() {
    let trial = Trial::start().await;
    trial.change(|history| history.revision = 20);
    trial.is_current("changes of other keys").await;
    *trial.store.is_mute.lock() = true;
    trial.restart(|history| {
        history.revision = 12;
        history.put("lost", "other");
        history.revision = 20;
    });
    let serves = || trial.cache.lock().is_serving();
    eventually("it does not serve", || !serves()).await;
    // The revision and the last change that is known are the same ones.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!serves());
    }
    *trial.store.is_mute.lock() = false;
    trial.is_current("the other history").await;
}

#[tokio::test]
async fn a_deletion_that_was_lost_is_noticed() {
    let trial = Trial::start().await;
    trial.change(|history| history.change("y", None));
    trial.is_current("the deletion").await;
    trial.restart(|history| {
        history.changes.pop();
        history.revision = 30;
    });
    trial.is_current("the object is there again").await;
}

#[tokio::test]
async fn another_store_is_read_again() {
    let trial = Trial::start().await;
    // On a connection that stays, as behind a load balancer.
    trial.change(|history| {
        history.cluster = 8;
        history.revision = 30;
        history.changes.truncate(1);
    });
    trial.is_current("another ID").await;
    trial.change(|history| {
        history.revision = 25;
        history.changes.clear();
    });
    trial.is_current("a lower revision").await;
}

#[tokio::test]
async fn a_watch_that_reports_nothing_ends_to_serve() {
    let trial = Trial::start().await;
    *trial.store.is_mute.lock() = true;
    tokio::time::sleep(MAX_SILENCE + Duration::from_secs(1)).await;
    assert!(trial.cache.lock().is_serving(), "nothing happens in the store");
    trial.change(|history| history.put("x", "later"));
    eventually("it does not serve", || !trial.cache.lock().is_serving()).await;
    *trial.store.is_mute.lock() = false;
    trial.is_current("it reports again").await;
}
