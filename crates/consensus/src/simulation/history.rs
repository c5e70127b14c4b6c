//! What must hold: the committed entries, and what clients have seen.
//!
//! The committed log is a witness of the order of all operations. A write has the place of its
//! entry; a read has the place of the last entry that was applied when it was served. If these
//! places agree with real time (an operation that began after another one had ended has a later
//! place), and each reply is the one that a single machine gives at this place, the history is
//! linearizable.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::machine::{Command, Effects, Key, Reply, State, Value};
use crate::id::{Index, MemberId, Position, Term};
use crate::membership::Membership;

/// The place of an operation: an index, and a number within the entry.
type Place = (Index, usize);

/// When an operation began: all places of operations that had ended before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began(Place);

/// A committed entry.
struct Reference {
    position: Position,
    content: ReferenceContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReferenceContent {
    Empty,
    Data(Bytes),
    Members(Membership),
}

/// A batch that a leader has proposed.
struct Batch {
    commands: Vec<Command>,
    payload: Bytes,
}

#[derive(Default)]
pub(super) struct History {
    /// The committed entries from index `first` on.
    log: Vec<Reference>,
    first: Index,
    /// The state after the committed entries.
    state: State,
    /// For each key, its values and the entries that wrote them.
    values: BTreeMap<Key, Vec<(Index, Value)>>,
    /// The replies of the committed batches.
    replies: BTreeMap<Index, Vec<Reply>>,
    batches: BTreeMap<Position, Batch>,
    /// Where leaders have proposed changes of the members.
    changes: BTreeSet<Position>,
    leaders: BTreeMap<Term, MemberId>,
    membership: Membership,
    /// The latest place of an operation that has ended.
    ended: Place,
    pub(super) writes: u64,
    pub(super) reads: u64,
}

impl History {
    pub(super) fn new(first: Index, membership: Membership) -> History {
        History { first, membership, ended: (first - 1, 0), ..History::default() }
    }

    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(super) fn last(&self) -> Index {
        self.first + self.log.len() as u64 - 1
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// A term has one leader.
    pub(super) fn on_leader(&mut self, term: Term, leader: MemberId) -> Result<(), String> {
        let first = *self.leaders.entry(term).or_insert(leader);
        let same = first == leader;
        same.then_some(()).ok_or_else(|| format!("{first} and {leader} lead term {term}"))
    }

    pub(super) fn on_proposed(&mut self, position: Position, commands: &[Command], payload: Bytes) {
        self.batches.insert(position, Batch { commands: commands.to_vec(), payload });
    }

    pub(super) fn on_change_proposed(&mut self, position: Position) {
        self.changes.insert(position);
    }

    /// The payload of a batch.
    pub(super) fn payload(&self, position: Position) -> Option<Bytes> {
        self.batches.get(&position).map(|batch| batch.payload.clone())
    }

    /// All members have the same entries.
    pub(super) fn on_committed(
        &mut self,
        position: Position,
        content: ReferenceContent,
    ) -> Result<(), String> {
        let index = position.index - self.first;
        if let Some(known) = self.log.get(index as usize) {
            let same = known.position == position && known.content == content;
            return same.then_some(()).ok_or_else(|| {
                format!("{:?} and {position:?} are committed with the same index", known.position)
            });
        }
        if index as usize != self.log.len() {
            return Err(format!("{position:?} is committed after {}", self.last()));
        }
        match &content {
            ReferenceContent::Empty if self.changes.contains(&position) => {
                return Err(format!("the change of the members at {position:?} became nothing"));
            }
            ReferenceContent::Empty => {}
            ReferenceContent::Members(membership) => self.membership = membership.clone(),
            ReferenceContent::Data(payload) => self.execute(position, payload.clone())?,
        }
        self.log.push(Reference { position, content });
        Ok(())
    }

    /// A batch has the effects that it has on the state before it.
    fn execute(&mut self, position: Position, payload: Bytes) -> Result<(), String> {
        let Some(batch) = self.batches.get(&position) else {
            return Err(format!("{position:?} is committed, but nobody has proposed it"));
        };
        let (effects, replies) = self.state.evaluate(&batch.commands);
        if effects.encode() != payload {
            let stored = Effects::decode(payload);
            return Err(format!("{position:?} has the effects {stored:?} instead of {effects:?}"));
        }
        for (key, value) in effects.puts {
            self.values.entry(key).or_default().push((position.index, value));
        }
        self.replies.insert(position.index, replies);
        Ok(())
    }

    pub(super) fn begin(&self) -> Began {
        Began(self.ended)
    }

    /// A client has got the reply to a write, which is number `offset` of its batch.
    pub(super) fn on_written(
        &mut self,
        began: Began,
        position: Position,
        offset: usize,
        reply: Reply,
    ) -> Result<(), String> {
        self.writes += 1;
        let index = position.index;
        let committed = self.log.get((index - self.first) as usize).map(|entry| entry.position);
        if committed != Some(position) {
            return Err(format!("a write at {position:?} was acknowledged, not {committed:?}"));
        }
        let expected = self.replies.get(&index).and_then(|replies| replies.get(offset)).copied();
        if expected != Some(reply) {
            return Err(format!("the reply at {position:?} is {reply}, not {expected:?}"));
        }
        let place = (index, offset);
        if place <= began.0 {
            return Err(format!("a write at {place:?} began after {began:?}"));
        }
        self.ended = self.ended.max(place);
        Ok(())
    }

    /// A client has got the reply to a read, from the state after entry `applied`.
    pub(super) fn on_read(
        &mut self,
        began: Began,
        key: Key,
        applied: Index,
        value: Value,
    ) -> Result<(), String> {
        self.reads += 1;
        let values = self.values.get(&key).map_or(&[][..], Vec::as_slice);
        let expected = values.iter().rev().find(|(index, _)| *index <= applied);
        let expected = expected.map_or(0, |(_, value)| *value);
        if applied > self.last() || expected != value {
            return Err(format!("key {key} is {value} after {applied}, not {expected}"));
        }
        let place = (applied, usize::MAX);
        if place < began.0 {
            return Err(format!("a read saw entry {applied}, but began after {began:?}"));
        }
        self.ended = self.ended.max(place);
        Ok(())
    }

    /// A proposal of which it was said that it has no effect is not in the log.
    pub(super) fn on_lost(&self, position: Position) -> Result<(), String> {
        let entry = position.index.checked_sub(self.first);
        let committed = entry.and_then(|entry| self.log.get(entry as usize));
        let is_committed = committed.is_some_and(|entry| entry.position == position);
        (!is_committed).then_some(()).ok_or_else(|| format!("{position:?} is committed, not lost"))
    }
}
