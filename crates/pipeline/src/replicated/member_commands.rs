//! Commands that change the members: add, remove, update, promote.
//!
//! Any member takes them. A follower forwards them to the leader, which checks them
//! ([`super::reconfiguration`]) and proposes one at a time. A client gets its answer when the member that
//! it has asked has applied the change.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use consensus::ProposeChangeError;
use consensus::id::{Index, MemberId, Position};
use consensus::membership::{Change, ChangeError, MemberInfo};
use consensus::output::Role;

use super::handle::{ClusterMember, MemberCommand, MemberError, MembersChanged, cluster_members};
use super::identity::random_member;
use super::member::Member;
use super::member_command_queue::{Answered, Asker, Forwarded, Proposed, Queued, send};
use super::reconfiguration;
use super::wire::{encode_member_command, encode_members_changed};
use crate::Error;

/// Maximum number of commands that wait. Further ones fail.
const MAX_COMMANDS: usize = 1024;

/// What a leader did with a command.
enum Step {
    Proposed(Position, Option<MemberId>),
    /// It cannot be proposed now.
    Wait,
}

impl Member {
    /// Takes a command of a client or of another member.
    pub(super) fn queue_member_command(
        &mut self,
        command: MemberCommand,
        asker: Asker,
        now: Instant,
    ) {
        if self.member_commands.queued.len() >= MAX_COMMANDS {
            return self.answer(asker, 0, Err(Error::TooManyRequests.into()));
        }
        let deadline = now + self.settings.request_timeout;
        self.member_commands.queued.push_back(Queued { command, asker, deadline });
    }

    /// Proposes or forwards the commands that wait.
    pub(super) fn run_member_commands(&mut self) {
        while self.member_commands.proposed.is_none()
            && let Some(queued) = self.member_commands.queued.pop_front()
        {
            let unhandled = match (self.role.role, self.other_leader()) {
                (Role::Leader, _) => self.propose_command(queued),
                (_, Some(leader)) => self.forward_command(queued, leader),
                _ => Some(queued),
            };
            if let Some(queued) = unhandled {
                return self.member_commands.queued.push_front(queued);
            }
        }
    }

    /// Proposes a command. Returns it if that is not possible now.
    fn propose_command(&mut self, queued: Queued) -> Option<Queued> {
        match self.propose_change(&queued.command) {
            Ok(Step::Proposed(position, added)) => {
                self.member_commands.proposed = Some(Proposed { position, added, queued });
                None
            }
            Ok(Step::Wait) => Some(queued),
            Err(error) => {
                self.member_commands.log_refusal(&queued.command, &error);
                self.answer(queued.asker, 0, Err(error));
                None
            }
        }
    }

    fn propose_change(&mut self, command: &MemberCommand) -> Result<Step, MemberError> {
        let change = change_of(command);
        let check = self.replica.membership().check(&change);
        if !matches!(check, Err(ChangeError::Joint)) {
            reconfiguration::check(command, check, &self.reconfiguration_view())?;
        }
        let added = match &change {
            Change::AddLearner(info) | Change::AddVoter(info) => Some(info.id),
            _ => None,
        };
        match self.replica.change_members(change) {
            Ok(position) => Ok(Step::Proposed(position, added)),
            Err(ProposeChangeError::Pending | ProposeChangeError::NotReady(_)) => Ok(Step::Wait),
            Err(ProposeChangeError::Refused(ChangeError::Joint)) => Ok(Step::Wait),
            Err(ProposeChangeError::Refused(error)) => Err(error.into()),
            Err(ProposeChangeError::NotInSync(_)) => Err(MemberError::LearnerNotReady),
            Err(ProposeChangeError::Leader(_)) => {
                // The next leader removes this member.
                if let Some(to) = self.best_successor() {
                    let _ = self.replica.transfer_leadership(to);
                }
                Ok(Step::Wait)
            }
        }
    }

    /// Forwards a command to the leader. Returns it if that is not possible now.
    fn forward_command(&mut self, queued: Queued, leader: MemberId) -> Option<Queued> {
        let Queued { command, asker, deadline } = queued;
        let answer = match asker {
            Asker::Client(answer) => answer,
            // The member that has forwarded it asks the leader.
            Asker::Member(..) => {
                self.answer(asker, 0, Err(Error::LeaderChanged.into()));
                return None;
            }
        };
        let commands = &mut self.member_commands;
        let number = commands.last_number + 1;
        if !self.transport.ask(leader, encode_member_command(number, &command)) {
            return Some(Queued { command, asker: Asker::Client(answer), deadline });
        }
        commands.last_number = number;
        commands.forwarded.insert(number, Forwarded { leader, command, answer, deadline });
        None
    }

    /// Handles the answer of the leader.
    pub(super) fn on_members_changed(
        &mut self,
        number: u64,
        index: Index,
        result: Result<MembersChanged, MemberError>,
    ) {
        let commands = &mut self.member_commands;
        let Some(forwarded) = commands.forwarded.remove(&number) else { return };
        let Forwarded { command, answer, deadline, .. } = forwarded;
        match result {
            Ok(changed) => {
                commands.answered.push(Answered { index, command, answer, changed, deadline });
                commands.on_applied(self.applied);
            }
            // It was not executed.
            Err(MemberError::Failed(Error::LeaderChanged | Error::NoLeader)) => {
                let asker = Asker::Client(answer);
                commands.queued.push_front(Queued { command, asker, deadline });
            }
            Err(error) => send(answer, Err(error)),
        }
    }

    /// Notes that an entry is committed, and what its change of the members has come to; `None` if it
    /// has none.
    pub(super) fn on_command_committed(
        &mut self,
        position: Position,
        result: Option<Result<(), ChangeError>>,
    ) {
        let is_decided = |proposed: &mut Proposed| proposed.position.index <= position.index;
        let Some(proposed) = self.member_commands.proposed.take_if(is_decided) else { return };
        let Proposed { position: own, added, queued } = proposed;
        let result = match result.filter(|_| own == position) {
            // Another entry took its place.
            None => Err(Error::LeaderChanged.into()),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(())) => {
                tracing::info!(command = ?queued.command, "changed the members");
                Ok(self.members_changed(added))
            }
        };
        self.answer(queued.asker, position.index, result);
    }

    /// Notes that the state of another member replaces everything up to an entry: what became of a
    /// command is not known.
    pub(super) fn on_commands_replaced(&mut self, index: Index) {
        let is_replaced = |proposed: &mut Proposed| proposed.position.index <= index;
        if let Some(proposed) = self.member_commands.proposed.take_if(is_replaced) {
            self.answer(proposed.queued.asker, 0, Err(Error::LeaderFailed.into()));
        }
    }

    /// Fails the commands that have waited for too long.
    pub(super) fn expire_member_commands(&mut self, now: Instant) {
        let commands = &mut self.member_commands;
        if commands.is_empty() {
            return;
        }
        let proposed = commands.proposed.take_if(|proposed| proposed.queued.deadline <= now);
        let forwarded = commands.take_forwarded(|forwarded| forwarded.deadline <= now);
        let all = std::mem::take(&mut commands.queued).into_iter();
        let (expired, waiting): (VecDeque<_>, VecDeque<_>) =
            all.partition(|queued| queued.deadline <= now);
        commands.queued = waiting;
        let answered = commands.answered.extract_if(.., |answered| answered.deadline <= now);
        let answers = answered.map(|answered| answered.answer);
        for answer in answers.chain(forwarded.into_iter().map(|forwarded| forwarded.answer)) {
            send(answer, Err(Error::TimedOut.into()));
        }
        for Queued { asker, .. } in expired.into_iter().chain(proposed.map(|p| p.queued)) {
            self.answer(asker, 0, Err(Error::TimedOut.into()));
        }
    }

    /// Ends all commands when the member stops. If it was removed, a command to remove it has succeeded,
    /// although the leader could not say so any more.
    pub(super) fn finish_member_commands(&mut self, is_removed: bool, error: &Error) {
        let removes_own = MemberCommand::Remove(self.id());
        let mut changed = self.members_changed(None);
        changed.members.retain(|member| member.id != self.id().get());
        let commands = std::mem::take(&mut self.member_commands);
        let queued = commands.queued.into_iter().chain(commands.proposed.map(|p| p.queued));
        let queued = queued.filter_map(|queued| match queued.asker {
            Asker::Client(answer) => Some((queued.command, answer)),
            // The connection ends.
            Asker::Member(..) => None,
        });
        let forwarded = commands.forwarded.into_values().map(|f| (f.command, f.answer));
        let answered =
            commands.answered.into_iter().map(|answered| (answered.command, answered.answer));
        for (command, answer) in queued.chain(forwarded).chain(answered) {
            match is_removed && command == removes_own {
                true => send(answer, Ok(changed.clone())),
                false => send(answer, Err(error.clone().into())),
            }
        }
    }

    fn answer(&self, asker: Asker, index: Index, result: Result<MembersChanged, MemberError>) {
        match asker {
            Asker::Client(answer) => send(answer, result),
            Asker::Member(to, number) => {
                let body: Bytes = encode_members_changed(number, index, &result);
                // If it is lost, the other member notices the end of the connection: it has asked only because there is
                // one.
                self.transport.forward(to, body);
            }
        }
    }

    fn members_changed(&self, added: Option<MemberId>) -> MembersChanged {
        let members: Vec<ClusterMember> = cluster_members(self.replica.membership());
        MembersChanged { added: added.map(MemberId::get), members }
    }
}

/// Returns the change. An added member gets its identity here, and its name when it begins.
fn change_of(command: &MemberCommand) -> Change {
    let added = |peer_urls: &[String]| MemberInfo {
        id: random_member(),
        name: String::new(),
        peer_urls: peer_urls.to_vec(),
        client_urls: Vec::new(),
    };
    match command {
        MemberCommand::Add { peer_urls, is_learner: true } => Change::AddLearner(added(peer_urls)),
        MemberCommand::Add { peer_urls, is_learner: false } => Change::AddVoter(added(peer_urls)),
        MemberCommand::Remove(id) => Change::Remove(*id),
        MemberCommand::Promote(id) => Change::Promote(*id),
        MemberCommand::Update { id, peer_urls } => {
            Change::SetPeerUrls { id: *id, peer_urls: peer_urls.clone() }
        }
    }
}
