//! A read of history for one unsynced watcher.

use std::sync::Arc;

use mvcc::Event;

use crate::delivery::HistoryPosition;
use crate::memory::{Charge, QueueMemory};
use crate::watch::Watch;

/// A read of history that has not reached the end of a revision. Large revisions are read in
/// several steps.
pub(crate) struct HistoryRead {
    pub(crate) watch_id: i64,
    pub(crate) watch: Arc<Watch>,
    pub(crate) next: HistoryPosition,
    /// The events so far.
    pub(crate) events: Vec<Event>,
    /// Counts the memory of the events.
    charge: Option<Charge>,
}

impl HistoryRead {
    /// Starts a read of the events from the revision `from` on.
    pub(crate) fn new(watch_id: i64, watch: Arc<Watch>, from: i64) -> Self {
        let next = HistoryPosition::start_of(from);
        HistoryRead { watch_id, watch, next, events: Vec::new(), charge: None }
    }

    /// Returns the memory of the events in bytes. The history has their records.
    pub(crate) fn bytes(&self) -> usize {
        self.events.capacity() * size_of::<Event>()
    }

    /// Counts the memory of the events.
    pub(crate) fn count(&mut self, memory: &Arc<QueueMemory>) {
        self.charge = Some(Charge::new(memory, self.bytes()));
    }
}
