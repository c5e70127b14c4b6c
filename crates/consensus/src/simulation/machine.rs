//! A small key-value store that is evaluated before it is replicated.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes};

use crate::id::Index;

pub(super) type Key = u8;
/// A value. Each write has another one; 0 means that there is no value.
pub(super) type Value = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Put { key: Key, value: Value },
    CompareAndPut { key: Key, expected: Value, value: Value },
}

/// The reply to a command: the value before it. It tells whether a compare has succeeded.
pub(super) type Reply = Value;

/// The effects of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effects {
    /// The revision on which the batch was evaluated.
    pub(super) previous: u64,
    pub(super) puts: Vec<(Key, Value)>,
}

/// The published state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) values: BTreeMap<Key, Value>,
    pub(super) revision: u64,
}

/// What undoes a batch.
struct Undo {
    /// The entry of the batch; `None` while it is not proposed.
    index: Option<Index>,
    state: State,
}

/// A state with batches that are evaluated and not committed.
#[derive(Default)]
pub(super) struct Machine {
    state: State,
    ahead: VecDeque<Undo>,
    pub(super) applied: Index,
}

impl State {
    pub(super) fn get(&self, key: Key) -> Value {
        self.values.get(&key).copied().unwrap_or_default()
    }

    /// Executes a command. Returns its effect and its reply.
    fn execute(&mut self, command: Command) -> (Option<(Key, Value)>, Reply) {
        let (key, value, expected) = match command {
            Command::Put { key, value } => (key, value, None),
            Command::CompareAndPut { key, expected, value } => (key, value, Some(expected)),
        };
        let before = self.get(key);
        if expected.is_some_and(|expected| expected != before) {
            return (None, before);
        }
        self.put(key, value);
        (Some((key, value)), before)
    }

    fn put(&mut self, key: Key, value: Value) {
        self.values.insert(key, value);
        self.revision += 1;
    }

    pub(super) fn evaluate(&mut self, commands: &[Command]) -> (Effects, Vec<Reply>) {
        let previous = self.revision;
        let results = commands.iter().map(|command| self.execute(*command));
        let (puts, replies): (Vec<_>, Vec<_>) = results.unzip();
        (Effects { previous, puts: puts.into_iter().flatten().collect() }, replies)
    }

    pub(super) fn apply(&mut self, effects: &Effects) -> Result<(), String> {
        if effects.previous != self.revision {
            let revision = self.revision;
            return Err(format!("effects of revision {} at {revision}", effects.previous));
        }
        effects.puts.iter().for_each(|(key, value)| self.put(*key, *value));
        Ok(())
    }
}

impl Machine {
    pub(super) fn new(state: State, applied: Index) -> Machine {
        Machine { state, applied, ..Machine::default() }
    }

    /// Evaluates a batch. It is undone by [`Machine::undo_unproposed`] until
    /// [`Machine::proposed`] is called.
    pub(super) fn evaluate(&mut self, commands: &[Command]) -> (Effects, Vec<Reply>) {
        self.ahead.push_back(Undo { index: None, state: self.state.clone() });
        self.state.evaluate(commands)
    }

    pub(super) fn proposed(&mut self, index: Index) -> Result<(), String> {
        match self.ahead.back_mut() {
            Some(undo) if undo.index.is_none() => undo.index = Some(index),
            _ => return Err(format!("the batch of entry {index} was undone before")),
        }
        Ok(())
    }

    pub(super) fn undo_unproposed(&mut self) {
        if self.ahead.back().is_some_and(|undo| undo.index.is_none()) {
            self.undo_last();
        }
    }

    /// Undoes all batches after an entry, and one that is not proposed. Returns their number.
    pub(super) fn undo_to(&mut self, index: Index) -> u64 {
        let before = self.ahead.len();
        self.undo_unproposed();
        while self.ahead.back().is_some_and(|undo| undo.index > Some(index)) {
            self.undo_last();
        }
        (before - self.ahead.len()) as u64
    }

    fn undo_last(&mut self) {
        if let Some(undo) = self.ahead.pop_back() {
            self.state = undo.state;
        }
    }

    pub(super) fn publish(&mut self, index: Index) -> Result<(), String> {
        match self.ahead.pop_front() {
            Some(undo) if undo.index == Some(index) => Ok(()),
            undo => {
                Err(format!("entry {index} is published instead of {:?}", undo.map(|u| u.index)))
            }
        }
    }

    pub(super) fn apply(&mut self, effects: &Effects) -> Result<(), String> {
        if !self.ahead.is_empty() {
            return Err("effects of another leader after evaluated ones".to_owned());
        }
        self.state.apply(effects)
    }

    /// Returns the state that readers see.
    pub(super) fn published(&self) -> &State {
        self.ahead.front().map_or(&self.state, |undo| &undo.state)
    }
}

impl Effects {
    pub(super) fn encode(&self) -> Bytes {
        let mut buf = Vec::new();
        buf.put_u64_le(self.previous);
        for (key, value) in &self.puts {
            buf.put_u8(*key);
            buf.put_u64_le(*value);
        }
        buf.into()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Effects {
        let previous = bytes.get_u64_le();
        let mut puts = Vec::new();
        while bytes.has_remaining() {
            puts.push((bytes.get_u8(), bytes.get_u64_le()));
        }
        Effects { previous, puts }
    }
}
