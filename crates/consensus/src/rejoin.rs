//! Changes of the members that the leader makes by itself.
//!
//! **Replacing members that have lost their log.** The leader regularly dials the peer URLs of all
//! members. If it finds a new identity under the name of a member, the old identity does not exist any
//! more. The leader then adds the new one as a learner, waits until it has the log, and replaces the old
//! one by it in one step.
//!
//! **Starting members that were added by a command.** Such a member has an identity, but no name and no
//! process. The leader gives the identity to the first waiting process that it finds at the peer URLs
//! ([`Change::Claim`]). The process begins to speak under it when it learns this from the committed log, so
//! no two processes ever have the same identity. If the process is lost before or after that, its
//! successor is replaced like any other one.
//!
//! **Promoting voters.** A member that was added as a voter is a learner until it has the log. A voter
//! without a process would count for the majority, and the claim could never be committed in a cluster that
//! grows from one member to two.
//!
//! The steps are derived from the membership each time, so a new leader continues where the last one
//! stopped.

use std::collections::BTreeMap;

use crate::id::MemberId;
use crate::membership::{Change, MemberInfo, Membership};

/// What was found at the addresses of members, by name.
#[derive(Default)]
pub(crate) struct Rejoin {
    found: BTreeMap<String, Found>,
}

/// An identity that answered at the address of another one.
struct Found {
    /// The member at whose address it was found.
    expected: MemberId,
    info: MemberInfo,
}

impl Rejoin {
    /// Notes the identity that answered at the address of the member `expected`.
    pub(crate) fn on_identity(
        &mut self,
        expected: MemberId,
        info: MemberInfo,
        is_waiting: bool,
        membership: &Membership,
    ) {
        let Some(member) = membership.get(expected) else { return };
        // A process with another name is not that member: it does not join by itself.
        let is_restarted = member.name == info.name;
        let begins = member.name.is_empty() && is_waiting;
        if !info.name.is_empty() && (is_restarted || begins) {
            self.found.insert(info.name.clone(), Found { expected, info });
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
        let steps =
            self.found.values().filter_map(|found| next_step(found, membership, &is_caught_up));
        let promotions = membership.staged().filter(|id| is_caught_up(*id)).map(Change::Promote);
        // One that is refused must not stop those of other members.
        steps.chain(promotions).find(|change| membership.check(change).is_ok())
    }
}

fn next_step(
    Found { expected, info }: &Found,
    membership: &Membership,
    is_caught_up: impl Fn(MemberId) -> bool,
) -> Option<Change> {
    if membership.claims().values().any(|process| *process == info.id) {
        // It is about to speak under the identity that it got.
        return None;
    }
    if membership.get(*expected).is_some_and(|member| member.name.is_empty()) {
        return Some(Change::Claim { id: *expected, process: info.id, name: info.name.clone() });
    }
    let others = || membership.members().filter(|m| m.name == info.name && m.id != info.id);
    let old = others().find(|member| membership.is_voter(member.id));
    if let Some(stale) = others().find(|member| membership.is_learner(member.id)) {
        // If no voter has the name, the member was a learner. It is added before the old identity
        // is removed: without the name, it could not join any more.
        if membership.get(info.id).is_some() || old.is_some() {
            return Some(Change::Remove(stale.id));
        }
        return Some(match membership.is_staged(stale.id) {
            true => Change::AddVoter(info.clone()),
            false => Change::AddLearner(info.clone()),
        });
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

    /// Finds a process at the address of the first member with its name; others nowhere.
    fn find(rejoin: &mut Rejoin, info: MemberInfo, membership: &Membership) {
        let expected = membership.members().find(|member| member.name == info.name);
        let expected = expected.map_or(MemberId::new(1).unwrap(), |member| member.id);
        rejoin.on_identity(expected, info, true, membership);
    }

    fn ids(membership: &Membership) -> Vec<u64> {
        membership.members().map(|member| member.id.get()).collect()
    }

    #[test]
    fn a_restarted_voter_replaces_its_old_identity() {
        let mut membership = Membership::of_voters([info(1, "a"), info(2, "b"), info(3, "c")]);
        let mut rejoin = Rejoin::default();
        find(&mut rejoin, info(9, "unknown"), &membership);
        find(&mut rejoin, info(1, "a"), &membership);
        assert!(settle(&rejoin, &mut membership).is_empty());
        find(&mut rejoin, info(4, "c"), &membership);
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
        find(&mut rejoin, info(4, "c"), &membership);
        let first = rejoin.next_change(&membership, |_| false).unwrap();
        membership.apply(&first);
        assert_eq!(rejoin.next_change(&membership, |_| false), None);
        find(&mut rejoin, info(5, "c"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 2, 5]);
    }

    #[test]
    fn a_learner_that_does_not_exist_any_more_is_removed() {
        let mut membership = Membership::of_voters([info(1, "a"), info(2, "b")]);
        membership.apply(&Change::AddLearner(info(3, "b")));
        let mut rejoin = Rejoin::default();
        find(&mut rejoin, info(2, "b"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 2]);
    }

    #[test]
    fn a_restarted_learner_stays_a_learner() {
        let mut membership = Membership::of_voters([info(1, "a")]);
        membership.apply(&Change::AddLearner(info(2, "b")));
        let mut rejoin = Rejoin::default();
        find(&mut rejoin, info(3, "b"), &membership);
        settle(&rejoin, &mut membership);
        assert_eq!(ids(&membership), [1, 3]);
        assert!(membership.is_learner(MemberId::new(3).unwrap()));
    }

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    #[test]
    fn an_added_voter_gets_its_process_and_votes_when_it_has_the_log() {
        let mut membership = Membership::of_voters([info(1, "a")]);
        membership.apply(&Change::AddVoter(info(2, "")));
        let mut rejoin = Rejoin::default();
        assert_eq!(rejoin.next_change(&membership, |_| false), None);
        // A process that does not wait is another member, which has just been removed.
        rejoin.on_identity(id(2), info(7, "b"), false, &membership);
        assert_eq!(rejoin.next_change(&membership, |_| false), None);
        rejoin.on_identity(id(2), info(8, "b"), true, &membership);
        let claim = Change::Claim { id: id(2), process: id(8), name: "b".to_owned() };
        assert_eq!(rejoin.next_change(&membership, |_| false), Some(claim.clone()));
        membership.apply(&claim);
        assert_eq!(rejoin.next_change(&membership, |_| false), None);
        assert_eq!(settle(&rejoin, &mut membership), [Change::Promote(id(2))]);
        assert_eq!(membership.voters().len(), 2);
    }

    #[test]
    fn the_successor_of_a_process_that_was_lost_before_it_voted_gets_another_identity() {
        for votes in [true, false] {
            let mut membership = Membership::of_voters([info(1, "a")]);
            membership.apply(&match votes {
                true => Change::AddVoter(info(2, "")),
                false => Change::AddLearner(info(2, "")),
            });
            membership.apply(&Change::Claim { id: id(2), process: id(8), name: "b".to_owned() });
            let mut rejoin = Rejoin::default();
            rejoin.on_identity(id(2), info(9, "b"), true, &membership);
            settle(&rejoin, &mut membership);
            assert_eq!(ids(&membership), [1, 9]);
            assert_eq!(membership.is_voter(id(9)), votes);
        }
    }

    #[test]
    fn a_process_with_the_name_of_another_member_does_not_replace_it() {
        let mut membership = Membership::of_voters([info(1, "a")]);
        membership.apply(&Change::AddLearner(info(2, "")));
        let mut rejoin = Rejoin::default();
        rejoin.on_identity(id(2), info(8, "a"), true, &membership);
        assert_eq!(settle(&rejoin, &mut membership), []);
    }
}
