//! With which state a replica starts.

use crate::entry::{Content, Entry, HardState, Snapshot};
use crate::id::{ClusterId, Index, MemberId, Position};
use crate::identity::LogMode;
use crate::membership::{Change, MemberInfo, Membership};

/// The settings of a replica.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// The identity of this member ([`crate::identity::identity`]).
    pub member: MemberId,
    /// Which failures the log survives.
    pub mode: LogMode,
    /// Number of ticks between two heartbeats of a leader, at least 1.
    pub heartbeat_ticks: u32,
    /// Number of ticks without a leader after which a member may ask for votes. The actual number
    /// is random, up to twice as many. Must be greater than `heartbeat_ticks`; 10 times as many
    /// are usual.
    pub election_ticks: u32,
    /// A random number, different for each process. It determines the election timeouts, so the
    /// same seed and the same calls give the same results.
    pub seed: u64,
    /// Maximum size in bytes of the payloads that are proposed and not committed. One proposal is
    /// accepted whatever its size.
    pub max_uncommitted_bytes: u64,
    /// Approximate maximum size in bytes of the entries in a message. A message contains at least
    /// one entry whatever its size.
    pub max_message_bytes: u64,
    /// Maximum number of messages with entries that a member has not acknowledged.
    pub max_inflight_messages: usize,
}

/// The state with which a replica starts.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Describes the caller's state.
    pub snapshot: Snapshot,
    /// The entry before `entries`.
    pub base: Position,
    /// The stored entries. Those up to `snapshot` are already applied.
    pub entries: Vec<Entry>,
    /// The stored hard state.
    pub hard_state: HardState,
}

/// Why a replica cannot start.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StartError {
    /// The settings contradict each other.
    #[error("invalid settings: {0}")]
    Config(String),
    /// An entry is missing or in the wrong place.
    #[error("the log is damaged: entry {0} does not follow the one before it")]
    OutOfOrder(Index),
    /// The log and the state are from different histories, or entries are missing between them.
    #[error("the log does not contain entry {0}, which the state is based on")]
    OtherState(Index),
    /// The hard state is older than the log.
    #[error("the log contains term {0}, which is later than the stored term {1}")]
    OldTerm(u64, u64),
}

impl Start {
    /// Returns the state of a member that has nothing and waits until a leader sends it a
    /// snapshot.
    pub fn blank() -> Start {
        Start::default()
    }

    /// Returns the state of a member of a new cluster. All members must start with the same
    /// membership, and each identity may do so only once.
    pub fn new_cluster(membership: Membership) -> Start {
        let position = Position { term: 1, index: 1 };
        let snapshot = Snapshot { position, last_data: 0, membership };
        let hard_state = HardState { term: 1, vote: None, commit: 1 };
        Start { snapshot, base: position, entries: Vec::new(), hard_state }
    }

    /// Returns the state with which a member continues alone, because the others are lost. Everything in
    /// its log counts as committed: the lost members may have acknowledged it. Changes of the members in
    /// the log have no effect any more. The other members must never run again.
    pub fn force_new_cluster(mut self, own: MemberInfo) -> Start {
        self.snapshot.membership = Membership::of_voters([own]);
        for entry in &mut self.entries {
            if matches!(entry.content, Content::Change(_)) {
                entry.content = Content::Empty;
            }
        }
        self.hard_state.commit = self.base.index + self.entries.len() as u64;
        self
    }

    /// Returns all members that the state and the log name.
    pub fn known_members(&self) -> Vec<MemberInfo> {
        let added = self.entries.iter().filter_map(|entry| match &entry.content {
            Content::Change(Change::AddLearner(info) | Change::AddVoter(info)) => Some(info),
            _ => None,
        });
        self.snapshot.membership.members().chain(added).cloned().collect()
    }

    /// Checks that log, state and hard state belong together.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let mut before = self.base;
        for Entry { position, .. } in &self.entries {
            if position.index != before.index + 1 || position.term < before.term {
                return Err(StartError::OutOfOrder(position.index));
            }
            before = *position;
        }
        let state = self.snapshot.position;
        let entry = state.index.checked_sub(self.base.index + 1);
        let in_log = match entry {
            Some(entry) => self.entries.get(entry as usize).map(|entry| entry.position),
            None => Some(self.base),
        };
        if in_log != Some(state) {
            return Err(StartError::OtherState(state.index));
        }
        if before.term > self.hard_state.term {
            return Err(StartError::OldTerm(before.term, self.hard_state.term));
        }
        Ok(())
    }

    /// Returns the hard state with a commit index that the state and the log agree with: the stored
    /// one may lag behind the state, and may be written before an entry.
    pub(crate) fn hard_state(&self) -> HardState {
        let last = self.base.index + self.entries.len() as u64;
        let commit = self.hard_state.commit.clamp(self.snapshot.position.index, last);
        HardState { commit, ..self.hard_state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(terms: &[u64], state: Position, term: u64) -> Start {
        let entry = |(i, term): (usize, &u64)| Entry {
            position: Position { term: *term, index: 6 + i as u64 },
            content: Content::Empty,
        };
        Start {
            snapshot: Snapshot { position: state, ..Snapshot::default() },
            base: Position { term: 2, index: 5 },
            entries: terms.iter().enumerate().map(entry).collect(),
            hard_state: HardState { term, vote: None, commit: 100 },
        }
    }

    #[test]
    fn a_log_that_does_not_fit_is_refused() {
        let at = |term, index| Position { term, index };
        assert_eq!(start(&[2, 3], at(3, 7), 3).check(), Ok(()));
        assert_eq!(start(&[2, 3], at(2, 5), 4).check(), Ok(()));
        assert_eq!(start(&[3, 2], at(2, 5), 4).check(), Err(StartError::OutOfOrder(7)));
        assert_eq!(start(&[2, 3], at(2, 7), 3).check(), Err(StartError::OtherState(7)));
        assert_eq!(start(&[2, 3], at(3, 8), 3).check(), Err(StartError::OtherState(8)));
        assert_eq!(start(&[2, 3], at(2, 4), 3).check(), Err(StartError::OtherState(4)));
        assert_eq!(start(&[2, 3], at(2, 6), 2).check(), Err(StartError::OldTerm(3, 2)));
        assert_eq!(start(&[2, 3], at(2, 6), 3).hard_state().commit, 7);
    }

    #[test]
    fn a_member_that_continues_alone_keeps_its_log() {
        let info = |number: u64| MemberInfo {
            id: MemberId::new(number).unwrap(),
            name: number.to_string(),
            peer_urls: vec![],
            client_urls: vec![],
        };
        let mut start = start(&[2, 3], Position { term: 2, index: 5 }, 3);
        start.snapshot.membership = Membership::of_voters([info(1), info(2), info(3)]);
        start.entries[1].content = Content::Change(Change::AddLearner(info(4)));
        start.hard_state.commit = 6;
        assert_eq!(start.known_members(), [info(1), info(2), info(3), info(4)]);
        let forced = start.force_new_cluster(info(2));
        assert_eq!(forced.check(), Ok(()));
        assert_eq!(forced.snapshot.membership, Membership::of_voters([info(2)]));
        assert_eq!((forced.entries.len(), &forced.entries[1].content), (2, &Content::Empty));
        assert_eq!(forced.hard_state().commit, 7);
    }
}
