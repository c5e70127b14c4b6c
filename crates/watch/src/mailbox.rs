//! The queue of a stream, and the state of the stream's watchers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::batch::{Batch, Events};
use crate::delivery::Delivery;
use crate::watch::Watch;

/// The default number of events that one stream's queue holds. Watchers whose
/// events do not fit become unsynced and read history instead.
pub const QUEUE_EVENTS: usize = 8192;

/// The bytes of keys and values that one stream's queue holds. Queued events keep
/// their records in memory even after a compaction.
const QUEUE_BYTES: usize = 8 << 20;

/// The queue of a stream with the state of its watchers. The hub puts events in;
/// the stream takes deliveries out.
pub(crate) struct Mailbox {
    /// Events that the queue holds. An empty queue accepts a larger batch.
    limit: usize,
    state: Mutex<MailboxState>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct MailboxState {
    pub(crate) watchers: HashMap<i64, Watcher>,
    next_id: i64,
    pub(crate) queue: VecDeque<Item>,
    queued_events: usize,
    queued_bytes: usize,
    /// Whether the client has requested progress and has not received it yet.
    pub(crate) progress_requested: bool,
    /// The unsynced watchers, ordered by the revision from which they read history.
    pub(crate) unsynced: BTreeSet<(i64, i64)>,
}

/// A watcher of a stream.
pub(crate) struct Watcher {
    pub(crate) watch: Arc<Watch>,
    /// The slot of the watcher's subscription in the hub.
    pub(crate) slot: usize,
    /// If the watcher is unsynced: the first revision that was not queued for it.
    pub(crate) unsynced_from: Option<i64>,
    /// Whether the watcher received events in the current progress interval.
    pub(crate) received_events: bool,
}

/// An entry of the queue. Events are queued as published, shared with other
/// watchers of the span. Filters are applied when the entry is taken out.
pub(crate) enum Item {
    Message(Delivery),
    Events { watch_id: i64, watch: Arc<Watch>, batch: Batch },
}

impl Mailbox {
    pub(crate) fn new(limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Mailbox { limit, state: Mutex::default(), wake: Box::new(wake) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock()
    }

    /// Wakes the owner of the stream.
    pub(crate) fn wake(&self) {
        (self.wake)();
    }

    /// Queues a batch for a synced watcher, or makes the watcher unsynced if the
    /// batch does not fit. Called under the hub's lock.
    pub(crate) fn push(&self, watch_id: i64, batch: &Batch) {
        let mut state = self.state.lock();
        let fits = state.queued_events == 0
            || state.queued_events + batch.events().len() <= self.limit
                && state.queued_bytes + batch.bytes() <= QUEUE_BYTES;
        let Some(watcher) = state.watchers.get_mut(&watch_id) else { return };
        if watcher.unsynced_from.is_some() {
            return;
        }
        if !fits {
            let from = watcher.watch.start_revision.max(batch.events()[0].revision());
            watcher.unsynced_from = Some(from);
            state.unsynced.insert((from, watch_id));
            return;
        }
        let watch = watcher.watch.clone();
        state.queue_batch(watch_id, watch, batch.clone());
        drop(state);
        self.wake();
    }

    /// Queues a message and wakes the owner of the stream.
    pub(crate) fn send(&self, state: &mut MailboxState, delivery: Delivery) {
        state.queue.push_back(Item::Message(delivery));
        self.wake();
    }
}

impl MailboxState {
    /// The next free watch ID.
    pub(crate) fn allocate_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn queue_batch(&mut self, watch_id: i64, watch: Arc<Watch>, batch: Batch) {
        self.queued_events += batch.events().len();
        self.queued_bytes += batch.bytes();
        self.queue.push_back(Item::Events { watch_id, watch, batch });
    }

    /// Accounts for a batch that was taken out of the queue. Returns the delivery if
    /// the watch wants any of its events.
    pub(crate) fn deliver(
        &mut self,
        watch_id: i64,
        watch: &Watch,
        batch: Batch,
    ) -> Option<Delivery> {
        self.queued_events -= batch.events().len();
        self.queued_bytes -= batch.bytes();
        let revision = batch.revision;
        let events = Events::select(batch, |event| watch.wants(event))?;
        if let Some(watcher) = self.watchers.get_mut(&watch_id) {
            watcher.received_events = true;
        }
        let (prev_kv, fragment) = (watch.prev_kv, watch.fragment);
        Some(Delivery::Events { watch_id, revision, events, prev_kv, fragment })
    }
}
