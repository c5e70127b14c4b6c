//! Renewals of the Leases of nodes, served from the store.
//!
//! A renewal replaces two times in the stored value, and kube-apiserver answers with these bytes (see
//! the crate `node_lease`). So it needs no decoding, only the certainty that kube-apiserver would do
//! the same: that the request has nothing unusual (`recognize`), that its sender may send it
//! (`reviews`), that its base is the value in the store and nothing but `renewTime` changes
//! (`known`), and that nothing else would see the request ([`Permission`]). Everything else is
//! forwarded byte for byte.
//!
//! ```text
//! head ─▶ recognize, authorize ─▶ body ─▶ known? ─▶ Txn on the revision ─▶ 200
//!                  └────────────────────────┴──────────────┴─▶ API server ─▶ learn, compare
//! ```
//!
//! A Lease is known from its last answer. If watches of Leases are served, it is also known from their cache,
//! which is filled from the store. Otherwise a gateway would forward one renewal of each node after its start, and of
//! each node that comes from another gateway: for 100,000 nodes that is two minutes of an API server's CPU time.
//!
//! # Invariants
//! - A value is only written if the store still has the version that it was derived from.
//! - A write of which nobody knows whether it happened is forwarded. That is safe: the request names
//!   the version on which it is based. If the write happened, or happens later, kube-apiserver or the
//!   store finds another version and the loser gets a conflict, after which a kubelet reads the Lease
//!   again. It never happens twice.
//! - A renewal is never refused for a reason of the gateway, and never gets 429. At most 256 are on their way to an API
//!   server at a time; others wait, and are served if that becomes possible first.
//! - Nothing is served before enough comparisons with each version of the API servers in use, and
//!   nothing after one that found a difference.
//!
//! # Reading order
//! `recognize`, `known`, `serve`, `shadow`; `trials` and `compare` decide about serving,
//! `link` is the connection to the store.

mod answer;
mod compare;
mod known;
mod link;
mod reason;
mod recognize;
#[cfg(test)]
mod sample;
mod senders;
mod serve;
mod shadow;
mod tracked;
mod trials;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::answer::AnswerFields;
use self::known::KnownLeases;
use self::link::{Endpoints, Link};
use self::recognize::recognize;
use self::senders::Senders;
use self::trials::{State, Trials};
use super::review::{Access, Reviewer};
use super::reviews::Reviews;
use super::watches::StoredObjects;
use super::{NAMESPACE, Permission, lease_keys, tls_files};
use crate::config::{LeaseMode, NodePath};
use crate::identity::{Credential, IdentityFields};
use crate::metrics::Metrics;
use crate::request_info::RequestInfo;
use crate::upstream::Pool;

pub use self::reason::Reason;
pub use self::recognize::MAX_BODY;
pub use self::serve::{Examined, Served, Serving};
use self::tracked::Sender;
pub use self::tracked::{Forwarded, Renewal};

/// Time between two looks at the versions of the API servers.
const PERIOD: Duration = Duration::from_millis(100);
/// Different fields of answers that are kept. There is one for each flow schema.
const MAX_FIELDS: usize = 16;

/// What a sender that is no node must be allowed.
static RENEWAL: Access = Access {
    verb: "update",
    group: "coordination.k8s.io",
    resource: "leases",
    namespace: Cow::Borrowed(NAMESPACE),
};

/// Serves renewals, or compares what would be served.
pub struct Leases {
    permission: Permission,
    reviews: Arc<Reviews>,
    known: KnownLeases,
    senders: Senders,
    /// The Leases in the store, if watches of them are served.
    stored: Option<StoredObjects>,
    /// Share of the forwarded renewals that are compared.
    sample: f64,
    trials: Mutex<Trials>,
    /// Whether the comparisons allow to serve.
    is_on: AtomicBool,
    /// Whether a comparison found a difference.
    is_off: AtomicBool,
    /// Notified from time to time while renewals may be served.
    serving: Notify,
    /// A connection for each thread.
    links: Vec<Arc<Link>>,
    endpoints: Arc<Endpoints>,
    /// What the key of each Lease begins with.
    key_prefix: String,
    fields: Mutex<Vec<Arc<AnswerFields>>>,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
}

impl Leases {
    /// Creates the path for a configuration in which it is not off.
    pub fn new(
        config: &NodePath,
        permission: Permission,
        reviewer: Reviewer,
        stored: Option<StoredObjects>,
        workers: usize,
        metrics: Arc<Metrics>,
    ) -> Leases {
        let NodePath { store, leases, .. } = config;
        Leases {
            permission,
            pool: reviewer.pool.clone(),
            reviews: Arc::new(Reviews::new(reviewer)),
            known: KnownLeases::default(),
            senders: Senders::default(),
            stored,
            sample: leases.sample,
            trials: Mutex::new(Trials::new(leases.mode == LeaseMode::On, leases.comparisons)),
            is_on: AtomicBool::new(false),
            is_off: AtomicBool::new(false),
            serving: Notify::new(),
            links: (0..workers).map(|_| Arc::default()).collect(),
            endpoints: Arc::new(Endpoints {
                urls: store.endpoints.clone(),
                files: tls_files(store),
            }),
            key_prefix: lease_keys(store),
            fields: Mutex::default(),
            metrics,
        }
    }

    /// Keeps the connection of a thread. Must run on this thread.
    pub async fn connect_forever(self: Arc<Self>, worker: usize) {
        if let Some(link) = self.links.get(worker) {
            link.clone().run_forever(self.endpoints.clone()).await;
        }
    }

    /// Follows which versions the API servers have, until the process ends.
    pub async fn follow_versions_forever(self: Arc<Self>) {
        let mut last = None;
        loop {
            let state = self.judge();
            if last != Some(state) {
                last = Some(state);
                self.metrics.leases.set_state(state as i64);
                let refused = self.permission.reason();
                tracing::info!(?state, refused, "node path for Leases");
            }
            self.metrics.leases.set_known(self.known.len());
            if state == State::On && self.permission.is_allowed() {
                self.serving.notify_waiters();
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Decides again whether renewals are served.
    fn judge(&self) -> State {
        let servers = self.pool.servers();
        let ready = servers.iter().filter(|server| server.is_ready());
        let versions: Vec<_> = ready.map(|server| server.version()).collect();
        let state = self.trials.lock().state(versions.iter().map(Option::as_deref));
        self.is_on.store(state == State::On, Relaxed);
        self.is_off.store(state == State::Off, Relaxed);
        state
    }

    /// Reads the head of a client's request before anything is changed in it. Returns what is needed
    /// if it is a renewal that may be served. Must be called in a runtime.
    pub fn begin(&self, parts: &Parts, credential: &Credential) -> Option<Renewal> {
        let result = recognize(parts)?.and_then(|candidate| {
            let Credential::Certificate(identity) = credential else {
                return Err(Reason::Identity);
            };
            let sender = self.sender(identity, &candidate.name).ok_or(Reason::Identity)?;
            Ok(Renewal { candidate, sender })
        });
        result.map_err(|reason| self.count_forwarded(reason)).ok()
    }

    /// Returns somebody as the sender of a renewal, if it may renew the Lease with this name: a node its
    /// own one, as the Node authorizer says, and anybody else if RBAC says so.
    fn sender(&self, identity: &Arc<IdentityFields>, lease: &[u8]) -> Option<Sender> {
        if let Some(node) = identity.node() {
            return (node == lease).then_some(Sender::Node);
        }
        let allowed = self.reviews.allows(identity, &RENEWAL);
        allowed.then(|| Sender::Reviewed(identity.clone()))
    }

    /// Counts a request of HTTP/1.1, which always goes to an API server.
    pub fn note_http1(&self, info: &RequestInfo) {
        let is_lease = info.resource == "leases" && info.namespace == NAMESPACE;
        if is_lease && info.verb == "update" {
            self.count_forwarded(Reason::Http1);
        }
    }

    /// Waits until it may make sense to examine a renewal again.
    pub async fn may_serve(&self) {
        self.serving.notified().await;
    }

    /// Notes that this many more renewals wait; fewer if it is negative.
    pub fn count_waiting(&self, change: i64) {
        self.metrics.leases.waiting(change);
    }

    /// Counts a renewal that goes to an API server.
    pub fn count_forwarded(&self, reason: Reason) {
        self.metrics.leases.forwarded(reason.label());
    }

    fn key(&self, name: &[u8]) -> Bytes {
        [self.key_prefix.as_bytes(), name].concat().into()
    }

    /// Returns fields that are shared by all Leases that have the same ones.
    fn shared(&self, fields: AnswerFields) -> Arc<AnswerFields> {
        let mut known = self.fields.lock();
        if let Some(same) = known.iter().find(|other| ***other == fields) {
            return same.clone();
        }
        let fields = Arc::new(fields);
        if known.len() < MAX_FIELDS {
            known.push(fields.clone());
        }
        fields
    }
}
