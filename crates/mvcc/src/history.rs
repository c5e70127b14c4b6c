//! The history: the events since the last compaction, in order.

use std::collections::VecDeque;

use etcdpb::Record;

/// One change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// The record after the change; a tombstone if the key was deleted.
    pub record: Record,
    /// The record of the key at the revision before, if the key existed then.
    pub previous: Option<Record>,
}

impl Event {
    /// Returns the revision of the change.
    pub fn revision(&self) -> i64 {
        self.record.mod_revision()
    }

    /// Returns the size of the keys and values of both records in bytes.
    pub fn pair_bytes(&self) -> usize {
        let record_bytes = |r: &Record| r.key().len() + r.value().len();
        record_bytes(&self.record) + self.previous.as_ref().map_or(0, record_bytes)
    }
}

/// The events since the last compaction, oldest first.
#[derive(Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
}

impl History {
    pub(crate) fn push(&mut self, event: Event) {
        debug_assert!(self.events.back().is_none_or(|last| last.revision() <= event.revision()));
        self.events.push_back(event);
    }

    /// Returns the events of `revision` and later.
    pub(crate) fn since(&self, revision: i64) -> impl Iterator<Item = &Event> {
        let from = self.events.partition_point(|event| event.revision() < revision);
        self.events.range(from..)
    }

    /// Removes the oldest event.
    pub(crate) fn pop_front(&mut self) {
        self.events.pop_front();
        // Release the memory of a burst of events, but keep some capacity for new events.
        if self.events.capacity() > 4096 && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to(self.events.capacity() / 2);
        }
    }

    /// Removes and returns the newest event, if it is newer than `revision`.
    pub(crate) fn pop_newer(&mut self, revision: i64) -> Option<Event> {
        let is_newer = self.events.back().is_some_and(|event| event.revision() > revision);
        if is_newer { self.events.pop_back() } else { None }
    }

    /// Releases unused capacity.
    pub(crate) fn shrink(&mut self) {
        self.events.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the event at `position`, counted from the oldest.
    pub(crate) fn get(&self, position: usize) -> Option<&Event> {
        self.events.get(position)
    }
}
