//! The watchers of one client stream: creation, cancellation, progress
//! notifications and synchronisation from history.

use std::sync::Arc;

use crate::batch::Batch;
use crate::delivery::{Compacted, Delivery, HistoryReader};
use crate::hub::{Hub, Subscriber, Subscriptions};
use crate::mailbox::{Item, Mailbox, MailboxState, Watcher};
use crate::watch::{CreateError, Watch};

/// Events read from history at a time. A revision is never split.
const HISTORY_EVENTS: usize = 1024;

/// Subscriptions of a dropped stream that are removed under one hub lock.
const UNSUBSCRIBE_BATCH: usize = 1000;

/// Reads of history in one [`WatchStream::take`]. After them, other streams get
/// their turn.
const HISTORY_READS_PER_TAKE: usize = 8;

/// The watchers of one client. Dropping the stream removes them.
pub struct WatchStream {
    hub: Arc<Hub>,
    mailbox: Arc<Mailbox>,
}

impl WatchStream {
    /// Opens a stream without watchers. The owner's `wake` is called, from any thread
    /// and with locks held, whenever [`WatchStream::take`] may return a delivery.
    pub fn open(hub: &Arc<Hub>, wake: impl Fn() + Send + Sync + 'static) -> Self {
        WatchStream { hub: hub.clone(), mailbox: Mailbox::new(hub.queue_events(), wake) }
    }

    /// Creates a watch. The response and all events come from
    /// [`WatchStream::take`].
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
            return self.mailbox.send(&mut state, Delivery::Rejected { reason, revision });
        }
        let watch_id = if watch.id != 0 { watch.id } else { state.allocate_id() };
        let next = if watch.start_revision == 0 { revision + 1 } else { watch.start_revision };
        let unsynced_from = (next <= revision).then_some(next);
        state.unsynced.extend(unsynced_from.map(|next| (next, watch_id)));
        let subscriber = Subscriber { mailbox: self.mailbox.clone(), watch_id };
        let slot = subscriptions.subscribe(&watch.span, subscriber);
        let watcher =
            Watcher { watch: Arc::new(watch), slot, unsynced_from, received_events: false };
        state.watchers.insert(watch_id, watcher);
        self.mailbox.send(&mut state, Delivery::Created { watch_id, revision });
    }

    /// Rejects a request for a watch whose parameters are invalid.
    pub fn reject(&self, reason: &'static str) {
        let revision = self.hub.lock().revision;
        let mut state = self.mailbox.lock();
        self.mailbox.send(&mut state, Delivery::Rejected { reason, revision });
    }

    /// Number of queued entries.
    pub fn backlog(&self) -> usize {
        self.mailbox.lock().queue.len()
    }

    /// Cancels a watch. If the watch does not exist, nothing is delivered.
    pub fn cancel(&self, watch_id: i64) {
        let mut subscriptions = self.hub.lock();
        let revision = subscriptions.revision;
        let mut state = self.mailbox.lock();
        if self.remove(&mut subscriptions, &mut state, watch_id) {
            self.mailbox.send(&mut state, Delivery::Canceled { watch_id, revision });
            // It may have been the last unsynced watcher.
            self.send_progress_if_synced(&subscriptions, &mut state);
        }
    }

    /// Requests a progress notification for all watchers of the stream. It is
    /// delivered as soon as all of them are synced; never, if there are none.
    pub fn request_progress(&self) {
        let subscriptions = self.hub.lock();
        let mut state = self.mailbox.lock();
        state.progress_requested = true;
        self.send_progress_if_synced(&subscriptions, &mut state);
    }

    /// Sends a progress notification to each watcher that wants them and has received
    /// no events since the last call. To be called at regular intervals.
    pub fn progress_interval(&self) {
        let subscriptions = self.hub.lock();
        let revision = subscriptions.revision;
        let mut state = self.mailbox.lock();
        if !state.queue.is_empty() {
            // The client receives the queued deliveries instead.
            return;
        }
        let mut idle = Vec::new();
        for (&watch_id, watcher) in &mut state.watchers {
            let received_events = std::mem::take(&mut watcher.received_events);
            let is_current =
                watcher.unsynced_from.is_none() && watcher.watch.start_revision <= revision;
            if watcher.watch.progress_notify && is_current && !received_events {
                idle.push(watch_id);
            }
        }
        for watch_id in idle {
            self.mailbox.send(&mut state, Delivery::Progress { watch_id, revision });
        }
    }

    /// The next delivery, if there is one now. If the queue is empty, unsynced
    /// watchers read a bounded part of `history`. If there is more to read, the owner
    /// is woken again.
    pub fn take(&self, history: &impl HistoryReader) -> Option<Delivery> {
        let mut reads = 0;
        loop {
            let mut state = self.mailbox.lock();
            match state.queue.pop_front() {
                Some(Item::Message(delivery)) => return Some(delivery),
                Some(Item::Events { watch_id, watch, batch }) => {
                    let delivery = state.deliver(watch_id, &watch, batch);
                    if delivery.is_some() {
                        return delivery;
                    }
                }
                None if state.unsynced.is_empty() => return None,
                None if reads == HISTORY_READS_PER_TAKE => {
                    drop(state);
                    self.mailbox.wake();
                    return None;
                }
                None => {
                    drop(state);
                    self.sync_one(history);
                    reads += 1;
                }
            }
        }
    }

    /// Reads history for the unsynced watcher with the lowest revision, and queues
    /// the events.
    fn sync_one(&self, history: &impl HistoryReader) {
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
        // The watch may have been cancelled during the read, and its ID used again.
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
                self.mailbox.send(&mut state, delivery);
            }
        }
        self.send_progress_if_synced(&subscriptions, &mut state);
    }

    /// Sends the requested progress notification if all watchers are synced.
    fn send_progress_if_synced(&self, subscriptions: &Subscriptions, state: &mut MailboxState) {
        if !state.progress_requested || !state.unsynced.is_empty() {
            return;
        }
        state.progress_requested = false;
        let revision = subscriptions.revision;
        let starts_later = |watcher: &Watcher| watcher.watch.start_revision > revision;
        if state.watchers.is_empty() || state.watchers.values().any(starts_later) {
            return;
        }
        self.mailbox.send(state, Delivery::Progress { watch_id: -1, revision });
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
        true
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let mut watchers: Vec<Watcher> = {
            let mut state = self.mailbox.lock();
            // A concurrent publication may keep the mailbox alive.
            state.queue.clear();
            state.watchers.drain().map(|(_, watcher)| watcher).collect()
        };
        // In parts, so that a publication need not wait for a million removals.
        while !watchers.is_empty() {
            let mut subscriptions = self.hub.lock();
            for watcher in watchers.drain(watchers.len().saturating_sub(UNSUBSCRIBE_BATCH)..) {
                subscriptions.unsubscribe(&watcher.watch.span, watcher.slot);
            }
        }
    }
}
