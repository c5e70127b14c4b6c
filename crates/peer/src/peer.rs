//! Another member: the queues of messages to it, and the streams from it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use consensus::id::MemberId;
use consensus::membership::MemberInfo;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::class::Class;
use crate::queue::Queue;

pub(crate) struct Peer {
    pub(crate) id: MemberId,
    info: Mutex<MemberInfo>,
    /// The process that got the identity.
    process: Mutex<Option<MemberId>>,
    /// Whether it is a member, as far as the own one knows. Others are known because they have
    /// connected.
    pub(crate) is_member: AtomicBool,
    /// One for each class.
    lanes: [Lane; Class::ALL.len()],
    pub(crate) is_sending_snapshot: AtomicBool,
    /// Number of streams from it.
    pub(crate) incoming: AtomicUsize,
    pub(crate) round_trip: Mutex<Option<Duration>>,
    /// Ends everything.
    pub(crate) stop: CancellationToken,
}

/// The streams of a class, in both directions.
pub(crate) struct Lane {
    pub(crate) queue: Queue,
    pub(crate) counters: Counters,
    /// Ends the stream on which the other side sends, when it opens another one.
    current: Mutex<CancellationToken>,
    /// Held by the stream on which the other side sends: a new one begins after the end of the old
    /// one, so that messages stay in order.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Number of streams on which the other side sends: for a moment two, when one replaces another one.
    incoming: AtomicUsize,
}

/// A stream on which the other side sends, until it is dropped.
pub(crate) struct Incoming<'a>(&'a Lane);

/// What happened on the streams of a class.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) is_connected: AtomicBool,
    pub(crate) connects: AtomicU64,
    pub(crate) sent_messages: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) dropped_messages: AtomicU64,
    pub(crate) received_messages: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

impl Peer {
    pub(crate) fn new(info: MemberInfo, is_member: bool, stop: CancellationToken) -> Peer {
        Peer {
            id: info.id,
            info: Mutex::new(info),
            process: Mutex::new(None),
            is_member: AtomicBool::new(is_member),
            lanes: Class::ALL.map(|class| Lane {
                queue: Queue::new(class),
                counters: Counters::default(),
                current: Mutex::default(),
                turn: tokio::sync::Mutex::default(),
                incoming: AtomicUsize::new(0),
            }),
            is_sending_snapshot: AtomicBool::new(false),
            incoming: AtomicUsize::new(0),
            round_trip: Mutex::new(None),
            stop,
        }
    }

    pub(crate) fn lane(&self, class: Class) -> &Lane {
        &self.lanes[class as usize]
    }

    pub(crate) fn info(&self) -> MemberInfo {
        self.info.lock().clone()
    }

    pub(crate) fn set_info(&self, info: MemberInfo) {
        *self.info.lock() = info;
    }

    /// Returns the process that got the identity of this peer, if it was given.
    pub(crate) fn process(&self) -> Option<MemberId> {
        *self.process.lock()
    }

    pub(crate) fn set_process(&self, process: Option<MemberId>) {
        *self.process.lock() = process;
    }

    /// Ends the stream of this class on which the other side sends. Returns what ends the next one.
    pub(crate) fn replace_incoming(&self, class: Class) -> CancellationToken {
        let token = self.stop.child_token();
        std::mem::replace(&mut *self.lane(class).current.lock(), token.clone()).cancel();
        token
    }
}

impl Lane {
    /// Notes that a stream has begun on which the other side sends.
    pub(crate) fn begin_incoming(&self) -> Incoming<'_> {
        self.incoming.fetch_add(1, Ordering::AcqRel);
        Incoming(self)
    }

    /// Whether there is a stream on which the other side sends.
    pub(crate) fn has_incoming(&self) -> bool {
        self.incoming.load(Ordering::Acquire) > 0
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        self.0.incoming.fetch_sub(1, Ordering::AcqRel);
    }
}
