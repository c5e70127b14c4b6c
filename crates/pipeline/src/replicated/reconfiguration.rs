//! Which changes of the members are refused: those that etcd refuses, for the same reasons.
//!
//! With `--strict-reconfig-check`, a change is refused if the cluster might lose its quorum by it: if too
//! few voters have started, or if the leader is not connected to enough of them. etcd asks for a connection
//! of five seconds; here, a connection is enough.

use std::collections::BTreeSet;

use consensus::id::MemberId;
use consensus::membership::{ChangeError, Standing};

use super::handle::{MemberCommand, MemberError};
use super::member::Member;

/// The members, as the leader sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The voters, and the members that were added as voters.
    pub(super) voters: Vec<Voter>,
    pub(super) learners: BTreeSet<MemberId>,
    /// The learners that have nearly all committed entries.
    pub(super) in_sync: BTreeSet<MemberId>,
    /// `--strict-reconfig-check`.
    pub(super) is_strict: bool,
    pub(super) max_learners: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Voter {
    pub(super) id: MemberId,
    /// Whether a process has begun under this identity.
    pub(super) is_started: bool,
    /// Whether the leader reaches it.
    pub(super) is_connected: bool,
}

impl Member {
    /// Describes the members.
    pub(super) fn reconfiguration_view(&self) -> View {
        let mut view = View {
            is_strict: self.settings.strict_reconfig_check,
            max_learners: self.settings.max_learners,
            ..View::default()
        };
        let connected = self.transport.connected();
        let membership = self.replica.membership();
        for info in membership.members() {
            let id = info.id;
            match membership.standing(id) {
                Some(Standing::Learner) => {
                    view.learners.insert(id);
                    view.in_sync.extend(self.replica.has_log(id).then_some(id));
                }
                // It takes the place of a voter, which counts already.
                Some(Standing::Joining) if !membership.is_staged(id) => {}
                _ => view.voters.push(Voter {
                    id,
                    is_started: !info.name.is_empty(),
                    is_connected: id == self.id() || connected.contains(&id),
                }),
            }
        }
        view
    }
}

/// Checks a command. `allowed` says whether the change itself is possible.
pub(super) fn check(
    command: &MemberCommand,
    allowed: Result<(), ChangeError>,
    view: &View,
) -> Result<(), MemberError> {
    let strict = |check: &dyn Fn(&View) -> Result<(), MemberError>| match view.is_strict {
        true => check(view),
        false => Ok(()),
    };
    match command {
        MemberCommand::Add { is_learner, .. } => {
            strict(&|view| view.check_add(*is_learner))?;
            allowed?;
            match *is_learner && view.learners.len() >= view.max_learners {
                true => Err(MemberError::TooManyLearners),
                false => Ok(()),
            }
        }
        MemberCommand::Remove(id) => {
            if !view.learners.contains(id) {
                strict(&|view| view.check_remove(*id))?;
            }
            Ok(allowed?)
        }
        MemberCommand::Promote(id) => {
            let is_behind = view.learners.contains(id) && !view.in_sync.contains(id);
            if is_behind {
                return Err(MemberError::LearnerNotReady);
            }
            if view.learners.contains(id) {
                strict(&View::check_promote)?;
            } else if allowed.is_ok() {
                // It was added as a voter.
                return Err(MemberError::NotLearner);
            }
            Ok(allowed?)
        }
        MemberCommand::Update { .. } => Ok(allowed?),
    }
}

impl View {
    fn started(&self) -> usize {
        self.voters.iter().filter(|voter| voter.is_started).count()
    }

    fn connected(&self) -> usize {
        self.voters.iter().filter(|voter| voter.is_connected).count()
    }

    fn check_add(&self, is_learner: bool) -> Result<(), MemberError> {
        let after = self.voters.len() + 1;
        // A second member may always be added.
        let is_second = self.voters.len() == 1;
        if !is_learner && !is_second && self.started() < quorum(after) {
            return Err(MemberError::NotEnoughStarted);
        }
        match is_second || self.connected() >= quorum(after) {
            true => Ok(()),
            false => Err(MemberError::Unhealthy),
        }
    }

    fn check_remove(&self, id: MemberId) -> Result<(), MemberError> {
        let others = self.voters.iter().filter(|voter| voter.id != id);
        let (count, started) = (others.clone().count(), others.filter(|v| v.is_started).count());
        if started < quorum(count) {
            return Err(MemberError::NotEnoughStarted);
        }
        let is_connected = self.voters.iter().any(|voter| voter.id == id && voter.is_connected);
        let rest = self.voters.len().saturating_sub(1);
        // One that is not connected is no part of the quorum.
        match is_connected && self.connected() - 1 < 1 + rest / 2 {
            true => Err(MemberError::Unhealthy),
            false => Ok(()),
        }
    }

    /// The learner counts as a started voter.
    fn check_promote(&self) -> Result<(), MemberError> {
        match self.started() + 1 >= quorum(self.voters.len() + 1) {
            true => Ok(()),
            false => Err(MemberError::NotEnoughStarted),
        }
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    /// Members with the IDs from 1 on: `S` has started and is connected, `D` has started and is down, `N`
    /// was added and has not started, `L` is a learner in sync and `l` one that is not.
    fn view(members: &str) -> View {
        let mut view = View { is_strict: true, max_learners: 1, ..View::default() };
        for (number, kind) in (1..).zip(members.chars()) {
            let (is_started, is_connected) = (kind != 'N', kind == 'S');
            match kind {
                'L' | 'l' => drop(view.learners.insert(id(number))),
                _ => view.voters.push(Voter { id: id(number), is_started, is_connected }),
            }
            view.in_sync.extend((kind == 'L').then_some(id(number)));
        }
        view
    }

    fn add(is_learner: bool) -> MemberCommand {
        MemberCommand::Add { peer_urls: vec![], is_learner }
    }

    fn result(command: &MemberCommand, members: &str) -> Result<(), MemberError> {
        check(command, Ok(()), &view(members))
    }

    /// The results are those of etcd 3.7.3, but for the five seconds.
    #[test]
    fn a_change_that_may_cost_the_quorum_is_refused() {
        use MemberError::*;
        for (command, members, expected) in [
            (add(false), "S", None),
            (add(false), "SSS", None),
            (add(false), "SN", Some(NotEnoughStarted)),
            (add(false), "SSSN", None),
            (add(false), "SSNN", Some(NotEnoughStarted)),
            (add(false), "SSD", Some(Unhealthy)),
            (add(true), "S", None),
            (add(true), "SSD", Some(Unhealthy)),
            (add(true), "SSSl", Some(TooManyLearners)),
            (MemberCommand::Remove(id(1)), "S", Some(NotEnoughStarted)),
            (MemberCommand::Remove(id(1)), "SS", None),
            (MemberCommand::Remove(id(1)), "SN", Some(NotEnoughStarted)),
            (MemberCommand::Remove(id(2)), "SN", None),
            (MemberCommand::Remove(id(1)), "SSD", Some(Unhealthy)),
            (MemberCommand::Remove(id(3)), "SSD", None),
            (MemberCommand::Remove(id(4)), "SSDL", None),
            (MemberCommand::Promote(id(2)), "SL", None),
            (MemberCommand::Promote(id(2)), "Sl", Some(LearnerNotReady)),
            (MemberCommand::Promote(id(4)), "SNNL", Some(NotEnoughStarted)),
            (MemberCommand::Promote(id(2)), "SN", Some(NotLearner)),
        ] {
            let found = result(&command, members).err().map(|error| error.to_string());
            let expected = expected.map(|error| error.to_string());
            assert_eq!(found, expected, "{command:?} with {members}");
        }
        let lenient = View { is_strict: false, ..view("SNN") };
        assert!(check(&add(false), Ok(()), &lenient).is_ok());
        assert!(check(&MemberCommand::Remove(id(1)), Ok(()), &lenient).is_ok());
    }

    #[test]
    fn what_is_impossible_is_refused() {
        let exists = Err(ChangeError::PeerUrlExists(id(1)));
        let error = check(&add(true), exists, &view("SSSl")).unwrap_err();
        assert!(matches!(error, MemberError::PeerUrlExists));
        let missing = Err(ChangeError::NotFound(id(9)));
        for command in [MemberCommand::Remove(id(9)), MemberCommand::Promote(id(9))] {
            let error = check(&command, missing, &view("SSS")).unwrap_err();
            assert!(matches!(error, MemberError::NotFound), "{command:?}");
        }
    }
}
