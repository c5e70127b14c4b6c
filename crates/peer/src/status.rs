//! The state of the transport, for metrics and operators.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use consensus::membership::MemberInfo;
use parking_lot::Mutex;

use crate::class::Class;
use crate::hello::Answer;
use crate::peer::Peer;

/// The state of the transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportStatus {
    /// The other members, and those that have connected.
    pub peers: Vec<PeerStatus>,
    /// Number of streams that this member has refused, by reason.
    pub refused: BTreeMap<Answer, u64>,
    /// Number of connections without a valid handshake, or with bytes that no member sends.
    pub invalid_connections: u64,
}

/// The state of the streams to and from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The member.
    pub info: MemberInfo,
    /// Whether it is a member, as far as this one knows.
    pub is_member: bool,
    /// The time from the last ping to its answer.
    pub round_trip: Option<Duration>,
    /// The streams of each class.
    pub streams: Vec<(Class, StreamStatus)>,
}

/// The state of the streams of a class. Counters are numbers since the peer is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    /// Whether there is a stream on which this member sends.
    pub is_connected: bool,
    /// Number of streams on which this member has sent.
    pub connects: u64,
    /// Number of messages that were sent.
    pub sent_messages: u64,
    /// Number of bytes that were sent, without TLS.
    pub sent_bytes: u64,
    /// Number of messages that were dropped instead of sent.
    pub dropped_messages: u64,
    /// Number of messages that were received.
    pub received_messages: u64,
    /// Number of bytes of frames that were received, without TLS.
    pub received_bytes: u64,
    /// Number of messages that wait.
    pub queued_messages: usize,
    /// Approximate number of bytes that wait.
    pub queued_bytes: usize,
}

/// Connections that led to nothing.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<(BTreeMap<Answer, u64>, u64)>);

impl Refusals {
    pub(crate) fn refused(&self, answer: Answer) {
        *self.0.lock().0.entry(answer).or_default() += 1;
    }

    pub(crate) fn invalid(&self) {
        self.0.lock().1 += 1;
    }

    pub(crate) fn status(&self, peers: Vec<PeerStatus>) -> TransportStatus {
        let (refused, invalid_connections) = self.0.lock().clone();
        TransportStatus { peers, refused, invalid_connections }
    }
}

impl Peer {
    pub(crate) fn status(&self) -> PeerStatus {
        PeerStatus {
            info: self.info(),
            is_member: self.is_member.load(Ordering::Relaxed),
            round_trip: *self.round_trip.lock(),
            streams: Class::ALL.map(|class| (class, self.stream_status(class))).to_vec(),
        }
    }

    fn stream_status(&self, class: Class) -> StreamStatus {
        let lane = self.lane(class);
        let counters = &lane.counters;
        let (queued_messages, queued_bytes) = lane.queue.len();
        StreamStatus {
            is_connected: counters.is_connected.load(Ordering::Relaxed),
            connects: counters.connects.load(Ordering::Relaxed),
            sent_messages: counters.sent_messages.load(Ordering::Relaxed),
            sent_bytes: counters.sent_bytes.load(Ordering::Relaxed),
            dropped_messages: counters.dropped_messages.load(Ordering::Relaxed),
            received_messages: counters.received_messages.load(Ordering::Relaxed),
            received_bytes: counters.received_bytes.load(Ordering::Relaxed),
            queued_messages,
            queued_bytes,
        }
    }
}
