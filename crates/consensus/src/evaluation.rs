//! Evaluation before replication: what a leader has evaluated and proposed, but not committed.
//!
//! A leader evaluates commands once, on the state after everything that it has evaluated before,
//! and proposes their effects. So its state runs ahead of the commit index. The rules that make
//! this sound:
//!
//! 1. A leader evaluates nothing before the first entry of its term is committed and applied: until
//!    then, its state may lack entries of earlier leaders.
//! 2. A permission to evaluate ([`Evaluation`]) names the state: the term, and the last evaluated
//!    batch. A proposal with an outdated permission is refused, and the caller undoes the batch.
//! 3. When a leader loses its leadership, it undoes at once everything that is not committed. If
//!    an entry is committed later after all, its effects are applied as on a follower.
//! 4. A batch is never proposed twice. What became of it is known when an entry with its index is
//!    committed: the same term means it is this batch, because a term has one leader.

use std::collections::VecDeque;

use crate::fault::{Fault, is_active};
use crate::id::{Index, Position, Term};

/// The permission to evaluate a batch of commands. It is valid until the next batch is proposed,
/// and as long as the replica is the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The term of the leader.
    pub(crate) term: Term,
    /// The last entry with data that was evaluated or applied before.
    pub(crate) previous: Index,
}

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed, and [`crate::output::Output::committed`] contains it.
    Committed,
    /// Another entry took its place. It has had no effect and never will.
    Lost,
    /// Unknown: a snapshot replaced the log. Clients get an error that says so.
    Unknown,
}

/// Why a leader may not evaluate commands, or may not propose what it has evaluated.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotReady {
    /// This replica is not the leader.
    #[error("not the leader")]
    NotLeader,
    /// The leader has not applied the first entry of its term.
    #[error("the leader has not applied all entries of earlier leaders")]
    NotCaughtUp,
    /// The leadership is being transferred.
    #[error("the leadership is being transferred")]
    Transferring,
    /// Too much is proposed and not committed.
    #[error("too many uncommitted entries")]
    TooManyUncommitted,
    /// The batch was evaluated on another state.
    #[error("the state has changed since the evaluation began")]
    Stale,
}

/// The batches that this replica has evaluated.
#[derive(Default)]
pub(crate) struct Evaluations {
    /// Batches that the caller's state contains and that are not committed.
    ahead: VecDeque<Position>,
    /// Batches that were undone and whose fate is not known.
    undone: VecDeque<Position>,
    /// The last entry with data that was committed.
    last_committed: Index,
}

impl Evaluations {
    pub(crate) fn new(last_data: Index) -> Evaluations {
        Evaluations { last_committed: last_data, ..Evaluations::default() }
    }

    /// Returns the last entry with data that was committed.
    pub(crate) fn last_committed(&self) -> Index {
        self.last_committed
    }

    /// The last entry with data on which the next batch is evaluated.
    pub(crate) fn previous(&self) -> Index {
        self.ahead.back().map_or(self.last_committed, |position| position.index)
    }

    /// Whether batches are evaluated and not committed.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Notes that a batch was evaluated and proposed.
    pub(crate) fn push(&mut self, position: Position) {
        self.ahead.push_back(position);
    }

    /// Notes that the caller undoes all batches that are not committed.
    pub(crate) fn undo(&mut self) {
        self.undone.extend(self.ahead.drain(..));
    }

    /// Notes that an entry is committed. `is_data` says whether it has data. Adds the outcomes
    /// that are known now to `outcomes`. Returns whether the caller's state contains the effects
    /// already.
    pub(crate) fn commit(
        &mut self,
        position: Position,
        is_data: bool,
        outcomes: &mut Vec<(Position, Outcome)>,
    ) -> bool {
        if is_data {
            self.last_committed = position.index;
        }
        while let Some(own) = pop_through(&mut self.undone, position.index) {
            let same_index = own.index == position.index && is_active(Fault::OutcomeByIndex);
            let is_committed = own == position || same_index;
            outcomes.push((own, if is_committed { Outcome::Committed } else { Outcome::Lost }));
        }
        let evaluated = self.ahead.front() == Some(&position);
        if evaluated {
            self.ahead.pop_front();
            outcomes.push((position, Outcome::Committed));
        }
        evaluated
    }

    /// Notes that a snapshot replaces the log up to `index`.
    pub(crate) fn restore(
        &mut self,
        last_data: Index,
        index: Index,
        outcomes: &mut Vec<(Position, Outcome)>,
    ) {
        self.last_committed = last_data;
        while let Some(own) = pop_through(&mut self.undone, index) {
            outcomes.push((own, Outcome::Unknown));
        }
    }
}

/// Removes the first position if its index is at most `index`.
fn pop_through(positions: &mut VecDeque<Position>, index: Index) -> Option<Position> {
    let first = positions.front().copied().filter(|first| first.index <= index)?;
    positions.pop_front();
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: Term, index: Index) -> Position {
        Position { term, index }
    }

    #[test]
    fn a_batch_is_committed_only_with_its_term() {
        let mut evaluations = Evaluations::new(3);
        assert_eq!(evaluations.previous(), 3);
        [4, 5, 6].into_iter().for_each(|index| evaluations.push(at(2, index)));
        assert_eq!(evaluations.previous(), 6);
        let mut outcomes = Vec::new();
        assert!(evaluations.commit(at(2, 4), true, &mut outcomes));
        evaluations.undo();
        assert_eq!(evaluations.previous(), 4);
        // Entry 5 is committed by the next leader; entry 6 is replaced by its first entry.
        assert!(!evaluations.commit(at(2, 5), true, &mut outcomes));
        assert!(!evaluations.commit(at(3, 6), false, &mut outcomes));
        let expected = [
            (at(2, 4), Outcome::Committed),
            (at(2, 5), Outcome::Committed),
            (at(2, 6), Outcome::Lost),
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(evaluations.previous(), 5);
    }

    #[test]
    fn after_a_snapshot_the_outcome_is_unknown() {
        let mut evaluations = Evaluations::new(0);
        evaluations.push(at(2, 4));
        evaluations.undo();
        let mut outcomes = Vec::new();
        evaluations.restore(9, 9, &mut outcomes);
        assert_eq!(outcomes, [(at(2, 4), Outcome::Unknown)]);
        assert_eq!(evaluations.previous(), 9);
    }
}
