//! What the transport has for the member.
//!
//! It is bounded: messages by the windows of their streams, snapshots by one for each sender, and
//! everything else by the number of peers.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use consensus::id::MemberId;
use consensus::message::Message;
use parking_lot::Mutex;

use crate::class::Class;
use crate::hello::Identity;
use crate::incoming_snapshot::IncomingSnapshot;
use crate::window::Held;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A message arrived. Sender, receiver, cluster and class are those of its stream.
    Message(Message),
    /// A snapshot begins to arrive.
    Snapshot(IncomingSnapshot),
    /// A snapshot that was sent is installed, or it failed. There is one for each call of
    /// [`crate::Transport::send_snapshot`].
    SnapshotSent {
        /// The receiver.
        to: MemberId,
        /// Whether the receiver has installed it.
        delivered: bool,
    },
    /// Messages of the class [`Class::Log`] to this member are probably lost.
    Unreachable(MemberId),
    /// At the address of a member is one with another identity.
    Found {
        /// The member at whose address it is.
        expected: MemberId,
        /// Who is there.
        identity: Identity,
    },
    /// This member says that the own one was removed from the cluster.
    RemovedBy(MemberId),
    /// A member of the cluster expects another identity at the address of this member.
    Expected(MemberId),
    /// Bytes that a member has sent with [`crate::Transport::forward`].
    Forwarded {
        /// The sender.
        from: MemberId,
        /// The bytes.
        body: Bytes,
    },
    /// What was forwarded to this member is probably lost, or its responses are.
    ForwardLost(MemberId),
}

/// Collects events until the member takes them.
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Tells the member that there are events.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    control: Vec<(Message, Held)>,
    log: Vec<(Message, Held)>,
    snapshots: Vec<IncomingSnapshot>,
    snapshots_sent: Vec<(MemberId, bool)>,
    unreachable: BTreeSet<MemberId>,
    /// By the identity that was expected.
    found: BTreeMap<MemberId, Identity>,
    removed_by: BTreeSet<MemberId>,
    expected: BTreeSet<MemberId>,
    forwarded: Vec<(MemberId, Bytes, Held)>,
    forward_lost: BTreeSet<MemberId>,
    has_events: bool,
}

impl Inbox {
    pub(crate) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Inbox {
        Inbox { state: Mutex::default(), wake }
    }

    pub(crate) fn message(&self, message: Message, held: Held) {
        self.add(|state| match Class::of(&message) {
            Class::Control => state.control.push((message, held)),
            Class::Log | Class::Snapshot | Class::Forward => state.log.push((message, held)),
        });
    }

    pub(crate) fn snapshot(&self, snapshot: IncomingSnapshot) {
        self.add(|state| state.snapshots.push(snapshot));
    }

    pub(crate) fn snapshot_sent(&self, to: MemberId, delivered: bool) {
        self.add(|state| state.snapshots_sent.push((to, delivered)));
    }

    pub(crate) fn unreachable(&self, member: MemberId) {
        self.add(|state| state.unreachable.extend([member]));
    }

    pub(crate) fn found(&self, expected: MemberId, identity: Identity) {
        self.add(|state| state.found.extend([(expected, identity)]));
    }

    pub(crate) fn removed_by(&self, member: MemberId) {
        self.add(|state| state.removed_by.extend([member]));
    }

    pub(crate) fn expected(&self, member: MemberId) {
        self.add(|state| state.expected.extend([member]));
    }

    pub(crate) fn forwarded(&self, from: MemberId, body: Bytes, held: Held) {
        self.add(|state| state.forwarded.push((from, body, held)));
    }

    pub(crate) fn forward_lost(&self, member: MemberId) {
        self.add(|state| state.forward_lost.extend([member]));
    }

    /// Wakes the member without an event: it may have waited for something else than an event.
    pub(crate) fn wake(&self) {
        (self.wake)();
    }

    fn add(&self, add: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        add(&mut state);
        let wake = !std::mem::replace(&mut state.has_events, true);
        drop(state);
        if wake {
            (self.wake)();
        }
    }

    /// Returns all events, urgent ones first. Their senders may send more now.
    pub(crate) fn take(&self) -> Vec<Event> {
        let state = std::mem::take(&mut *self.state.lock());
        let message = |(message, held): (Message, Held)| {
            drop(held);
            Event::Message(message)
        };
        let mut events: Vec<_> = state.control.into_iter().map(message).collect();
        events.extend(state.removed_by.into_iter().map(Event::RemovedBy));
        events.extend(state.expected.into_iter().map(Event::Expected));
        let found = state.found.into_iter();
        events.extend(found.map(|(expected, identity)| Event::Found { expected, identity }));
        events.extend(state.unreachable.into_iter().map(Event::Unreachable));
        let sent = state.snapshots_sent.into_iter();
        events.extend(sent.map(|(to, delivered)| Event::SnapshotSent { to, delivered }));
        events.extend(state.log.into_iter().map(message));
        let forwarded = state.forwarded.into_iter();
        events.extend(forwarded.map(|(from, body, _)| Event::Forwarded { from, body }));
        // After the responses that have arrived before.
        events.extend(state.forward_lost.into_iter().map(Event::ForwardLost));
        events.extend(state.snapshots.into_iter().map(Event::Snapshot));
        events
    }
}
