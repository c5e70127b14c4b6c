//! The watchers of one client stream: creates and cancels them, sends progress
//! notifications, and reads history for unsynced watchers.

use std::sync::Arc;

use crate::batch::Batch;
use crate::delivery::{Compacted, Delivery, HistoryReader};
use crate::hub::{Hub, Subscriber, Subscriptions};
use crate::mailbox::{Mailbox, MailboxState, QueueEntry, Watcher};
use crate::watch::{CreateError, Watch};

/// Number of events after which one read of history ends, at the end of a revision.
const HISTORY_EVENTS: usize = 1024;

/// Number of subscriptions of a dropped stream that are removed while the hub is locked
/// once.
const UNSUBSCRIBE_BATCH: usize = 1000;

/// Maximum number of reads of history in one [`WatchStream::next_delivery`]. After that,
/// other streams get their turn.
const MAX_HISTORY_READS: usize = 8;

/// The watchers of one client. Dropping the stream removes them.
pub struct WatchStream {
    hub: Arc<Hub>,
    mailbox: Arc<Mailbox>,
}

impl WatchStream {
    /// Opens a stream without watchers. `wake` is called when
    /// [`WatchStream::next_delivery`] may return a delivery. It may be called from any
    /// thread and with locks held, so it must not block.
    pub fn open(hub: &Arc<Hub>, wake: impl Fn() + Send + Sync + 'static) -> Self {
        WatchStream { hub: hub.clone(), mailbox: Mailbox::new(hub.queue_events(), wake) }
    }

    /// Creates a watch. [`WatchStream::next_delivery`] returns the response and all
    /// events.
    pub fn create(&self, watch: Watch) {
        let mut subscriptions = self.hub.lock();
        let mut state = self.mailbox.lock();
        let revision = subscriptions.revision;
        let error = match () {
            () if watch.span.is_empty() => Some(CreateError::EmptyRange),
            () if watch.id != 0 && state.watchers.contains_key(&watch.id) => {
                Some(CreateError::DuplicateId)
            }
            () => None,
        };
        if let Some(error) = error {
            let reason = error.reason();
            return self.mailbox.queue_message(&mut state, Delivery::Rejected { reason, revision });
        }
        let watch_id = if watch.id != 0 { watch.id } else { state.allocate_id() };
        let first = if watch.start_revision == 0 { revision + 1 } else { watch.start_revision };
        let unsynced_from = (first <= revision).then_some(first);
        state.unsynced.extend(unsynced_from.map(|from| (from, watch_id)));
        let subscriber = Subscriber { mailbox: self.mailbox.clone(), watch_id };
        let slot = subscriptions.subscribe(&watch.span, subscriber);
        state.key_bytes += watch.span.key_bytes();
        let watcher =
            Watcher { watch: Arc::new(watch), slot, unsynced_from, received_events: false };
        state.watchers.insert(watch_id, watcher);
        self.mailbox.queue_message(&mut state, Delivery::Created { watch_id, revision });
    }

    /// Rejects a request for a watch with invalid parameters.
    pub fn reject(&self, reason: &'static str) {
        let revision = self.hub.lock().revision;
        let mut state = self.mailbox.lock();
        self.mailbox.queue_message(&mut state, Delivery::Rejected { reason, revision });
    }

    /// Returns the number of queued entries.
    pub fn queue_len(&self) -> usize {
        self.mailbox.lock().queue.len()
    }

    /// Returns the size of the keys and range ends of all watches in bytes.
    pub fn key_bytes(&self) -> usize {
        self.mailbox.lock().key_bytes
    }

    /// Cancels a watch. If it does not exist, nothing is delivered.
    pub fn cancel(&self, watch_id: i64) {
        let mut subscriptions = self.hub.lock();
        let revision = subscriptions.revision;
        let mut state = self.mailbox.lock();
        if self.remove(&mut subscriptions, &mut state, watch_id) {
            self.mailbox.queue_message(&mut state, Delivery::Canceled { watch_id, revision });
            // The watch may have been the last one that was unsynced.
            self.send_progress_if_synced(&subscriptions, &mut state);
        }
    }

    /// Requests a progress notification for all watchers of the stream. It is delivered
    /// when all of them are synced. The request is dropped if there are then no watchers,
    /// or if a watcher starts after the published revision.
    pub fn request_progress(&self) {
        let subscriptions = self.hub.lock();
        let mut state = self.mailbox.lock();
        state.progress_requested = true;
        self.send_progress_if_synced(&subscriptions, &mut state);
    }

    /// Queues a progress notification for each watcher that wants them and has received
    /// no events since the last call. The caller calls this at regular intervals.
    pub fn send_periodic_progress(&self) {
        let subscriptions = self.hub.lock();
        let revision = subscriptions.revision;
        let mut state = self.mailbox.lock();
        if !state.queue.is_empty() {
            // Skip the notifications: the client receives the queued deliveries instead.
            return;
        }
        let mut idle = Vec::new();
        for (&watch_id, watcher) in &mut state.watchers {
            let received_events = std::mem::take(&mut watcher.received_events);
            let is_synced =
                watcher.unsynced_from.is_none() && watcher.watch.start_revision <= revision;
            if watcher.watch.progress_notify && is_synced && !received_events {
                idle.push(watch_id);
            }
        }
        for watch_id in idle {
            self.mailbox.queue_message(&mut state, Delivery::Progress { watch_id, revision });
        }
    }

    /// Returns the next delivery, if there is one. If the queue is empty, it reads a
    /// bounded part of `history` for unsynced watchers. If more history is left, it wakes
    /// the owner again.
    pub fn next_delivery(&self, history: &impl HistoryReader) -> Option<Delivery> {
        let mut reads = 0;
        loop {
            let mut state = self.mailbox.lock();
            match state.queue.pop_front() {
                Some(QueueEntry::Message(delivery)) => return Some(delivery),
                Some(QueueEntry::Events { watch_id, watch, batch }) => {
                    let delivery = state.make_delivery(watch_id, &watch, batch);
                    if delivery.is_some() {
                        return delivery;
                    }
                }
                None if state.unsynced.is_empty() => return None,
                None if reads == MAX_HISTORY_READS => {
                    drop(state);
                    self.mailbox.wake();
                    return None;
                }
                None => {
                    drop(state);
                    self.read_history_of_one(history);
                    reads += 1;
                }
            }
        }
    }

    /// Reads history for the unsynced watcher with the lowest revision, and queues the
    /// events.
    fn read_history_of_one(&self, history: &impl HistoryReader) {
        let to = self.hub.lock().revision;
        let state = self.mailbox.lock();
        let Some(&(from, watch_id)) = state.unsynced.first() else { return };
        let watch = state.watchers[&watch_id].watch.clone();
        drop(state);

        let mut events = Vec::new();
        let read = match from > to {
            true => Ok(from),
            false => history.read(&watch.span, from, to, HISTORY_EVENTS, &mut events),
        };
        let mut subscriptions = self.hub.lock();
        let mut state = self.mailbox.lock();
        // The watch may have been cancelled during the read, and its ID may be in use
        // again.
        let is_same = |watcher: &&mut Watcher| Arc::ptr_eq(&watcher.watch, &watch);
        let Some(watcher) = state.watchers.get_mut(&watch_id).filter(is_same) else { return };
        match read {
            Ok(next) => {
                let unsynced_from = (next <= subscriptions.revision).then_some(next);
                watcher.unsynced_from = unsynced_from;
                state.unsynced.remove(&(from, watch_id));
                state.unsynced.extend(unsynced_from.map(|next| (next, watch_id)));
                if !events.is_empty() {
                    state.queue_batch(watch_id, watch, Batch::new(to, events));
                }
            }
            Err(Compacted { revision: compact_revision }) => {
                let revision = subscriptions.revision;
                self.remove(&mut subscriptions, &mut state, watch_id);
                let delivery = Delivery::Compacted { watch_id, compact_revision, revision };
                self.mailbox.queue_message(&mut state, delivery);
            }
        }
        self.send_progress_if_synced(&subscriptions, &mut state);
    }

    /// Queues the requested progress notification if all watchers are synced.
    fn send_progress_if_synced(&self, subscriptions: &Subscriptions, state: &mut MailboxState) {
        if !state.progress_requested || !state.unsynced.is_empty() {
            return;
        }
        state.progress_requested = false;
        let revision = subscriptions.revision;
        let starts_in_future = |watcher: &Watcher| watcher.watch.start_revision > revision;
        if state.watchers.is_empty() || state.watchers.values().any(starts_in_future) {
            return;
        }
        self.mailbox.queue_message(state, Delivery::Progress { watch_id: -1, revision });
    }

    /// Removes a watcher. Returns whether it existed.
    fn remove(
        &self,
        subscriptions: &mut Subscriptions,
        state: &mut MailboxState,
        watch_id: i64,
    ) -> bool {
        let Some(watcher) = state.watchers.remove(&watch_id) else { return false };
        if let Some(from) = watcher.unsynced_from {
            state.unsynced.remove(&(from, watch_id));
        }
        subscriptions.unsubscribe(&watcher.watch.span, watcher.slot);
        state.key_bytes -= watcher.watch.span.key_bytes();
        true
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let mut watchers: Vec<Watcher> = {
            let mut state = self.mailbox.lock();
            // Release the queue now, because a concurrent publication may keep the
            // mailbox alive.
            state.queue.clear();
            state.watchers.drain().map(|(_, watcher)| watcher).collect()
        };
        // Remove them in parts, so that a publication waits for at most one part.
        while !watchers.is_empty() {
            let mut subscriptions = self.hub.lock();
            for watcher in watchers.drain(watchers.len().saturating_sub(UNSUBSCRIBE_BATCH)..) {
                subscriptions.unsubscribe(&watcher.watch.span, watcher.slot);
            }
        }
    }
}
