//! Which members differ, by the hashes of their histories.

use std::collections::{BTreeMap, BTreeSet};

use consensus::id::MemberId;

use crate::history_hash::HistoryHash;

/// The ID of the member in an alarm that concerns all members, as in etcd.
pub(super) const ALL_MEMBERS: u64 = 0;

/// What a comparison has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// The members with the same history as this one, among the others.
    pub(super) equal: BTreeSet<MemberId>,
    /// The members with another history than this one.
    pub(super) different: BTreeSet<MemberId>,
    /// The members whose history is not that of a majority. If no history is, nobody knows which one is right:
    /// all members are then suspicious.
    pub(super) suspicious: BTreeSet<u64>,
}

/// Compares the hash of this member with those of others. Hashes whose histories begin at different compacted
/// revisions say nothing. `members` is the number of all members.
pub(super) fn compare(
    own: MemberId,
    hash: &HistoryHash,
    others: &BTreeMap<MemberId, HistoryHash>,
    members: usize,
) -> Comparison {
    let is_comparable = |other: &HistoryHash| {
        (other.revision, other.compact_revision) == (hash.revision, hash.compact_revision)
    };
    let mut by_hash = BTreeMap::from([(hash.hash, BTreeSet::from([own]))]);
    let mut comparison = Comparison::default();
    for (id, other) in others.iter().filter(|(_, other)| is_comparable(other)) {
        by_hash.entry(other.hash).or_default().insert(*id);
        match other.hash == hash.hash {
            true => comparison.equal.insert(*id),
            false => comparison.different.insert(*id),
        };
    }
    if by_hash.len() > 1 {
        let is_majority = |ids: &BTreeSet<MemberId>| ids.len() > members / 2;
        comparison.suspicious = match by_hash.values().any(is_majority) {
            true => by_hash
                .values()
                .filter(|ids| !is_majority(ids))
                .flatten()
                .map(|id| id.get())
                .collect(),
            false => BTreeSet::from([ALL_MEMBERS]),
        };
    }
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MemberId {
        MemberId::new(number).unwrap()
    }

    fn hash(hash: u32, compact_revision: i64) -> HistoryHash {
        HistoryHash { hash, compact_revision, revision: 100, current: 120 }
    }

    /// Compares the hash 7 of member 1 with those of the members from 2 on, of as many members.
    fn compared(others: &[(u32, i64)]) -> Comparison {
        let others: BTreeMap<_, _> = (2..)
            .zip(others)
            .map(|(number, (h, compacted))| (id(number), hash(*h, *compacted)))
            .collect();
        compare(id(1), &hash(7, 50), &others, others.len() + 1)
    }

    #[test]
    fn the_minority_is_suspicious() {
        assert_eq!(compared(&[(7, 50), (7, 50)]).suspicious, BTreeSet::new());
        assert_eq!(compared(&[(8, 50), (7, 50)]).suspicious, BTreeSet::from([2]));
        assert_eq!(compared(&[(8, 50), (8, 50)]).suspicious, BTreeSet::from([1]));
        assert_eq!(compared(&[(8, 50), (9, 50)]).suspicious, BTreeSet::from([ALL_MEMBERS]));
        assert_eq!(compared(&[(8, 50)]).suspicious, BTreeSet::from([ALL_MEMBERS]));
        let five = compared(&[(7, 50), (8, 50), (7, 50), (9, 50)]);
        assert_eq!(five.suspicious, BTreeSet::from([3, 5]));
        assert_eq!(five.different, BTreeSet::from([id(3), id(5)]));
        assert_eq!(five.equal, BTreeSet::from([id(2), id(4)]));
    }

    #[test]
    fn histories_that_begin_elsewhere_are_not_compared() {
        assert_eq!(compared(&[(8, 49), (9, -1)]), Comparison::default());
        let two = compared(&[(8, 50), (7, 49)]);
        assert_eq!(two.suspicious, BTreeSet::from([ALL_MEMBERS]), "one of three is no majority");
        let mut other = hash(8, 50);
        other.revision += 1;
        let others = BTreeMap::from([(id(2), other)]);
        assert_eq!(compare(id(1), &hash(7, 50), &others, 2), Comparison::default());
    }
}
