//! The mailbox of a stream: its queue, and the state of its watchers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::batch::{Batch, Events};
use crate::delivery::Delivery;
use crate::history_read::HistoryRead;
use crate::memory::QueueMemory;
use crate::watch::Watch;

/// The default maximum number of events in the queue of a stream.
pub const QUEUE_EVENTS: usize = 8192;

/// Maximum memory of the queue of a stream in bytes, with the events in it. Queued events keep
/// their records in memory even after a compaction.
const MAX_QUEUE_BYTES: usize = 8 << 20;

/// Memory of an entry of the queue in bytes, without its events. A queue has capacity for at
/// most twice its entries.
const ENTRY_BYTES: usize = 2 * size_of::<QueueEntry>();

/// The capacity of a queue that an empty queue keeps.
const KEPT_ENTRIES: usize = 16;

/// The queue of a stream with the state of its watchers. The hub appends events; the
/// stream takes deliveries out.
pub(crate) struct Mailbox {
    /// Maximum number of events in the queue.
    max_events: usize,
    /// Counts the memory of all queues.
    pub(crate) memory: Arc<QueueMemory>,
    state: Mutex<MailboxState>,
    /// Wakes the owner of the stream.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct MailboxState {
    /// The watchers by watch ID.
    pub(crate) watchers: HashMap<i64, Watcher>,
    /// Memory of the watches in bytes.
    pub(crate) watch_bytes: usize,
    next_id: i64,
    pub(crate) queue: VecDeque<QueueEntry>,
    /// Number of events in the queue.
    queued_events: usize,
    /// Memory of the queue in bytes, with its batches.
    queued_bytes: usize,
    /// Whether the client has requested a progress notification that is not yet queued.
    pub(crate) progress_requested: bool,
    /// The unsynced watchers: the revision from which each reads history, and its watch
    /// ID.
    pub(crate) unsynced: BTreeSet<(i64, i64)>,
    /// The read of history that has not reached the end of a revision.
    pub(crate) history_read: Option<HistoryRead>,
    /// The watchers that were created with a start revision in the future: this revision, and
    /// the watch ID. The revision may have been published since.
    future: BTreeSet<(i64, i64)>,
    /// The watchers that get periodic progress notifications.
    pub(crate) notified: BTreeSet<i64>,
    /// The first watch ID that has not been checked for a periodic progress notification;
    /// `None` if all have been checked.
    pub(crate) next_progress: Option<i64>,
}

/// A watcher of a stream.
pub(crate) struct Watcher {
    pub(crate) watch: Arc<Watch>,
    pub(crate) sync: SyncState,
    /// Whether the watcher has received events since the last periodic progress
    /// notification.
    pub(crate) received_events: bool,
}

/// Where a watcher gets its events from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SyncState {
    /// From publications. `slot` is the subscription in the group of its span
    /// ([`crate::hub`]).
    Synced { slot: usize },
    /// From history, starting at this revision, the first that was not queued for it. It has no
    /// subscription, so publications do not visit it.
    Unsynced { from: i64 },
}

/// An entry of the queue. Events are queued as they were published, shared with the other
/// watchers of the span. Filters are applied when the entry is taken out.
pub(crate) enum QueueEntry {
    Message(Delivery),
    Events { watch_id: i64, watch: Arc<Watch>, batch: Batch },
}

impl QueueEntry {
    /// Returns the number of events, and the memory of entry and events in bytes, of which the
    /// events may be shared with other queues.
    fn size(&self) -> (usize, usize) {
        match self {
            QueueEntry::Message(_) => (0, ENTRY_BYTES),
            QueueEntry::Events { batch, .. } => (batch.events().len(), ENTRY_BYTES + batch.bytes()),
        }
    }
}

impl Mailbox {
    pub(crate) fn new(
        max_events: usize,
        memory: Arc<QueueMemory>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Mailbox { max_events, memory, state: Mutex::default(), wake: Box::new(wake) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock()
    }

    /// Wakes the owner of the stream.
    pub(crate) fn wake(&self) {
        (self.wake)();
    }

    /// Queues a batch for a synced watcher, or makes the watcher unsynced if the batch
    /// does not fit. Returns false in this case: the subscription ends. The caller has locked
    /// the hub.
    pub(crate) fn queue_events(&self, watch_id: i64, batch: &Batch) -> bool {
        let mut state = self.state.lock();
        let Some(watcher) = state.watchers.get(&watch_id) else { return true };
        let watch = watcher.watch.clone();
        let entry = QueueEntry::Events { watch_id, watch, batch: batch.clone() };
        if !self.fits(&state, &entry) {
            drop(state);
            return !self.make_unsynced(watch_id, batch.events()[0].revision());
        }
        self.push(&mut state, entry);
        drop(state);
        self.wake();
        true
    }

    fn fits(&self, state: &MailboxState, entry: &QueueEntry) -> bool {
        let (events, bytes) = entry.size();
        let bytes = state.queued_bytes + bytes;
        state.queued_events + events <= self.max_events
            && bytes <= MAX_QUEUE_BYTES
            && self.memory.admits(bytes)
    }

    /// Makes a synced watcher read its events from `revision` on from history. Returns false,
    /// and changes nothing, if the watcher has ended: its stream will end the subscription. The
    /// caller has locked the hub.
    pub(crate) fn make_unsynced(&self, watch_id: i64, revision: i64) -> bool {
        let mut state = self.state.lock();
        let Some(watcher) = state.watchers.get(&watch_id) else { return false };
        let from = watcher.watch.start_revision.max(revision);
        state.set_sync(watch_id, SyncState::Unsynced { from });
        drop(state);
        self.wake();
        true
    }

    /// Queues a message and wakes the owner of the stream.
    pub(crate) fn queue_message(&self, state: &mut MailboxState, delivery: Delivery) {
        self.push(state, QueueEntry::Message(delivery));
        self.wake();
    }

    /// Whether the queue has room for a message, and has at most `max_entries` entries.
    pub(crate) fn has_room(&self, max_entries: usize) -> bool {
        let state = self.state.lock();
        state.queue.len() <= max_entries && self.memory.admits(state.queued_bytes + ENTRY_BYTES)
    }

    /// Appends an entry to the queue, whether it fits or not.
    pub(crate) fn push(&self, state: &mut MailboxState, entry: QueueEntry) {
        let (events, bytes) = entry.size();
        state.queued_events += events;
        state.queued_bytes += bytes;
        self.memory.add(ENTRY_BYTES);
        state.queue.push_back(entry);
    }

    /// Takes the next entry out of the queue.
    pub(crate) fn pop(&self, state: &mut MailboxState) -> Option<QueueEntry> {
        let entry = state.queue.pop_front()?;
        let (events, bytes) = entry.size();
        state.queued_events -= events;
        state.queued_bytes -= bytes;
        self.memory.subtract(ENTRY_BYTES);
        if state.queue.is_empty() {
            state.queue.shrink_to(KEPT_ENTRIES);
        }
        Some(entry)
    }

    /// Removes all entries of the queue.
    pub(crate) fn clear(&self, state: &mut MailboxState) {
        while self.pop(state).is_some() {}
    }
}

impl MailboxState {
    /// Returns a free watch ID.
    pub(crate) fn allocate_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds a watcher.
    pub(crate) fn add(&mut self, watch_id: i64, watcher: Watcher) {
        self.watch_bytes += watcher.watch.memory_bytes();
        match watcher.sync {
            SyncState::Unsynced { from } => drop(self.unsynced.insert((from, watch_id))),
            SyncState::Synced { .. } if watcher.watch.start_revision > 0 => {
                self.future.insert((watcher.watch.start_revision, watch_id));
            }
            SyncState::Synced { .. } => {}
        }
        if watcher.watch.progress_notify {
            self.notified.insert(watch_id);
        }
        self.watchers.insert(watch_id, watcher);
    }

    /// Removes a watcher, and returns it if it existed.
    pub(crate) fn remove(&mut self, watch_id: i64) -> Option<Watcher> {
        let watcher = self.watchers.remove(&watch_id)?;
        self.watch_bytes -= watcher.watch.memory_bytes();
        if let SyncState::Unsynced { from } = watcher.sync {
            self.unsynced.remove(&(from, watch_id));
        }
        self.future.remove(&(watcher.watch.start_revision, watch_id));
        self.notified.remove(&watch_id);
        self.history_read = self.history_read.take().filter(|read| read.watch_id != watch_id);
        Some(watcher)
    }

    /// Changes where a watcher gets its events from.
    pub(crate) fn set_sync(&mut self, watch_id: i64, sync: SyncState) {
        let watcher = self.watchers.get_mut(&watch_id).expect("the watcher exists");
        if let SyncState::Unsynced { from } = std::mem::replace(&mut watcher.sync, sync) {
            self.unsynced.remove(&(from, watch_id));
        }
        if let SyncState::Unsynced { from } = sync {
            self.unsynced.insert((from, watch_id));
        }
    }

    /// Whether a watcher starts after `revision`, the published revision.
    pub(crate) fn any_starts_after(&self, revision: i64) -> bool {
        self.future.last().is_some_and(|(start, _)| *start > revision)
    }

    /// Takes the read of history out that is not complete, or starts one for the unsynced
    /// watcher with the lowest revision. `None` if all watchers are synced.
    pub(crate) fn take_history_read(&mut self) -> Option<HistoryRead> {
        if let Some(read) = self.history_read.take().filter(|read| self.reads_for(read)) {
            return Some(read);
        }
        let &(from, watch_id) = self.unsynced.first()?;
        Some(HistoryRead::new(watch_id, self.watchers[&watch_id].watch.clone(), from))
    }

    /// Whether the watcher of a read of history still exists.
    pub(crate) fn reads_for(&self, read: &HistoryRead) -> bool {
        let watcher = self.watchers.get(&read.watch_id);
        watcher.is_some_and(|watcher| Arc::ptr_eq(&watcher.watch, &read.watch))
    }

    /// Turns a batch that was taken out of the queue into a delivery. Returns `None` if
    /// the watch wants none of its events.
    pub(crate) fn make_delivery(
        &mut self,
        watch_id: i64,
        watch: &Watch,
        batch: Batch,
    ) -> Option<Delivery> {
        let revision = batch.revision;
        let events = Events::select(batch, |event| watch.wants(event))?;
        if let Some(watcher) = self.watchers.get_mut(&watch_id) {
            watcher.received_events = true;
        }
        let (prev_kv, fragment) = (watch.prev_kv, watch.fragment);
        Some(Delivery::Events { watch_id, revision, events, prev_kv, fragment })
    }
}
