//! What other threads may know about the cluster, and ask of it.

use std::sync::atomic::{AtomicU64, Ordering};

use consensus::id::{Index, MemberId, Term};
use consensus::output::Role;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use futures_channel::oneshot;
use parking_lot::RwLock;

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
    /// Whether this member does not vote.
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
    /// Whether it does not vote.
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
    pub(super) fn set_membership(&self, membership: &consensus::membership::Membership) {
        let members = membership.members().map(|info| ClusterMember {
            id: info.id.get(),
            name: info.name.clone(),
            peer_urls: info.peer_urls.clone(),
            client_urls: info.client_urls.clone(),
            is_learner: membership.is_learner(info.id),
        });
        let mut status = self.status.write();
        status.members = members.collect();
        status.is_learner = !membership.is_voter(self.member);
    }
}
