//! The watchers of one client stream: creates and cancels them, sends progress
//! notifications, and reads history for unsynced watchers.

use std::sync::Arc;

use crate::batch::Batch;
use crate::delivery::{Compacted, Delivery, HistoryPosition, HistoryReader};
use crate::hub::{Hub, Subscriber, Subscriptions};
use crate::mailbox::{Mailbox, MailboxState, QueueEntry, SyncState, Watcher};
use crate::watch::{CreateError, Watch};

/// Number of subscriptions of a dropped stream that are removed while the hub is locked
/// once.
const UNSUBSCRIBE_BATCH: usize = 1000;

/// Maximum number of steps without a delivery in one [`WatchStream::next_delivery`]. After
/// that, other streams get their turn. A step is a read of history, or a part of the checks for
/// periodic progress notifications.
const MAX_STEPS: usize = 8;

/// Number of watchers that a step checks for a periodic progress notification.
const PROGRESS_CHECKS: usize = 1000;

/// While more entries than this are queued, no more requests of the client are handled.
const MAX_QUEUED_RESPONSES: usize = 1024;

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
        let mailbox = Mailbox::new(hub.queue_events(), hub.memory().clone(), wake);
        WatchStream { hub: hub.clone(), mailbox }
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
        let sync = match first <= revision {
            true => SyncState::Unsynced { from: first },
            false => self.subscribe(&mut subscriptions, &watch, watch_id),
        };
        subscriptions.watchers += 1;
        state.add(watch_id, Watcher { watch: Arc::new(watch), sync, received_events: false });
        self.mailbox.queue_message(&mut state, Delivery::Created { watch_id, revision });
    }

    /// Rejects a request for a watch with invalid parameters.
    pub fn reject(&self, reason: &'static str) {
        let revision = self.hub.lock().revision;
        let mut state = self.mailbox.lock();
        self.mailbox.queue_message(&mut state, Delivery::Rejected { reason, revision });
    }

    /// Whether the next request of the client may be handled. Otherwise too many responses are
    /// queued.
    pub fn accepts_requests(&self) -> bool {
        self.mailbox.has_room(MAX_QUEUED_RESPONSES)
    }

    /// Returns the memory of all watches in bytes.
    pub fn watch_bytes(&self) -> usize {
        self.mailbox.lock().watch_bytes
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

    /// Starts to send a progress notification to each watcher that wants them and has received
    /// no events since the last call. The caller calls this at regular intervals.
    /// [`WatchStream::next_delivery`] returns the notifications when the queue is empty.
    pub fn send_periodic_progress(&self) {
        let mut state = self.mailbox.lock();
        // Skip the notifications if there are queued deliveries, which the client receives
        // instead.
        if state.queue.is_empty() {
            state.next_progress = Some(i64::MIN);
        }
    }

    /// Returns the next delivery, if there is one. If the queue is empty, it reads a
    /// bounded part of `history` for unsynced watchers. If more history is left, it wakes
    /// the owner again.
    pub fn next_delivery(&self, history: &impl HistoryReader) -> Option<Delivery> {
        let mut steps = 0;
        loop {
            let mut state = self.mailbox.lock();
            match self.mailbox.pop(&mut state) {
                Some(QueueEntry::Message(delivery)) => return Some(delivery),
                Some(QueueEntry::Events { watch_id, watch, batch }) => {
                    let delivery = state.make_delivery(watch_id, &watch, batch);
                    if delivery.is_some() {
                        return delivery;
                    }
                }
                None if state.next_progress.is_none() && state.unsynced.is_empty() => return None,
                None if steps >= MAX_STEPS && self.may_interrupt(&state) => {
                    drop(state);
                    self.mailbox.wake();
                    return None;
                }
                None if state.next_progress.is_some() => {
                    drop(state);
                    let delivery = self.next_periodic_progress();
                    if delivery.is_some() {
                        return delivery;
                    }
                    steps += 1;
                }
                None => {
                    drop(state);
                    self.read_history_of_one(history);
                    steps += 1;
                }
            }
        }
    }

    /// Whether the read of history that is not complete may wait for the next turn. It keeps its
    /// events in memory meanwhile.
    fn may_interrupt(&self, state: &MailboxState) -> bool {
        let memory = &self.mailbox.memory;
        state.history_read.as_ref().is_none_or(|read| memory.admits(read.bytes()))
    }

    /// Returns the next periodic progress notification. `None` if there is none, if too many
    /// watchers were checked, or if a delivery was queued.
    fn next_periodic_progress(&self) -> Option<Delivery> {
        // The events up to this revision are already queued, or were. So the mailbox is locked
        // without the hub, and a publication does not wait for the checks.
        let revision = self.hub.lock().revision;
        let mut state = self.mailbox.lock();
        for _ in 0..PROGRESS_CHECKS {
            if !state.queue.is_empty() {
                return None;
            }
            let first = state.next_progress?;
            let watch_id = state.notified.range(first..).next().copied();
            state.next_progress = watch_id.and_then(|id| id.checked_add(1));
            let watch_id = watch_id?;
            let watcher = state.watchers.get_mut(&watch_id).expect("the watcher exists");
            let received_events = std::mem::take(&mut watcher.received_events);
            let is_synced = matches!(watcher.sync, SyncState::Synced { .. })
                && watcher.watch.start_revision <= revision;
            if is_synced && !received_events {
                return Some(Delivery::Progress { watch_id, revision });
            }
        }
        None
    }

    /// Reads history for the unsynced watcher with the lowest revision, and queues the
    /// events at the end of a revision.
    fn read_history_of_one(&self, history: &impl HistoryReader) {
        let to = self.hub.lock().revision;
        let Some(mut read) = self.mailbox.lock().take_history_read() else { return };
        let next = match read.next.revision > to {
            true => Ok(read.next),
            false => history.read(&read.watch.span, read.next, to, &mut read.events),
        };
        let mut subscriptions = self.hub.lock();
        let mut state = self.mailbox.lock();
        // The watch may have been cancelled during the read, and its ID may be in use
        // again.
        if !state.reads_for(&read) {
            return;
        }
        let watch_id = read.watch_id;
        match next {
            Ok(next) if next.visited > 0 => {
                // Deliveries contain whole revisions.
                read.next = next;
                read.count(&self.mailbox.memory);
                state.history_read = Some(read);
            }
            Ok(HistoryPosition { revision, .. }) => {
                let sync = match revision > subscriptions.revision {
                    true => self.subscribe(&mut subscriptions, &read.watch, watch_id),
                    false => SyncState::Unsynced { from: revision },
                };
                state.set_sync(watch_id, sync);
                if !read.events.is_empty() {
                    let batch = Batch::new(to, read.events, &self.mailbox.memory);
                    let entry = QueueEntry::Events { watch_id, watch: read.watch, batch };
                    self.mailbox.push(&mut state, entry);
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

    /// Adds a subscription for a watcher of this stream.
    fn subscribe(
        &self,
        subscriptions: &mut Subscriptions,
        watch: &Watch,
        watch_id: i64,
    ) -> SyncState {
        let subscriber = Subscriber { mailbox: self.mailbox.clone(), watch_id };
        SyncState::Synced { slot: subscriptions.subscribe(&watch.span, subscriber) }
    }

    /// Queues the requested progress notification if all watchers are synced.
    fn send_progress_if_synced(&self, subscriptions: &Subscriptions, state: &mut MailboxState) {
        if !state.progress_requested || !state.unsynced.is_empty() {
            return;
        }
        state.progress_requested = false;
        let revision = subscriptions.revision;
        if state.watchers.is_empty() || state.any_starts_after(revision) {
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
        let Some(watcher) = state.remove(watch_id) else { return false };
        subscriptions.end(&watcher);
        true
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let watchers = {
            let mut state = self.mailbox.lock();
            // Release the memory now, because a concurrent publication may keep the
            // mailbox alive.
            self.mailbox.clear(&mut state);
            std::mem::take(&mut *state).watchers
        };
        // Remove them in parts, so that a publication waits for at most one part.
        let mut watchers = watchers.into_values();
        while watchers.len() > 0 {
            let mut subscriptions = self.hub.lock();
            for watcher in watchers.by_ref().take(UNSUBSCRIBE_BATCH) {
                subscriptions.end(&watcher);
            }
        }
    }
}
