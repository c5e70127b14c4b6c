//! The settings of a transport.

use std::num::NonZeroU64;
use std::time::Duration;

use consensus::id::ClusterId;
use consensus::membership::MemberInfo;

use crate::class::Class;

/// The settings of a transport.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster, until [`crate::Transport::set_cluster`] is called.
    pub cluster: ClusterId,
    /// This member, with the URLs at which others reach it. It has this identity until
    /// [`crate::Transport::set_id`] is called.
    pub member: MemberInfo,
    /// Maximum size of a message with entries in bytes, encoded, and of a forwarded message. A
    /// message contains at least one entry, so it must be larger than the largest entry.
    pub max_message_bytes: u32,
    /// Maximum rate at which the content of a snapshot is sent to a member; `None` if there is no
    /// limit.
    pub snapshot_bytes_per_second: Option<NonZeroU64>,
    /// How long to wait for what.
    pub timeouts: Timeouts,
}

/// How long to wait for what.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Maximum duration of connecting and of the handshake, on each side.
    pub connect: Duration,
    /// Interval between signs of life on a stream, in each direction.
    pub ping_interval: Duration,
    /// After how long without a byte the other side of a stream counts as dead. It must be a
    /// multiple of `ping_interval`.
    pub silence: Duration,
    /// The time until the second attempt to connect. It doubles with each further attempt, and up
    /// to a half of it is taken away at random.
    pub first_retry: Duration,
    /// Maximum time between two attempts to connect.
    pub max_retry: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(5),
            ping_interval: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            first_retry: Duration::from_millis(100),
            max_retry: Duration::from_secs(1),
        }
    }
}

/// Maximum size of a message without entries in bytes.
const MAX_CONTROL_BYTES: usize = 64 << 10;
/// Maximum size of a frame of a snapshot in bytes: of the description, which lists the members, and
/// of a part of the content.
const MAX_SNAPSHOT_FRAME_BYTES: usize = 1 << 20;

impl Config {
    /// Returns the maximum size of a frame's body.
    pub(crate) fn max_frame_bytes(&self, class: Class) -> usize {
        match class {
            Class::Control => MAX_CONTROL_BYTES,
            Class::Log | Class::Forward => self.max_message_bytes as usize,
            Class::Snapshot => MAX_SNAPSHOT_FRAME_BYTES,
        }
    }
}
