//! The handle of the transport.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use consensus::id::{ClusterId, MemberId};
use consensus::membership::MemberInfo;
use consensus::message::Message;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::class::Class;
use crate::config::Config;
use crate::connection::Dialer;
use crate::hello::Identity;
use crate::inbox::{Event, Inbox};
use crate::listener::Listeners;
use crate::peer::{Peer, count};
use crate::peers::Peers;
use crate::queue::Item;
use crate::shared::{Belonging, Shared};
use crate::snapshot_send;
use crate::status::{Refusals, TransportStatus};
use crate::tls::PeerTls;
use crate::url::PeerUrl;

/// Sends messages to other members, and receives theirs. See the documentation of the crate.
///
/// None of its methods waits for the network, except those that are `async`.
pub struct Transport {
    shared: Arc<Shared>,
    peers: Arc<Peers>,
    runtime: tokio::runtime::Handle,
}

impl Transport {
    /// Starts the transport on the runtime of the caller. It should be a runtime of its own, so that
    /// heartbeats do not wait for other work. `wake` is called, on a thread of the runtime or of a
    /// caller of this transport, when [`Transport::events`] may return something, or [`Transport::ask`] may
    /// succeed; it must not block.
    ///
    /// # Errors
    /// If a listener needs TLS and there is no certificate.
    ///
    /// # Panics
    /// If the caller has no runtime.
    pub fn start(
        config: Config,
        listeners: Listeners,
        tls: Option<Arc<PeerTls>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> anyhow::Result<Transport> {
        listeners.check(tls.as_ref())?;
        let shared = Arc::new(Shared {
            dialer: Dialer::new(tls.clone(), config.timeouts.clone()),
            belonging: RwLock::new(Belonging {
                cluster: config.cluster,
                id: config.member.id,
                is_blank: true,
                is_waiting: false,
            }),
            called: watch::Sender::new(None),
            config,
            inbox: Inbox::new(Box::new(wake)),
            refusals: Refusals::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let peers = Arc::new(Peers::new(shared.clone()));
        listeners.start(&shared, &peers, tls.as_ref());
        Ok(Transport { shared, peers, runtime: tokio::runtime::Handle::current() })
    }

    /// Sets the members of the cluster. The own one may be among them. The transport stays connected
    /// to the others. Former members are refused from now on.
    pub fn set_members<'a>(&self, members: impl IntoIterator<Item = &'a MemberInfo>) {
        let _runtime = self.runtime.enter();
        self.peers.set_members(members);
    }

    /// Notes to which processes the identities of members were given, by these identities. A process is
    /// called by the identity that it got ([`Transport::called`]).
    pub fn set_claims(&self, claims: &BTreeMap<MemberId, MemberId>) {
        self.peers.set_claims(claims);
    }

    /// Sets the cluster, and what [`Identity::is_blank`] says of this member, which is `true` at the
    /// start. Call it before [`Transport::set_members`]: streams begin only with members of the same
    /// cluster.
    pub fn set_cluster(&self, cluster: ClusterId, is_blank: bool) {
        let mut belonging = self.shared.belonging.write();
        (belonging.cluster, belonging.is_blank) = (cluster, is_blank);
    }

    /// Says that this member waits until the cluster calls it. It does so until it has its identity
    /// ([`Transport::set_id`]).
    pub fn set_waiting(&self) {
        self.shared.belonging.write().is_waiting = true;
    }

    /// Sets the identity of this member. Call it before [`Transport::set_members`].
    pub fn set_id(&self, id: MemberId) {
        let mut belonging = self.shared.belonging.write();
        (belonging.id, belonging.is_waiting) = (id, false);
    }

    /// Waits until a member of the cluster calls this one. Returns by which identity: its own one, or one
    /// that was given to this process.
    pub async fn called(&self) -> MemberId {
        let mut called = self.shared.called.subscribe();
        let id = called.wait_for(Option::is_some).await.ok().and_then(|id| *id);
        // The sender lives as long as this transport.
        id.expect("the condition holds")
    }

    /// Says that this member has state now.
    pub fn set_state(&self) {
        self.shared.belonging.write().is_blank = false;
    }

    /// Asks who is at a URL.
    ///
    /// # Errors
    /// If there is no member.
    pub async fn probe(&self, url: &PeerUrl) -> io::Result<Identity> {
        self.shared.dialer.probe(url).await
    }

    /// Returns what has happened since the last call, urgent events first. The senders of messages
    /// may send more when these are returned, so the caller handles them before it asks again.
    pub fn events(&self) -> Vec<Event> {
        self.shared.inbox.take()
    }

    /// Sends a message with the next [`Transport::flush`], in order within its class. It is dropped if the receiver is not known or
    /// cannot be reached, or if too many messages wait. For [`Class::Log`],
    /// [`Event::Unreachable`] follows.
    ///
    /// # Panics
    /// If the message has a snapshot, which [`Transport::send_snapshot`] sends.
    pub fn send(&self, message: Message) {
        let class = Class::of(&message);
        assert!(class != Class::Snapshot, "a snapshot needs its content");
        let to = message.to;
        let Some(peer) = self.peers.get(to) else {
            return self.dropped(class, to);
        };
        let lane = peer.lane(class);
        if lane.queue.push(Item::Message(message)) {
            count(&lane.counters.dropped_messages, 1);
            self.dropped(class, to);
        }
    }

    /// Sends bytes that are no message of the protocol with the next [`Transport::flush`], in order
    /// ([`Event::Forwarded`]). Returns whether they are queued. If they are lost later,
    /// [`Event::ForwardLost`] follows.
    pub fn forward(&self, to: MemberId, body: Bytes) -> bool {
        let Some(peer) = self.peers.get(to) else { return false };
        let lane = peer.lane(Class::Forward);
        let dropped = lane.queue.push(Item::Forwarded(body));
        count(&lane.counters.dropped_messages, usize::from(dropped));
        !dropped
    }

    /// As [`Transport::forward`], for what the receiver answers with [`Transport::forward`]. Nothing is queued
    /// before the receiver has opened its stream for the answer: it would do what it is asked for, and the answer would
    /// be lost without a notice. If this stream ends later, [`Event::ForwardLost`] follows.
    pub fn ask(&self, to: MemberId, body: Bytes) -> bool {
        let peer = self.peers.get(to);
        let is_answered = peer.is_some_and(|peer| peer.lane(Class::Forward).has_incoming());
        is_answered && self.forward(to, body)
    }

    /// Lets the streams send what waits. To wake a stream costs more than to send a message, so the
    /// caller does it once for all that it has to say.
    pub fn flush(&self) {
        for peer in self.peers.all() {
            Class::LASTING.iter().for_each(|class| peer.lane(*class).queue.flush());
        }
    }

    fn dropped(&self, class: Class, to: MemberId) {
        if class == Class::Log {
            self.shared.inbox.unreachable(to);
        }
    }

    /// Sends a message with a snapshot, and the content. `content` is read on a thread that may
    /// block. One snapshot at a time is sent to a member. [`Event::SnapshotSent`] follows.
    pub fn send_snapshot(&self, message: Message, content: Box<dyn Read + Send>) {
        let to = message.to;
        let peer = self.peers.get(to);
        let peer = peer.filter(|peer| !peer.is_sending_snapshot.swap(true, Ordering::AcqRel));
        let Some(peer) = peer else {
            return self.shared.inbox.snapshot_sent(to, false);
        };
        let sending = snapshot_send::run(self.shared.clone(), peer, message, content);
        self.shared.tasks.spawn_on(sending, &self.runtime);
    }

    /// Whether any member sends to this one.
    pub fn is_reached(&self) -> bool {
        self.peers.all().iter().any(|peer| peer.incoming.load(Ordering::Relaxed) > 0)
    }

    /// Returns the peers to which this member has a stream of control messages.
    pub fn connected(&self) -> BTreeSet<MemberId> {
        let peers = self.peers.all().into_iter();
        let is_connected = |peer: &Arc<Peer>| {
            peer.lane(Class::Control).counters.is_connected.load(Ordering::Relaxed)
        };
        peers.filter(is_connected).map(|peer| peer.id).collect()
    }

    /// Returns the state of the transport, for metrics and operators.
    pub fn status(&self) -> TransportStatus {
        let peers = self.peers.all().iter().map(|peer| peer.status()).collect();
        self.shared.refusals.status(peers)
    }

    /// Closes all streams and listeners, and waits until this is done. Messages that wait are
    /// dropped.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
