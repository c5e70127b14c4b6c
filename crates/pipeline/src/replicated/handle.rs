//! What other threads may know about the cluster, and ask of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use consensus::id::{Index, MemberId, Term};
use consensus::membership::{ChangeError, MemberInfo, Membership, Standing};
use consensus::output::Role;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use futures_channel::oneshot;
use parking_lot::RwLock;

use super::hash_check_state::Compared;
use super::pending_reads::Reader;
use crate::Error;
use crate::export::Export;
use crate::waker::Waker;

/// Maximum number of readers, and of other requests, that wait. Further ones fail.
const MAX_WAITING: usize = 65_536;

/// The state of a member and its view of the cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterStatus {
    /// The ID of the leader; 0 if none is known.
    pub leader: u64,
    /// The Raft term.
    pub term: Term,
    /// Whether this member leads.
    pub is_leader: bool,
    /// Whether this member does not count as a voter yet: it is a learner, or it has just joined or lost its log, and
    /// becomes a voter by itself. Until then, the cluster counts it as failed.
    pub is_learner: bool,
    /// The last entry that is known to be committed.
    pub commit: Index,
    /// The last applied entry.
    pub applied: Index,
    /// Number of leaders that this member has seen.
    pub leader_changes: u64,
    /// The members, by ID.
    pub members: Vec<ClusterMember>,
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its ID.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Whether it does not vote, and was not added as a voter.
    pub is_learner: bool,
}

/// A request to the driver.
pub(crate) enum Request {
    /// Tells when the published state contains everything that was acknowledged before.
    Read(Reader),
    /// Starts an export of a state without uncommitted changes.
    Export(oneshot::Sender<Export>),
    /// Asks another member to lead, if this one does. The answer comes when it does not lead, or
    /// cannot give up the leadership.
    Resign(oneshot::Sender<()>),
    /// Asks the member with this ID to lead.
    MoveLeader(MemberId, oneshot::Sender<Result<(), MoveLeaderError>>),
    /// Compares the content of this member with that of the others.
    Compare(Compared),
    /// Changes the members.
    ChangeMembers(MemberCommand, Answer),
}

/// Where the answer to a command that changes the members goes.
pub(super) type Answer = oneshot::Sender<Result<MembersChanged, MemberError>>;

/// A command that changes the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberCommand {
    /// Adds a member that has not started.
    Add {
        /// Where it will be reached.
        peer_urls: Vec<String>,
        /// Whether it does not vote before it is promoted.
        is_learner: bool,
    },
    /// Removes a member.
    Remove(MemberId),
    /// Replaces the peer URLs of a member.
    Update {
        /// The member.
        id: MemberId,
        /// Its new URLs.
        peer_urls: Vec<String>,
    },
    /// Makes a learner a voter.
    Promote(MemberId),
}

/// The members after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersChanged {
    /// The ID of the member that was added.
    pub added: Option<u64>,
    /// The members, by ID.
    pub members: Vec<ClusterMember>,
}

/// Why the members were not changed. The texts are those of etcd.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberError {
    /// There is no such member.
    #[error("etcdserver: member not found")]
    NotFound,
    /// There is a member with this ID.
    #[error("etcdserver: member ID already exist")]
    Exists,
    /// Another member has one of the peer URLs.
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    /// The member is no learner.
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    /// The learner does not have the log yet.
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// There are as many learners as `--max-learners` allows.
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    /// The members that have started would be no quorum.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStarted,
    /// The members that the leader reaches would be no quorum.
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    /// This server has no peers.
    #[error(
        "mem_etcd: a server without peers has no other members: start it with --replication-log and \
         --initial-cluster to change them"
    )]
    NoPeers,
    /// The command was not executed, or it is not known whether it was.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<ChangeError> for MemberError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Exists(_) | ChangeError::Claimed(..) => MemberError::Exists,
            ChangeError::NotFound(_) => MemberError::NotFound,
            ChangeError::PeerUrlExists(_) => MemberError::PeerUrlExists,
            ChangeError::LastVoter => MemberError::NotEnoughStarted,
            ChangeError::NotLearner(_) | ChangeError::Replaces(..) => MemberError::NotLearner,
            // Only the leader proposes the changes that these concern.
            ChangeError::NotVoter(_)
            | ChangeError::OtherName(..)
            | ChangeError::Started(_)
            | ChangeError::Joint
            | ChangeError::NotJoint => Error::LeaderChanged.into(),
        }
    }
}

/// Why the leadership was not moved.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum MoveLeaderError {
    /// This member does not lead.
    #[error("etcdserver: not leader")]
    NotLeader,
    /// There is no such voter.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// The other member did not take over in time.
    #[error("etcdserver: request timed out, leader transfer took too long")]
    TimedOut,
}

/// The handle of the cluster.
pub(crate) struct Replication {
    member: MemberId,
    status: RwLock<ClusterStatus>,
    /// The term, for the headers of responses.
    term: AtomicU64,
    commit: AtomicU64,
    applied: AtomicU64,
    /// Whether this member refuses what learners refuse.
    is_learner: AtomicBool,
    /// Whether this member knows the members of the cluster.
    has_state: AtomicBool,
    /// Whether this member was removed, and has ended.
    is_removed: AtomicBool,
    /// Whether this member has ended because another one has its address.
    is_replaced: AtomicBool,
    requests: Sender<Request>,
    waker: Waker,
}

impl Replication {
    /// Creates the handle, and what the driver receives from it.
    pub(crate) fn new(member: MemberId, waker: Waker) -> (Replication, Receiver<Request>) {
        let (requests, received) = bounded(MAX_WAITING);
        let replication = Replication {
            member,
            status: RwLock::default(),
            term: AtomicU64::new(0),
            commit: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            is_learner: AtomicBool::new(false),
            has_state: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            requests,
            waker,
        };
        (replication, received)
    }

    /// Returns the state of the member.
    pub(crate) fn status(&self) -> ClusterStatus {
        let (commit, applied) = (&self.commit, &self.applied);
        ClusterStatus {
            commit: commit.load(Ordering::Relaxed),
            applied: applied.load(Ordering::Relaxed),
            ..self.status.read().clone()
        }
    }

    /// Whether this member leads.
    pub(crate) fn is_leader(&self) -> bool {
        self.status.read().is_leader
    }

    /// Whether a leader is known.
    pub(crate) fn has_leader(&self) -> bool {
        self.status.read().leader != 0
    }

    /// Whether this member stays a learner until it is promoted.
    #[inline]
    pub(crate) fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// Whether this member has had the state of the cluster. Before that, it knows neither keys nor users.
    #[inline]
    pub(crate) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    /// Whether another member has the address of this one, which has ended.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    /// Notes that another member has the address of this one.
    pub(super) fn set_replaced(&self) {
        self.is_replaced.store(true, Ordering::Release);
    }

    /// Whether this member was removed from the cluster.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Notes that this member was removed from the cluster.
    pub(super) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// Changes the members.
    pub(crate) async fn change_members(
        &self,
        command: MemberCommand,
    ) -> Result<MembersChanged, MemberError> {
        let (answer, done) = oneshot::channel();
        self.send(Request::ChangeMembers(command, answer))?;
        done.await.unwrap_or_else(|_| Err(Error::Stopped.into()))
    }

    /// Compares the content of this member with that of the others. Returns the members that differ.
    pub(crate) async fn compare(&self) -> Result<Vec<u64>, Error> {
        let (compared, different) = oneshot::channel();
        self.send(Request::Compare(compared))?;
        different.await.map_err(|_| Error::Stopped)
    }

    /// Returns the Raft term.
    pub(crate) fn term(&self) -> Term {
        self.term.load(Ordering::Relaxed)
    }

    /// Waits until the published state contains everything that was acknowledged before.
    pub(crate) async fn linearize(&self) -> Result<(), Error> {
        let (reader, ready) = oneshot::channel();
        self.send(Request::Read(reader))?;
        ready.await.unwrap_or(Err(Error::Stopped))
    }

    /// Starts an export of a state without uncommitted changes.
    pub(crate) fn start_export(&self) -> Result<oneshot::Receiver<Export>, Error> {
        let (sender, export) = oneshot::channel();
        self.send(Request::Export(sender))?;
        Ok(export)
    }

    /// Passes a request to the driver.
    pub(crate) fn send(&self, request: Request) -> Result<(), Error> {
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Error::TooManyRequests,
            TrySendError::Disconnected(_) => Error::Stopped,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// Notes a change of the role.
    pub(super) fn set_role(&self, role: consensus::output::RoleChange) {
        let mut status = self.status.write();
        let leader = role.leader.map_or(0, MemberId::get);
        if leader != 0 && leader != status.leader {
            status.leader_changes += 1;
        }
        status.leader = leader;
        status.term = role.term;
        status.is_leader = role.role == Role::Leader;
        self.term.store(role.term, Ordering::Relaxed);
    }

    /// Notes progress.
    pub(super) fn set_progress(&self, commit: Index, applied: Index) {
        self.commit.store(commit, Ordering::Relaxed);
        self.applied.store(applied, Ordering::Relaxed);
    }

    /// Notes the members.
    pub(super) fn set_membership(&self, membership: &Membership) {
        let mut status = self.status.write();
        status.members = cluster_members(membership);
        status.is_learner = !membership.counts(self.member);
        // One that becomes a voter by itself serves as one: it forwards what it cannot answer.
        let is_learner = membership.standing(self.member) == Some(Standing::Learner);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        // The store and its users were replaced before.
        self.has_state.store(!status.members.is_empty(), Ordering::Release);
    }
}

/// Describes the members for clients. One that was added as a voter is shown as one before it votes.
pub(super) fn cluster_members(membership: &Membership) -> Vec<ClusterMember> {
    let describe = |info: &MemberInfo| ClusterMember {
        id: info.id.get(),
        name: info.name.clone(),
        peer_urls: info.peer_urls.clone(),
        client_urls: info.client_urls.clone(),
        is_learner: !membership.counts(info.id) && !membership.is_staged(info.id),
    };
    membership.members().map(describe).collect()
}
