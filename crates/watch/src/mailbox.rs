//! The mailbox of a stream: its queue, and the state of its watchers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::batch::{Batch, Events};
use crate::delivery::Delivery;
use crate::watch::Watch;

/// The default maximum number of events in the queue of a stream.
pub const QUEUE_EVENTS: usize = 8192;

/// Maximum size of the keys and values in the queue of a stream, in bytes. Queued events
/// keep their records in memory even after a compaction.
const MAX_QUEUE_BYTES: usize = 8 << 20;

/// The queue of a stream with the state of its watchers. The hub appends events; the
/// stream takes deliveries out.
pub(crate) struct Mailbox {
    /// Maximum number of events in the queue. An empty queue accepts a batch of any size.
    max_events: usize,
    state: Mutex<MailboxState>,
    /// Wakes the owner of the stream.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct MailboxState {
    /// The watchers by watch ID.
    pub(crate) watchers: HashMap<i64, Watcher>,
    /// Size of the keys and range ends of the watchers in bytes.
    pub(crate) key_bytes: usize,
    next_id: i64,
    pub(crate) queue: VecDeque<QueueEntry>,
    /// Number of events in the queue.
    queued_events: usize,
    /// Size of the keys and values in the queue, in bytes.
    queued_bytes: usize,
    /// Whether the client has requested a progress notification that is not yet queued.
    pub(crate) progress_requested: bool,
    /// The unsynced watchers: the revision from which each reads history, and its watch
    /// ID.
    pub(crate) unsynced: BTreeSet<(i64, i64)>,
}

/// A watcher of a stream.
pub(crate) struct Watcher {
    pub(crate) watch: Arc<Watch>,
    /// The slot of the subscription in the group of its span ([`crate::hub`]).
    pub(crate) slot: usize,
    /// Set if the watcher is unsynced: the first revision that was not queued for it.
    pub(crate) unsynced_from: Option<i64>,
    /// Whether the watcher has received events since the last periodic progress
    /// notification.
    pub(crate) received_events: bool,
}

/// An entry of the queue. Events are queued as they were published, shared with the other
/// watchers of the span. Filters are applied when the entry is taken out.
pub(crate) enum QueueEntry {
    Message(Delivery),
    Events { watch_id: i64, watch: Arc<Watch>, batch: Batch },
}

impl Mailbox {
    pub(crate) fn new(max_events: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Mailbox { max_events, state: Mutex::default(), wake: Box::new(wake) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock()
    }

    /// Wakes the owner of the stream.
    pub(crate) fn wake(&self) {
        (self.wake)();
    }

    /// Queues a batch for a synced watcher, or makes the watcher unsynced if the batch
    /// does not fit. The caller has locked the hub.
    pub(crate) fn queue_events(&self, watch_id: i64, batch: &Batch) {
        let mut state = self.state.lock();
        let fits = state.queued_events == 0
            || state.queued_events + batch.events().len() <= self.max_events
                && state.queued_bytes + batch.bytes() <= MAX_QUEUE_BYTES;
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
    pub(crate) fn queue_message(&self, state: &mut MailboxState, delivery: Delivery) {
        state.queue.push_back(QueueEntry::Message(delivery));
        self.wake();
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

    /// Appends a batch to the queue, whether it fits or not.
    pub(crate) fn queue_batch(&mut self, watch_id: i64, watch: Arc<Watch>, batch: Batch) {
        self.queued_events += batch.events().len();
        self.queued_bytes += batch.bytes();
        self.queue.push_back(QueueEntry::Events { watch_id, watch, batch });
    }

    /// Turns a batch that was taken out of the queue into a delivery. Returns `None` if
    /// the watch wants none of its events.
    pub(crate) fn make_delivery(
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
