//! The classes of messages. Each has streams of its own, so none waits behind another one.

use consensus::message::{Body, Message};

/// A class of messages. Order is kept only within a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Heartbeats, votes and requests for reads. They are small, and must not be late: without
    /// them, members elect another leader.
    Control,
    /// Entries of the log, and their acknowledgements.
    Log,
    /// Snapshots and their content. Each has a stream of its own.
    Snapshot,
    /// What members say to each other beside the protocol: commands that a follower forwards to the
    /// leader, and the responses.
    Forward,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 4] = [Class::Control, Class::Log, Class::Snapshot, Class::Forward];

    /// The classes whose stream stays open.
    pub(crate) const LASTING: [Class; 3] = [Class::Control, Class::Log, Class::Forward];

    /// Returns the class of a message.
    pub fn of(message: &Message) -> Class {
        match message.body {
            Body::Append { .. } | Body::AppendResponse { .. } => Class::Log,
            Body::Snapshot(_) => Class::Snapshot,
            Body::Vote { .. }
            | Body::VoteResponse { .. }
            | Body::Heartbeat { .. }
            | Body::HeartbeatResponse { .. }
            | Body::TimeoutNow
            | Body::ReadIndex { .. }
            | Body::ReadIndexResponse { .. } => Class::Control,
        }
    }

    /// Returns the name, for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Control => "control",
            Class::Log => "log",
            Class::Snapshot => "snapshot",
            Class::Forward => "forward",
        }
    }

    /// Returns the number in the handshake. Members of different versions use it, so it never
    /// changes.
    pub(crate) fn number(self) -> u8 {
        match self {
            Class::Control => 1,
            Class::Log => 2,
            Class::Snapshot => 3,
            Class::Forward => 4,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.number() == number)
    }

    /// Returns how many bytes a sender may have on its way that the receiver has not taken. It
    /// bounds the memory of a stream.
    pub(crate) fn window(self) -> u32 {
        match self {
            Class::Control => 256 << 10,
            Class::Log => 8 << 20,
            Class::Snapshot => 4 << 20,
            Class::Forward => 8 << 20,
        }
    }
}
