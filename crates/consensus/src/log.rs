//! The log in memory: the entries after the last compaction.
//!
//! The library reads its entries here. The caller stores the same entries on disk, if it has one
//! ([`crate::output::Write`]).

use std::collections::VecDeque;
use std::sync::Arc;

use raft::eraftpb;
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::entry::{HardState, Snapshot};
use crate::id::{Index, Position, Term};
use crate::membership::Membership;

/// Approximate size in bytes of an entry without its payload.
const ENTRY_OVERHEAD: u64 = 32;

pub(crate) struct Log {
    /// The entry before the first one.
    base: Position,
    entries: VecDeque<eraftpb::Entry>,
    hard_state: HardState,
    /// The last entry that the caller has applied.
    applied: Index,
    /// The members after `applied`.
    membership: Arc<Membership>,
}

impl Log {
    /// Creates the log of a replica whose state is `snapshot`. `entries` follow `base`, which is
    /// not after the snapshot.
    pub(crate) fn new(
        snapshot: &Snapshot,
        base: Position,
        entries: impl IntoIterator<Item = eraftpb::Entry>,
        hard_state: HardState,
    ) -> Log {
        Log {
            base,
            entries: entries.into_iter().collect(),
            hard_state,
            applied: snapshot.position.index,
            membership: Arc::new(snapshot.membership.clone()),
        }
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Notes that the caller's state is the one after `index`, with these members.
    pub(crate) fn set_applied(&mut self, index: Index, membership: Arc<Membership>) {
        (self.applied, self.membership) = (index, membership);
    }

    /// Returns the index of the last entry, or of the one before the first entry.
    pub(crate) fn last(&self) -> Index {
        self.base.index + self.entries.len() as u64
    }

    /// Returns the index of the entry before the first one.
    pub(crate) fn base(&self) -> Index {
        self.base.index
    }

    /// Appends entries; replaces those from the first one on.
    pub(crate) fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else { return };
        let kept = first.index.checked_sub(self.base.index + 1).expect("the entry is compacted");
        assert!(kept <= self.entries.len() as u64, "the log has a gap before {}", first.index);
        self.entries.truncate(kept as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// Replaces everything by a snapshot.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        self.entries.clear();
        self.base = snapshot.position;
    }

    /// Removes the entries up to `index`.
    pub(crate) fn compact(&mut self, index: Index) {
        let Ok(term) = self.term(index) else { return };
        self.entries.drain(..(index - self.base.index) as usize);
        self.base = Position { term, index };
    }

    fn get(&self, index: Index) -> Option<&eraftpb::Entry> {
        self.entries.get(index.checked_sub(self.base.index + 1)? as usize)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        let conf_state = self.membership.conf_state();
        Ok(RaftState::new(self.hard_state.to_raft(), conf_state))
    }

    fn entries(
        &self,
        low: Index,
        high: Index,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<eraftpb::Entry>> {
        if low <= self.base.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "{high} is after the last entry, {}", self.last());
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let start = (low - self.base.index - 1) as usize;
        let mut size = 0;
        let fits = |entry: &&eraftpb::Entry| {
            let first = size == 0;
            size += ENTRY_OVERHEAD + entry.data.len() as u64;
            first || size <= max_size
        };
        let range = self.entries.range(start..start + (high - low) as usize);
        Ok(range.take_while(fits).cloned().collect())
    }

    fn term(&self, index: Index) -> Result<Term> {
        if index == self.base.index {
            return Ok(self.base.term);
        }
        let missing = match index < self.base.index {
            true => StorageError::Compacted,
            false => StorageError::Unavailable,
        };
        self.get(index).map(|entry| entry.term).ok_or(Error::Store(missing))
    }

    fn first_index(&self) -> Result<Index> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> Result<Index> {
        Ok(self.last())
    }

    /// Describes the state after the last applied entry. The message describes the state that the
    /// caller has when it gets it ([`crate::Replica::describe_state`]).
    fn snapshot(&self, request_index: Index, _to: u64) -> Result<eraftpb::Snapshot> {
        if self.applied < request_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = eraftpb::Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.applied, self.term(self.applied)?);
        metadata.set_conf_state(self.membership.conf_state());
        Ok(snapshot)
    }
}
