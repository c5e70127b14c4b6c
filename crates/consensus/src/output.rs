//! What a replica asks its caller to do.

use crate::entry::{Data, Entry, HardState, Snapshot};
use crate::evaluation::Outcome;
use crate::id::{Index, MemberId, Position, Term};
use crate::membership::{ChangeError, Membership};
use crate::message::Message;
use crate::reads::ReadNumber;

/// The number of a [`Write`]. Writes are numbered in order.
pub type WriteNumber = u64;

/// What the caller has to do. It does it in the order of the fields; [`Output::messages`] do not
/// have to wait for the others.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages to send. They may be lost, repeated and reordered.
    ///
    /// With [`crate::message::Body::Snapshot`], the caller has to make a snapshot of the last
    /// applied state now, send its content, and call [`crate::Replica::snapshot_sent`] when this
    /// has succeeded or failed.
    pub messages: Vec<Message>,
    /// A change of the role.
    pub role: Option<RoleChange>,
    /// Undo all batches that were evaluated after this entry, also one that is not proposed yet.
    pub undo_to: Option<Index>,
    /// Replace the state by this snapshot, whose content the caller has received. The caller calls
    /// [`crate::Replica::applied`] when it is done.
    pub restore: Option<Snapshot>,
    /// What has to be stored, in this order; empty in [`crate::identity::LogMode::Memory`]. The
    /// caller calls [`crate::Replica::persisted`] when a write is as durable as its mode requires.
    pub writes: Vec<Write>,
    /// Committed entries, in the order of their indices and without a gap. The caller applies or
    /// publishes them, and calls [`crate::Replica::applied`].
    pub committed: Vec<Committed>,
    /// What became of proposals of this replica. A client gets its response when the entry is
    /// committed and applied.
    pub outcomes: Vec<(Position, Outcome)>,
    /// All reads up to this number may be served from the applied state.
    pub reads_ready: Option<ReadNumber>,
}

impl Output {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.role.is_none()
            && self.undo_to.is_none()
            && self.restore.is_none()
            && self.writes.is_empty()
            && self.committed.is_empty()
            && self.outcomes.is_empty()
            && self.reads_ready.is_none()
    }
}

/// A role in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one. Learners are followers.
    #[default]
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader,
}

/// The role of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleChange {
    /// The role.
    pub role: Role,
    /// The term.
    pub term: Term,
    /// The leader of the term, if it is known.
    pub leader: Option<MemberId>,
}

/// What has to be stored before others may rely on it.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its number.
    pub number: WriteNumber,
    /// Whether it must survive a crash of the machine before [`crate::Replica::persisted`] is
    /// called; otherwise a crash of the process.
    pub sync: bool,
    /// The new hard state.
    pub hard_state: Option<HardState>,
    /// A snapshot that replaces the log.
    pub snapshot: Option<Snapshot>,
    /// Entries to append. They replace all stored entries from the index of the first one on.
    pub entries: Vec<Entry>,
}

/// A committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where it is in the log.
    pub position: Position,
    /// What to do with it.
    pub content: CommittedContent,
}

/// What to do with a committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedContent {
    /// Nothing.
    Empty,
    /// Apply the effects.
    Apply(Data),
    /// The state contains the effects, because this replica has evaluated them: publish them.
    Publish,
    /// A change of the members.
    Members {
        /// The members after it.
        membership: Membership,
        /// Why it has changed nothing: it is not allowed any more.
        result: Result<(), ChangeError>,
    },
}
