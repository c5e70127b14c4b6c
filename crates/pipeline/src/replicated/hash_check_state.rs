//! What a member knows about its checks, and when they are due ([`super::hash_checks`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use consensus::id::MemberId;
use crossbeam_channel::{Receiver, Sender, unbounded};
use futures_channel::oneshot;

use crate::Error;
use crate::history_hash::HistoryHash;

/// When the leader checks the members. `None` means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashCheckIntervals {
    /// The interval between two checks of the current content.
    pub current: Option<Duration>,
    /// The interval between two checks whether there was a compaction, and then of the content at the
    /// compacted revision.
    pub compacted: Option<Duration>,
}

/// Where the result of a check goes that a member makes before it serves clients: the members with another
/// history.
pub(super) type Compared = oneshot::Sender<Vec<u64>>;

pub(super) enum Purpose {
    Current,
    Compacted,
    Start(Compared),
}

pub(super) struct Check {
    pub(super) number: u64,
    pub(super) purpose: Purpose,
    pub(super) own: Option<HistoryHash>,
    pub(super) answers: BTreeMap<MemberId, Result<HistoryHash, Error>>,
    pub(super) begun: Instant,
    /// When the others are asked again.
    pub(super) ask_at: Instant,
    /// When this member looks again whether all have answered.
    pub(super) look_at: Instant,
}

/// A hash that was computed on another thread.
pub(super) struct Hashed {
    pub(super) number: u64,
    /// The member that has asked for it; `None` if it is for a check of this member.
    pub(super) asker: Option<MemberId>,
    pub(super) result: Result<HistoryHash, Error>,
}

pub(super) struct HashChecks {
    pub(super) intervals: HashCheckIntervals,
    pub(super) next_current: Instant,
    pub(super) next_compacted: Instant,
    /// The last compacted revision at which all members were equal.
    pub(super) equal_at: i64,
    pub(super) check: Option<Check>,
    pub(super) last_number: u64,
    /// Members that get a hash when it is computed.
    pub(super) asking: BTreeSet<MemberId>,
    pub(super) sender: Sender<Hashed>,
    pub(super) hashed: Receiver<Hashed>,
}

impl HashChecks {
    pub(super) fn new(intervals: HashCheckIntervals, now: Instant) -> HashChecks {
        let (sender, hashed) = unbounded();
        HashChecks {
            intervals,
            next_current: now + intervals.current.unwrap_or_default(),
            next_compacted: now + intervals.compacted.unwrap_or_default(),
            equal_at: -1,
            check: None,
            last_number: 0,
            asking: BTreeSet::new(),
            sender,
            hashed,
        }
    }

    /// Returns the check that is due. `compacted` returns the compacted revision.
    pub(super) fn due(&mut self, compacted: impl FnOnce() -> i64, now: Instant) -> Option<Purpose> {
        if let Some(interval) = self.intervals.current.filter(|_| self.next_current <= now) {
            self.next_current = now + interval;
            return Some(Purpose::Current);
        }
        let interval = self.intervals.compacted.filter(|_| self.next_compacted <= now)?;
        self.next_compacted = now + interval;
        (compacted() > self.equal_at).then_some(Purpose::Compacted)
    }
}
