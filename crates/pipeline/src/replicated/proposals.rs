//! The batches that this member has evaluated as the leader and that are not committed: those that
//! its store contains, and those that were taken back and whose fate is not known.

use std::collections::VecDeque;
use std::time::Instant;

use consensus::id::{Index, Position};
use mvcc::Undo;

use crate::Error;
use crate::applier::{Evaluated, Replies};
use crate::submission::{Outcome, ReplyTo, Submission};

/// A batch whose changes the store contains.
pub(super) struct InFlight {
    pub(super) position: Position,
    pub(super) submissions: Vec<Submission>,
    pub(super) evaluated: Evaluated,
    pub(super) undo: Undo,
    /// The revision at which the batch has compacted.
    pub(super) compacted: Option<i64>,
    /// Size of the payload of its entry in bytes.
    pub(super) payload_bytes: usize,
}

/// A client and the reply that it gets if its batch is committed.
pub(super) type Waiting = (ReplyTo, Result<Outcome, Error>);

/// A batch that was taken back.
struct Undone {
    position: Position,
    waiting: Vec<Waiting>,
    deadline: Instant,
}

#[derive(Default)]
pub(super) struct Proposals {
    in_flight: VecDeque<InFlight>,
    undone: VecDeque<Undone>,
}

impl Proposals {
    /// Whether the store contains changes that are not committed.
    pub(super) fn is_ahead(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Number of batches whose changes the store contains and that are not committed.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the first revision whose history is needed to take batches back.
    pub(super) fn needed_revision(&self) -> i64 {
        self.in_flight.front().map_or(i64::MAX, |batch| batch.undo.compacted())
    }

    /// Adds a batch that was proposed.
    pub(super) fn push(&mut self, batch: InFlight) {
        self.in_flight.push_back(batch);
    }

    /// Returns the oldest batch, which is committed; `None` if it is at another position.
    pub(super) fn take_committed(&mut self, position: Position) -> Option<InFlight> {
        let is_first = self.in_flight.front().is_some_and(|batch| batch.position == position);
        is_first.then(|| self.in_flight.pop_front()).flatten()
    }

    /// Removes the newest batch that is after `index`, so that the store takes it back. Clients wait
    /// until its fate is known, or until `deadline`.
    pub(super) fn take_back(&mut self, index: Index, deadline: Instant) -> Option<Undo> {
        let is_after = self.in_flight.back().is_some_and(|batch| batch.position.index > index);
        let batch = is_after.then(|| self.in_flight.pop_back()).flatten()?;
        let InFlight { position, submissions, evaluated, undo, .. } = batch;
        let waiting = pair(submissions, evaluated.replies);
        // The newest batch is taken back first. All earlier undone ones are of earlier terms.
        let at = self.undone.partition_point(|undone| undone.position < position);
        self.undone.insert(at, Undone { position, waiting, deadline });
        Some(undo)
    }

    /// Returns the clients of a batch that was taken back, whose fate is known now.
    pub(super) fn take_undone(&mut self, position: Position) -> Vec<Waiting> {
        match self.undone.iter().position(|undone| undone.position == position) {
            Some(at) => self.undone.remove(at).expect("it is there").waiting,
            None => Vec::new(),
        }
    }

    /// Returns the clients that have waited for too long. Their batches may still be committed.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Waiting> {
        let mut expired = Vec::new();
        self.undone.retain_mut(|undone| {
            let has_expired = undone.deadline <= now;
            if has_expired {
                expired.append(&mut undone.waiting);
            }
            !has_expired
        });
        expired
    }

    /// Returns all clients, when the member stops.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        let in_flight = in_flight.flat_map(|b| pair(b.submissions, b.evaluated.replies));
        let undone = std::mem::take(&mut self.undone).into_iter().flat_map(|b| b.waiting);
        in_flight.chain(undone).collect()
    }
}

/// Pairs clients with replies.
pub(super) fn pair(submissions: Vec<Submission>, replies: Replies) -> Vec<Waiting> {
    submissions.into_iter().map(|submission| submission.reply).zip(replies).collect()
}
