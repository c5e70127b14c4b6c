//! What clients ask of a store that is a member of a cluster. A store without peers answers as the
//! only member.

use std::time::Duration;

use consensus::id::MemberId;
use futures_channel::oneshot;

use crate::replicated::handle::{
    ClusterStatus, MemberCommand, MemberError, MembersChanged, MoveLeaderError, Request,
};
use crate::{Error, Pipeline};

impl Pipeline {
    /// Waits until the published state contains everything that was acknowledged before the call, by
    /// any member. A store without peers does not wait.
    ///
    /// # Errors
    /// If there is no leader, or if it does not answer in time.
    #[inline]
    pub async fn linearize(&self) -> Result<(), Error> {
        match &self.replication {
            None => Ok(()),
            Some(replication) => replication.linearize().await,
        }
    }

    /// Returns the state of the cluster; `None` for a store without peers.
    pub fn cluster_status(&self) -> Option<ClusterStatus> {
        self.replication.as_ref().map(|replication| replication.status())
    }

    /// Whether this member leads. A store without peers does.
    pub fn is_leader(&self) -> bool {
        self.replication.as_ref().is_none_or(|replication| replication.is_leader())
    }

    /// Whether a leader is known. A store without peers leads.
    pub fn has_leader(&self) -> bool {
        self.replication.as_ref().is_none_or(|replication| replication.has_leader())
    }

    /// Returns the Raft term; `None` for a store without peers.
    #[inline]
    pub fn raft_term(&self) -> Option<u64> {
        self.replication.as_ref().map(|replication| replication.term())
    }

    /// Whether this member of a cluster is a learner until it is promoted.
    #[inline]
    pub fn is_learner(&self) -> bool {
        self.replication.as_ref().is_some_and(|replication| replication.is_learner())
    }

    /// Whether this member was removed from its cluster, and has ended.
    pub fn is_removed(&self) -> bool {
        self.replication.as_ref().is_some_and(|replication| replication.is_removed())
    }

    /// Whether this member of a cluster has had the state of the cluster. Before that, it knows neither keys
    /// nor users. A store without peers has it.
    #[inline]
    pub fn has_state(&self) -> bool {
        self.replication.as_ref().is_none_or(|replication| replication.has_state())
    }

    /// Whether this member was removed before it got the state, and another one was added at its peer URLs. It
    /// has ended. Opened again with [`crate::ClusterOptions::is_replaced`], it becomes the other one.
    pub fn is_replaced(&self) -> bool {
        self.replication.as_ref().is_some_and(|replication| replication.is_replaced())
    }

    /// Adds a member that will be reached at these URLs. It begins when a process without data is started
    /// there. A learner does not vote before it is promoted; others vote when they have the log.
    ///
    /// # Errors
    /// If the change is refused, or it is not known whether it was made.
    pub async fn add_member(
        &self,
        peer_urls: Vec<String>,
        is_learner: bool,
    ) -> Result<MembersChanged, MemberError> {
        self.change_members(MemberCommand::Add { peer_urls, is_learner }).await
    }

    /// Removes a member, which ends then.
    ///
    /// # Errors
    /// If the change is refused, or it is not known whether it was made.
    pub async fn remove_member(&self, id: u64) -> Result<MembersChanged, MemberError> {
        self.change_members(MemberCommand::Remove(member_id(id)?)).await
    }

    /// Replaces the URLs at which other members reach a member.
    ///
    /// # Errors
    /// If the change is refused, or it is not known whether it was made.
    pub async fn update_member(
        &self,
        id: u64,
        peer_urls: Vec<String>,
    ) -> Result<MembersChanged, MemberError> {
        self.change_members(MemberCommand::Update { id: member_id(id)?, peer_urls }).await
    }

    /// Makes a learner a voter.
    ///
    /// # Errors
    /// If the change is refused, or it is not known whether it was made.
    pub async fn promote_member(&self, id: u64) -> Result<MembersChanged, MemberError> {
        self.change_members(MemberCommand::Promote(member_id(id)?)).await
    }

    /// Compares the content of this member of a cluster with that of the others that it reaches. Returns the IDs
    /// of those with another content. The contents at different compacted revisions are not compared.
    ///
    /// # Errors
    /// If the store is stopping.
    pub async fn compare_members(&self) -> Result<Vec<u64>, Error> {
        match &self.replication {
            None => Ok(Vec::new()),
            Some(replication) => replication.compare().await,
        }
    }

    async fn change_members(&self, command: MemberCommand) -> Result<MembersChanged, MemberError> {
        match &self.replication {
            None => Err(MemberError::NoPeers),
            Some(replication) => replication.change_members(command).await,
        }
    }

    /// Asks another member to lead, if this one does. Returns when it does not lead any more, or after
    /// `timeout`.
    pub fn resign(&self, timeout: Duration) {
        let Some(replication) = &self.replication else { return };
        let (sender, mut done) = oneshot::channel();
        if replication.send(Request::Resign(sender)).is_err() {
            return;
        }
        let deadline = std::time::Instant::now() + timeout;
        while std::time::Instant::now() < deadline && matches!(done.try_recv(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks the member with this ID to lead. Only the leader can do so.
    ///
    /// # Errors
    /// If this member does not lead, there is no such voter, or it does not take over.
    pub async fn move_leader(&self, to: u64) -> Result<(), MoveLeaderError> {
        let Some(replication) = &self.replication else {
            let is_own = to == self.identity().member_id;
            return is_own.then_some(()).ok_or(MoveLeaderError::BadTransferee);
        };
        let to = MemberId::new(to).ok_or(MoveLeaderError::BadTransferee)?;
        let (sender, done) = oneshot::channel();
        let sent = replication.send(Request::MoveLeader(to, sender));
        sent.map_err(|_| MoveLeaderError::TimedOut)?;
        done.await.unwrap_or(Err(MoveLeaderError::TimedOut))
    }
}

fn member_id(id: u64) -> Result<MemberId, MemberError> {
    MemberId::new(id).ok_or(MemberError::NotFound)
}
