//! Replacing members that have lost their log.
//!
//! The leader regularly dials the peer URLs of all members. If it finds a new identity under the
//! name of a member, the old identity does not exist any more. The leader then adds the new one as
//! a learner, waits until it has the log, and replaces the old one by it in one step.
//!
//! An operator could do the same with member commands. The steps are derived from the membership
//! each time, so a new leader continues where the last one stopped.

use std::collections::BTreeMap;

use crate::id::MemberId;
use crate::membership::{Change, MemberInfo, Membership};

/// The identities that were found at the addresses of members, by name.
#[derive(Default)]
pub(crate) struct Rejoin {
    found: BTreeMap<String, MemberInfo>,
}

impl Rejoin {
    /// Notes the identity that answered at the address of a member.
    pub(crate) fn on_identity(&mut self, info: MemberInfo, membership: &Membership) {
        // Unknown members do not join by themselves.
        if membership.members().any(|member| member.name == info.name) {
            self.found.insert(info.name.clone(), info);
        }
    }

    /// Forgets everything. What a new leader found before it led may be outdated: another leader
    /// may have replaced the members that it found.
    pub(crate) fn clear(&mut self) {
        self.found.clear();
    }

    /// Returns the next change to propose. `is_caught_up` says whether a learner has the log.
    pub(crate) fn next_change(
        &self,
        membership: &Membership,
        is_caught_up: impl Fn(MemberId) -> bool,
    ) -> Option<Change> {
        if membership.is_joint() {
            return Some(Change::LeaveJoint);
        }
        let mut steps =
            self.found.values().filter_map(|info| next_step(info, membership, &is_caught_up));
        // One that is refused must not stop those of other members.
        steps.find(|change| membership.check(change).is_ok())
    }
}

fn next_step(
    info: &MemberInfo,
    membership: &Membership,
    is_caught_up: impl Fn(MemberId) -> bool,
) -> Option<Change> {
    let others = || membership.members().filter(|m| m.name == info.name && m.id != info.id);
    let old = others().find(|member| membership.is_voter(member.id));
    if let Some(stale) = others().find(|member| membership.is_learner(member.id)) {
        // If no voter has the name, the member was a learner. It is added before the old identity
        // is removed: without the name, it could not join any more.
        if membership.get(info.id).is_some() || old.is_some() {
            return Some(Change::Remove(stale.id));
        }
        return Some(Change::AddLearner(info.clone()));
    }
    let old = old?;
    match membership.get(info.id) {
        None => Some(Change::AddLearner(info.clone())),
        Some(_) if membership.is_learner(info.id) && is_caught_up(info.id) => {
            Some(Change::Replace { old: old.id, new: info.id })
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(number: u64, name: &str) -> MemberInfo {
        let id = MemberId::new(number).unwrap();
        MemberInfo { id, name: name.to_owned(), peer_urls: vec![], client_urls: vec![] }
    }

    /// Makes all changes until there are no more. Returns them.
    fn settle(rejoin: &Rejoin, membership: &mut Membership) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(change) = rejoin.next_change(membership, |_| true) {
            membership.check(&change).unwrap();
            membership.apply(&change);
            changes.push(change);
            assert!(changes.len() < 10, "{changes:?}");
        }
        changes
    }

    fn ids(membership: &Membership) -> Vec<u64> {
        membership.members().map(|member| member.id.get()).collect()
    }

    #[test]
    fn a_restarted_voter_replaces_its_old_identity() {
        let mut membership = Membership::of_voters([info(1, "a"), info(2, "b"), info(3, "c")]);
        let mut rejoin = Rejoin::default();
        rejoin.on_identity(info(9, "unknown"), &membership);
        rejoin.on_identity(info(1, "a"), &membership);
        assert!(settle(&rejoin, &mut membership).is_empty());
        rejoin.on_identity(info(4, "c"), &membership);
        assert_eq!(
            rejoin.next_change(&membership, |_| false),
            Some(Change::AddLearner(info(4, "c")))
        );
        assert_eq!(settle(&rejoin, &mut membership).len(), 3);
        assert_eq!(ids(&membership), [1, 2, 4]);
        assert!(membership.is_voter(MemberId::new(4).unwrap()));
    }

    #[test]
    fn a_member_may_restart_again_before_it_is_replaced() {
        let mut membership = Membership::of_voters([info(1, "a"), info(2, "b"), info(3, "c")]);
        let mut rejoin = Rejoin::default();
        rejoin.on_identity(info(4, "c"), &membership);
        let first = rejoin.next_change(&membership, |_| false).unwrap();
        membership.apply(&first);
        assert_eq!(rejoin.next_change(&membership, |_| false), None);
        rejoin.on_identity(info(5, "c"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 2, 5]);
    }

    #[test]
    fn a_learner_that_does_not_exist_any_more_is_removed() {
        let mut membership = Membership::of_voters([info(1, "a"), info(2, "b")]);
        membership.apply(&Change::AddLearner(info(3, "b")));
        let mut rejoin = Rejoin::default();
        rejoin.on_identity(info(2, "b"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 2]);
    }

    #[test]
    fn a_restarted_learner_stays_a_learner() {
        let mut membership = Membership::of_voters([info(1, "a")]);
        membership.apply(&Change::AddLearner(info(2, "b")));
        let mut rejoin = Rejoin::default();
        rejoin.on_identity(info(3, "b"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 3]);
        assert!(membership.is_learner(MemberId::new(3).unwrap()));
    }
}
