//! Watches and lists of kubelets and kube-proxies, served from a watch cache.
//!
//! ```text
//! API server ─▶ source ─▶ feed ───┐
//! store ─▶ store_source, store_feed ┴▶ cache ─▶ mailbox of each client ─▶ its session, by the wake_list of its thread
//!               client's GET: recognize, authorize ─┴─▶ list, or a watch that begins
//! ```
//! Leases come from the store, everything else from an API server.
//!
//! A wrong or missing event is worse than a request that is forwarded. So everything that is not
//! exactly what kubelet and kube-proxy send, or that the cache cannot answer now, is forwarded.
//!
//! # Invariants
//! - A watch gets each change that its selector concerns once and in order, from the version on where it
//!   began, until it ends. It ends between two events; the client continues at its last one.
//! - A bookmark follows all changes up to its version.
//! - Nobody reads what an API server would not let it read.
//! - The content of an object, which may be a Secret, is in no log and no error.
//! - While the cache has no source, or something must see reads, there is no watch.
//!
//! # Reading order
//! `wire`, `object`, `frame`, `event`, `cache` are pure, and follow
//! `k8s.io/apiserver/pkg/storage/cacher`. `references` and `graph` know which ConfigMaps and Secrets the
//! pods of a node refer to. `feed` and `store_feed` fill the cache; `store_position` says
//! how far the store is, and `health` whether the cache may serve. `recognize` and `authorize` decide
//! about a request, `body` is its answer, `continuation` takes over a watch that an API server has begun;
//! `forward/http2/watches.rs` is its way through a session.

mod authorize;
mod body;
mod cache;
mod content;
mod continuation;
mod event;
mod feed;
mod frame;
mod graph;
mod health;
mod history;
mod kind;
mod mailbox;
#[cfg(test)]
mod model;
mod object;
#[cfg(test)]
mod pulled;
mod reason;
mod recognize;
mod references;
mod selector;
mod shared;
mod source;
mod store_feed;
mod store_position;
mod store_source;
#[cfg(test)]
mod store_trial;
mod wake_list;
mod watchers;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use http::Request;
use http2::Fields;

use self::authorize::may_read;
use self::cache::{Cache, Started};
use self::feed::Feed;
use self::health::Health;
use self::kind::Kind;
use self::object::{Object, object_key};
use self::reason::Reason;
use self::recognize::recognize;
use self::shared::SharedCache;
use self::store_feed::StoreFeed;
use self::store_source::Keys;
use self::wake_list::WakeList;
use super::review::Reviewer;
use super::reviews::{Reviews, Verdict};
use super::{Permission, tls_files, uuid};
use crate::config::Store;
use crate::identity::{Credential, IdentityFields};
use crate::metrics::Metrics;

pub use self::body::Body;
pub use self::cache::Got;
pub use self::continuation::{Continuation, Position};
pub use self::frame::Frame;
pub use self::mailbox::{Item, Mailbox};
pub use self::recognize::{DEFAULT_TIMEOUT, Read, Verb};
pub use self::shared::Registration;

/// `Content-Type` of a watch.
const WATCH_TYPE: &[u8] = b"application/vnd.kubernetes.protobuf;stream=watch";
/// Time between two looks whether all caches serve.
const PERIOD: Duration = Duration::from_millis(20);
/// Bytes of the fields of an answer, about.
const FIELD_BYTES: usize = 256;

/// Serves watches and lists.
pub struct Watches {
    permissions: ReadPermissions,
    reviews: Arc<Reviews>,
    /// By the position of the resource; `None` if it is not served.
    caches: [Option<Arc<SharedCache>>; Kind::COUNT],
    /// For each thread of clients.
    wake_lists: Vec<Arc<WakeList>>,
    metrics: Arc<Metrics>,
}

/// Whether watches and lists may be served.
#[derive(Clone, Default)]
pub struct ReadPermissions {
    /// Those of objects that come from an API server.
    pub reads: Permission,
    /// Those of Leases, which come from the store.
    pub leases: Permission,
}

impl ReadPermissions {
    fn of(&self, kind: Kind) -> &Permission {
        if kind.is_stored() { &self.leases } else { &self.reads }
    }
}

/// What is served.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What kubelets and kube-proxies read.
    pub nodes: bool,
    /// ConfigMaps and Secrets to which pods refer, while each of these resources takes at most so many
    /// bytes. Only with `nodes`.
    pub max_referenced_bytes: Option<u64>,
    /// Leases, from this store.
    pub leases: Option<Store>,
}

impl Options {
    /// The cache of a resource, if it is served.
    fn cache(&self, kind: Kind) -> Option<SharedCache> {
        let (cache, max_size) = match kind {
            Kind::Leases => (self.leases.as_ref().map(|_| Cache::new(kind))?, None),
            _ if !self.nodes => return None,
            Kind::ConfigMaps | Kind::Secrets => {
                (Cache::new(kind), Some(self.max_referenced_bytes?))
            }
            Kind::Pods if self.max_referenced_bytes.is_some() => (Cache::with_references(), None),
            _ => (Cache::new(kind), None),
        };
        Some(SharedCache::new(kind, cache, max_size))
    }
}

/// The objects of a cache that is filled from the store.
pub struct StoredObjects(Arc<SharedCache>);

impl StoredObjects {
    /// The object with this name as it was last seen, which may be a moment ago.
    pub fn get(&self, namespace: &[u8], name: &[u8]) -> Option<Arc<Object>> {
        self.0.lock().object(&object_key(namespace, name))
    }
}

/// A request that may be served.
pub struct Begun {
    /// The request.
    pub read: Read,
    /// Who has sent it.
    pub identity: Arc<IdentityFields>,
    /// Whether it may be served now. Otherwise an API server answers it, and a cache may go on with it later:
    /// when a review has allowed it, or nothing forbids it any more.
    pub is_allowed: bool,
}

/// A request that waits until its answer may be sent.
pub struct WaitingRead {
    /// The request.
    pub read: Read,
    /// Who has sent it.
    pub identity: Arc<IdentityFields>,
}

/// A watch that is served.
pub struct Opened {
    /// The header of the answer.
    pub fields: Fields,
    /// What is sent first, if the watch begins with objects.
    pub initial: Option<Body>,
    /// What is sent then.
    pub frames: Vec<Frame>,
    /// A bookmark must have a higher version.
    pub floor: u64,
    /// `None` if nothing follows.
    pub registration: Option<Registration>,
}

/// Whether a cache goes on with a watch that an API server has begun.
pub enum GoOn {
    /// It does.
    Open {
        /// What follows.
        frames: Vec<Frame>,
        /// The watch.
        registration: Registration,
        /// What it has got, if it pulls its events.
        got: Got,
    },
    /// Perhaps after a later event.
    Later,
    /// The API server serves the watch until it ends.
    Never,
}

impl Watches {
    /// Starts to fill the caches, on a thread of their own, for clients on so many `workers`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        permissions: ReadPermissions,
        reviewer: Reviewer,
        options: &Options,
        workers: usize,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Watches>> {
        let caches = Kind::ALL.map(|kind| options.cache(kind).map(Arc::new));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for cache in caches.iter().flatten() {
            let health = |max_silence| {
                let permission = permissions.of(cache.kind).clone();
                Health::new(cache.clone(), permission, metrics.clone(), max_silence)
            };
            if let Some(store) = options.leases.as_ref().filter(|_| cache.kind.is_stored()) {
                let feed = StoreFeed::new(
                    health(store_feed::MAX_SILENCE),
                    store.endpoints.clone(),
                    tls_files(store),
                    Keys::new(&store.prefix),
                );
                runtime.spawn(feed.run_forever());
                continue;
            }
            let (pool, dialer) = (reviewer.pool.clone(), reviewer.dialer.clone());
            let feed = Feed { health: health(feed::MAX_SILENCE), pool, dialer };
            runtime.spawn(feed.run_forever());
        }
        std::thread::Builder::new()
            .name("watches".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .context("start the watch caches")?;
        let reviews = Arc::new(Reviews::new(reviewer));
        let wake_lists = (0..workers).map(|_| Arc::default()).collect();
        Ok(Arc::new(Watches { permissions, reviews, caches, wake_lists, metrics }))
    }

    /// The Leases of the store, if watches of them are served.
    pub fn stored_leases(&self) -> Option<StoredObjects> {
        self.caches[Kind::Leases.index()].clone().map(StoredObjects)
    }

    /// Wakes the clients of a thread. Must run on this thread.
    pub async fn wake_forever(self: Arc<Self>, worker: usize) {
        if let Some(list) = self.wake_lists.get(worker) {
            list.clone().run_forever().await;
        }
    }

    /// A mailbox for a client of a thread.
    pub fn mailbox(&self, worker: usize) -> Arc<Mailbox> {
        let list = self.wake_lists.get(worker).cloned();
        Arc::new(list.map_or_else(Mailbox::default, Mailbox::new))
    }

    /// Reads the head of a client's request before anything is changed in it. Returns the request if it
    /// may be served, now or later. Must be called in a runtime.
    pub fn begin(&self, request: &Request<()>, credential: &Credential) -> Option<Begun> {
        let recognized = recognize(request)?;
        let (Ok(Read { kind, .. }) | Err((kind, _))) = &recognized;
        self.caches[kind.index()].as_ref()?;
        let count = |(kind, reason)| self.count(kind, "", "forwarded", Some(reason));
        let read = recognized.map_err(count).ok()?;
        let Credential::Certificate(identity) = credential else {
            count((read.kind, Reason::Identity));
            return None;
        };
        let refused = self.refusal(identity, &read);
        refused.into_iter().for_each(|reason| count((read.kind, reason)));
        let is_final = refused == Some(Reason::Identity);
        let identity = identity.clone();
        (!is_final).then_some(Begun { read, identity, is_allowed: refused.is_none() })
    }

    /// Whether a request may be served now, some time after it has begun. Must be called in a runtime.
    pub fn still_allows(&self, waiting: &WaitingRead) -> bool {
        self.refusal(&waiting.identity, &waiting.read).is_none()
    }

    /// Why a request may not be served now. Must be called in a runtime.
    fn refusal(&self, identity: &Arc<IdentityFields>, read: &Read) -> Option<Reason> {
        if !self.permissions.of(read.kind).is_allowed() {
            return Some(Reason::NotPermitted);
        }
        match may_read(&self.reviews, self.pods(), identity, read) {
            Verdict::Allowed => None,
            Verdict::Refused => Some(Reason::Identity),
            Verdict::Unknown => Some(Reason::Unreviewed),
        }
    }

    fn pods(&self) -> Option<&SharedCache> {
        self.caches[Kind::Pods.index()].as_deref()
    }

    /// Answers a list; `None` if an API server must.
    pub fn list(&self, read: &Read, at_least: u64) -> Option<(Fields, Body)> {
        let listed = self.cache(read)?.lock().list(&read.selector, at_least);
        let (version, objects) = self.counted(read, listed)?;
        let body = Body::list(read.kind, version, objects);
        let mut fields = answer_fields(b"application/vnd.kubernetes.protobuf");
        fields.push(b"content-length", body.len().to_string().as_bytes());
        Some((fields, body))
    }

    /// Opens a watch, whose events go to the mailbox; `None` if an API server must.
    pub fn watch(
        &self,
        read: &Read,
        start: cache::Start,
        mailbox: &Arc<Mailbox>,
        stream: u32,
    ) -> Option<Opened> {
        let cache = self.cache(read)?.clone();
        let started = cache.lock().watch(&read.selector, start, mailbox, stream);
        let started = self.counted(read, started)?;
        let fields = answer_fields(WATCH_TYPE);
        Some(match started {
            Started::Open { number, objects, mut frames, floor } => {
                let registration = Some(Registration::new(cache, read.selector.clone(), number));
                let initial = (!objects.is_empty())
                    .then(|| Body::initial_events(objects, &std::mem::take(&mut frames)));
                Opened { fields, initial, frames, floor, registration }
            }
            Started::Expired(frame) => {
                let (initial, frames, registration) = (None, vec![frame], None);
                Opened { fields, initial, frames, floor: 0, registration }
            }
        })
    }

    /// Goes on with a watch that an API server has begun, after a position. Must be called in a runtime.
    pub fn go_on(
        &self,
        identity: &Arc<IdentityFields>,
        read: &Read,
        position: Position,
        mailbox: &Arc<Mailbox>,
        stream: u32,
    ) -> GoOn {
        match self.refusal(identity, read) {
            // What pods refer to changes, and the cache of pods may not serve for a while.
            Some(Reason::Identity) if identity.node().is_none() => return GoOn::Never,
            Some(_) => return GoOn::Later,
            None => {}
        }
        let Some(cache) = self.cache(read) else { return GoOn::Never };
        let Position { version, events } = position;
        let mut locked = cache.lock();
        let got = match cache.kind.is_stored() {
            true => Got::some_of(version, events),
            // A version has one change.
            false => Got::all(version),
        };
        if got.of_next > 0 && !locked.has_all_of(version) {
            return GoOn::Later;
        }
        let started = locked.watch(&read.selector, cache::Start::After(version), mailbox, stream);
        drop(locked);
        let Ok(Started::Open { number, frames, .. }) = started else { return GoOn::Later };
        self.count(read.kind, read.verb.name(), "continued", None);
        let registration = Registration::new(cache.clone(), read.selector.clone(), number);
        GoOn::Open { frames, registration, got }
    }

    /// Waits until all caches serve, but not longer than this: meanwhile all requests would go to API
    /// servers, and stay there.
    pub async fn wait(&self, longest: Duration) {
        let serves = |cache: &Arc<SharedCache>| {
            cache.lock().is_serving() || cache.is_too_large() || cache.is_unreadable()
        };
        let serve = || self.caches.iter().flatten().all(serves);
        let until = Instant::now() + longest;
        while !serve() && Instant::now() < until {
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn cache(&self, read: &Read) -> Option<&Arc<SharedCache>> {
        self.caches[read.kind.index()].as_ref()
    }

    fn counted<T>(&self, read: &Read, result: Result<T, cache::Refused>) -> Option<T> {
        let reason = result.as_ref().err().map(|refused| Reason::from(*refused));
        let outcome = if reason.is_some() { "forwarded" } else { "served" };
        self.count(read.kind, read.verb.name(), outcome, reason);
        result.ok()
    }

    fn count(&self, kind: Kind, verb: &str, result: &str, reason: Option<Reason>) {
        let reason = reason.map(Reason::label).unwrap_or_default();
        self.metrics.reads.count(kind.names().resource, verb, result, reason);
    }
}

/// Returns the header of an answer. `Audit-Id` is a random UUID that no audit log has.
fn answer_fields(content_type: &[u8]) -> Fields {
    let mut fields = Fields::with_capacity(6, FIELD_BYTES);
    fields.push(b"audit-id", &uuid(rand::random()));
    fields.push(b"cache-control", b"no-cache, private");
    fields.push(b"content-type", content_type);
    fields.push(b"date", httpdate::fmt_http_date(SystemTime::now()).as_bytes());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_not_read() {
        let kinds = |options: &Options| {
            Kind::ALL.into_iter().filter(|kind| options.cache(*kind).is_some()).collect::<Vec<_>>()
        };
        let (nodes, max_referenced_bytes) = (true, Some(7));
        let options = Options { nodes, max_referenced_bytes, leases: Some(Store::default()) };
        assert_eq!(kinds(&options), Kind::ALL);
        for kind in Kind::REFERENCED {
            let cache = options.cache(kind).unwrap();
            assert!(cache.exceeds(8) && !cache.exceeds(7));
        }
        assert!(!options.cache(Kind::Pods).unwrap().exceeds(usize::MAX));
        let optional = [Kind::Leases, Kind::ConfigMaps, Kind::Secrets];
        let usual = Kind::ALL.into_iter().filter(|kind| !optional.contains(kind));
        let of_nodes = Options { nodes, ..Options::default() };
        assert_eq!(kinds(&of_nodes), usual.collect::<Vec<_>>());
        let leases = Options { nodes: false, ..options };
        assert_eq!(kinds(&leases), [Kind::Leases]);
        assert_eq!(kinds(&Options::default()), []);
    }
}
