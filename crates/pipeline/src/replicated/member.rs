//! The state of a member, which its thread owns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use consensus::Replica;
use consensus::id::{Index, MemberId, Position};
use consensus::membership::MemberInfo;
use consensus::output::RoleChange;
use crossbeam_channel::{Receiver, Sender};
use futures_channel::oneshot;
use mvcc::Store;
use peer::{IncomingSnapshot, Transport};
use tokio::runtime::Runtime;

use super::batch::Batch;
use super::entry_log::LogHandle;
use super::forwards::Forwards;
use super::handle::{MoveLeaderError, Replication, Request};
use super::hash_check_state::{HashCheckIntervals, HashChecks};
use super::log_size::LogSize;
use super::member_command_queue::MemberCommands;
use super::pending_reads::PendingReads;
use super::proposals::Proposals;
use crate::Error;
use crate::applier::Applier;
use crate::export::Export;
use crate::large_commands::LargeCommands;
use crate::shared_store::SharedStore;
use crate::submission::{Outcome, ReplyTo, Submission};
use crate::waker::Waker;

/// A member: the replica, the store, and everything that waits for them.
pub(super) struct Member {
    pub(super) replica: Replica,
    pub(super) applier: Applier,
    pub(super) shared: Arc<SharedStore>,
    pub(super) handle: Arc<Replication>,
    pub(super) transport: Arc<Transport>,
    /// Runs the transport, and reads that block. `None` at the end.
    pub(super) runtime: Option<Runtime>,
    pub(super) waker: Waker,
    /// `None` if the log is in memory only.
    pub(super) log: Option<LogHandle>,
    pub(super) requests: Receiver<Request>,
    /// This member, with its current URLs.
    pub(super) info: MemberInfo,
    pub(super) settings: Settings,

    pub(super) role: RoleChange,
    /// The last entry that the store contains as published.
    pub(super) applied: Index,
    pub(super) proposals: Proposals,
    pub(super) reads: PendingReads,
    pub(super) forwards: Forwards,
    /// Responses to commands of other members, which are sent together at the end of a turn.
    pub(super) responses: BTreeMap<MemberId, Batch>,
    pub(super) member_commands: MemberCommands,
    pub(super) hash_checks: HashChecks,
    /// Commands that were taken from the queues and are not handled yet.
    pub(super) batch: Vec<Submission>,
    /// Small commands that other members have forwarded.
    pub(super) remote: VecDeque<Submission>,
    pub(super) large_commands: Arc<LargeCommands>,
    /// When a leader whose disk is full may ask another member to lead.
    pub(super) resign_again_at: Instant,
    /// Since when another member is expected at the address of this one, and nobody reaches this one.
    pub(super) unknown_since: Option<Instant>,
    /// Since when no leader is known.
    pub(super) leaderless_since: Option<Instant>,
    /// Since when commands can neither be executed nor forwarded.
    pub(super) blocked_since: Option<Instant>,
    pub(super) log_size: LogSize,
    pub(super) transfer: Transfer,
    /// The newest store time that this member has proposed, in milliseconds.
    pub(super) clock_ms: i64,
    /// When the URLs of this member may be announced to the leader again.
    pub(super) announce_at: Instant,
    /// Clients that wait until another member leads, with their deadlines.
    pub(super) moving: Vec<Moving>,
}

/// Settings that do not change.
pub(super) struct Settings {
    pub(super) tick: Duration,
    pub(super) request_timeout: Duration,
    pub(super) election_timeout: Duration,
    pub(super) quota: mvcc::Quota,
    /// Growth of the log in bytes after which a snapshot is taken.
    pub(super) snapshot_log_bytes: u64,
    pub(super) strict_reconfig_check: bool,
    pub(super) max_learners: usize,
    pub(super) hash_checks: HashCheckIntervals,
}

/// Somebody who waits until another member leads.
pub(super) struct Moving {
    pub(super) deadline: Instant,
    pub(super) done: MoveDone,
}

/// Who waits until another member leads.
pub(super) enum MoveDone {
    /// The member stops.
    Resign(oneshot::Sender<()>),
    /// A client has asked for it.
    Client(oneshot::Sender<Result<(), MoveLeaderError>>),
}

/// Snapshots on their way, and what waits for a store without uncommitted changes.
pub(super) struct Transfer {
    /// Members to which the state is to be sent.
    pub(super) wanted: Vec<consensus::message::Message>,
    /// Exports to start.
    pub(super) exports: Vec<oneshot::Sender<Export>>,
    /// Number of members to which the state is being sent.
    pub(super) sending: usize,
    /// The state that is being received, or that is not stored yet.
    pub(super) is_receiving: bool,
    /// The write with the received state.
    pub(super) installing: Option<consensus::output::WriteNumber>,
    /// Passes received states to the member's thread.
    pub(super) received_sender: Sender<ReceivedState>,
    pub(super) received: Receiver<ReceivedState>,
    /// States that the replica may want, by their positions.
    pub(super) states: BTreeMap<Position, Box<Store>>,
}

/// The state of another member, or why it was not received.
pub(super) struct ReceivedState {
    pub(super) snapshot: IncomingSnapshot,
    pub(super) state: std::io::Result<Box<Store>>,
}

/// Number of election timeouts without a leader after which requests that need one do not wait any more. After
/// this time, etcd ends the streams that require a leader.
const MAX_LEADERLESS_TIMEOUTS: u32 = 3;

impl Member {
    pub(super) fn id(&self) -> MemberId {
        self.info.id
    }

    /// Returns the leader, if it is another member.
    pub(super) fn other_leader(&self) -> Option<MemberId> {
        self.role.leader.filter(|leader| *leader != self.id())
    }

    /// Whether there has been no leader for so long that this member is probably cut off, or most others are
    /// lost. Clients should not wait: another member may serve them.
    pub(super) fn is_abandoned(&self, now: Instant) -> bool {
        let limit = MAX_LEADERLESS_TIMEOUTS * self.settings.election_timeout;
        self.leaderless_since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }

    /// Whether this member knows from its log that it was removed. Before it has the state, it does not
    /// know the members.
    pub(super) fn is_removed(&self) -> bool {
        let membership = self.replica.membership();
        membership.members().len() > 0 && membership.get(self.id()).is_none()
    }

    /// Whether something waits for a store without uncommitted changes.
    pub(super) fn wants_rest(&self) -> bool {
        let Transfer { wanted, exports, .. } = &self.transfer;
        !wanted.is_empty() || !exports.is_empty() || self.wants_snapshot()
    }

    /// Whether a snapshot of this member is due.
    pub(super) fn wants_snapshot(&self) -> bool {
        let is_due =
            |log: &LogHandle| log.progress.wants_snapshot(self.settings.snapshot_log_bytes);
        self.transfer.installing.is_none() && self.log.as_ref().is_some_and(is_due)
    }

    /// Replies to a client of this or of another member. `index` is the entry after which the
    /// client may know the reply.
    pub(super) fn reply(&mut self, to: ReplyTo, index: Index, reply: Result<Outcome, Error>) {
        match to {
            ReplyTo::Member(member, number) => self.respond(member, number, index, reply),
            client => client.send(reply),
        }
    }
}
