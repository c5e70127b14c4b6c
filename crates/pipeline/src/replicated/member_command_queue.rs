//! The commands that change the members and wait for something.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use consensus::id::{Index, MemberId, Position};

use super::handle::{Answer, MemberCommand, MemberError, MembersChanged};
use crate::Error;

/// Who has sent a command.
pub(super) enum Asker {
    Client(Answer),
    /// A member, with the number that it has given to the command.
    Member(MemberId, u64),
}

pub(super) struct Queued {
    pub(super) command: MemberCommand,
    pub(super) asker: Asker,
    pub(super) deadline: Instant,
}

/// A command that this member has proposed.
pub(super) struct Proposed {
    pub(super) position: Position,
    /// The member that it adds.
    pub(super) added: Option<MemberId>,
    pub(super) queued: Queued,
}

/// A command that the leader has got from this member.
pub(super) struct Forwarded {
    pub(super) leader: MemberId,
    pub(super) command: MemberCommand,
    pub(super) answer: Answer,
    pub(super) deadline: Instant,
}

/// An answer of the leader that waits until this member has applied an entry.
pub(super) struct Answered {
    pub(super) index: Index,
    pub(super) command: MemberCommand,
    pub(super) answer: Answer,
    pub(super) changed: MembersChanged,
    pub(super) deadline: Instant,
}

/// The commands that wait for something.
#[derive(Default)]
pub(super) struct MemberCommands {
    pub(super) queued: VecDeque<Queued>,
    pub(super) proposed: Option<Proposed>,
    /// By number.
    pub(super) forwarded: BTreeMap<u64, Forwarded>,
    pub(super) last_number: u64,
    pub(super) answered: Vec<Answered>,
    /// The last refusal in the log.
    refusal: Option<(MemberCommand, String)>,
}

impl MemberCommands {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
            && self.proposed.is_none()
            && self.forwarded.is_empty()
            && self.answered.is_empty()
    }

    /// Logs that a command was refused. Clients try again until the cluster is healthy, so what is already in
    /// the log is not repeated.
    pub(super) fn log_refusal(&mut self, command: &MemberCommand, error: &MemberError) {
        let refusal = Some((command.clone(), error.to_string()));
        if self.refusal == refusal {
            tracing::debug!(?command, %error, "refused to change the members again");
            return;
        }
        tracing::warn!(?command, %error, "refused to change the members");
        self.refusal = refusal;
    }

    /// Passes answers on whose entries are applied.
    pub(super) fn on_applied(&mut self, applied: Index) {
        for answered in self.answered.extract_if(.., |answered| answered.index <= applied) {
            send(answered.answer, Ok(answered.changed));
        }
    }

    /// Fails what was forwarded to a member whose connection has ended. If it has removed this one
    /// (`own`), that is why, and the next attempt to connect says so.
    pub(super) fn on_lost(&mut self, leader: MemberId, own: MemberId) {
        let removal = MemberCommand::Remove(own);
        let is_lost = |f: &Forwarded| f.leader == leader && f.command != removal;
        for forwarded in self.take_forwarded(is_lost) {
            send(forwarded.answer, Err(Error::ConnectionLost.into()));
        }
    }

    pub(super) fn take_forwarded(
        &mut self,
        is_taken: impl Fn(&Forwarded) -> bool,
    ) -> Vec<Forwarded> {
        let all = std::mem::take(&mut self.forwarded).into_iter();
        let (taken, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.partition(|(_, forwarded)| is_taken(forwarded));
        self.forwarded = kept;
        taken.into_values().collect()
    }
}

/// The client may not wait any more.
pub(super) fn send(answer: Answer, result: Result<MembersChanged, MemberError>) {
    let _ = answer.send(result);
}
