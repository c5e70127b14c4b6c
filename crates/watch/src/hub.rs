//! The hub: all subscriptions, and the publication of events to them.

use std::collections::HashMap;
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::batch::Batch;
use crate::mailbox::Mailbox;
use crate::span_tree::SpanTree;

/// The subscriptions of all watchers, grouped by span.
pub struct Hub {
    queue_events: usize,
    subscriptions: Mutex<Subscriptions>,
}

#[derive(Default)]
pub(crate) struct Subscriptions {
    /// The published revision. All events up to it are queued, except those of unsynced
    /// watchers.
    pub(crate) revision: i64,
    groups: Slab<Group>,
    /// Groups by span, to add and remove subscribers.
    by_span: HashMap<Span, usize>,
    /// Groups whose span is a single key, by this key. Finds the subscribers of an event.
    single_keys: HashMap<Arc<[u8]>, usize>,
    /// Groups with other spans. Finds the subscribers of an event.
    ranges: SpanTree,
    /// Groups with events in the current publication. It is empty between publications,
    /// and kept for its capacity.
    groups_with_events: Vec<usize>,
    /// Number of watchers.
    watchers: usize,
}

/// The subscribers of one span.
struct Group {
    span: Span,
    subscribers: Slab<Subscriber>,
    /// The events of the span in the current publication.
    events: Vec<Event>,
}

/// A watcher and the mailbox of its stream.
pub(crate) struct Subscriber {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) watch_id: i64,
}

impl Hub {
    /// Creates a hub for a store whose published revision is `revision`. The queue of
    /// each stream has room for `queue_events` events.
    pub fn new(revision: i64, queue_events: usize) -> Arc<Self> {
        let subscriptions = Subscriptions { revision, ..Subscriptions::default() };
        Arc::new(Hub { queue_events, subscriptions: Mutex::new(subscriptions) })
    }

    /// Returns the maximum number of events in the queue of a stream.
    pub(crate) fn queue_events(&self) -> usize {
        self.queue_events
    }

    /// Queues `events` for their watchers, and sets the published revision. `events` must
    /// be all events after the revision of the previous call and up to `revision`.
    pub fn publish(&self, events: &[Event], revision: i64) {
        let mut subscriptions = self.subscriptions.lock();
        debug_assert!(subscriptions.revision <= revision);
        subscriptions.revision = revision;
        if subscriptions.watchers == 0 {
            return;
        }
        let mut groups_with_events = std::mem::take(&mut subscriptions.groups_with_events);
        for event in events {
            subscriptions.add_event(event, &mut groups_with_events);
        }
        for group in groups_with_events.drain(..) {
            let group = &mut subscriptions.groups[group];
            let batch = Batch::new(revision, std::mem::take(&mut group.events));
            for (_, subscriber) in &group.subscribers {
                subscriber.mailbox.queue_events(subscriber.watch_id, &batch);
            }
        }
        subscriptions.groups_with_events = groups_with_events;
    }

    /// Returns the number of watchers of all streams.
    pub fn watchers(&self) -> usize {
        self.subscriptions.lock().watchers
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock()
    }
}

impl Subscriptions {
    /// Adds `event` to the groups whose spans contain its key. Adds groups that had no
    /// events to `groups_with_events`.
    fn add_event(&mut self, event: &Event, groups_with_events: &mut Vec<usize>) {
        let key = event.record.key().as_bytes();
        let groups = &mut self.groups;
        let mut add = |id: usize| {
            let group = &mut groups[id];
            if group.events.is_empty() {
                groups_with_events.push(id);
            }
            group.events.push(event.clone());
        };
        if let Some(id) = self.single_keys.get(key) {
            add(*id);
        }
        self.ranges.for_each_containing(key, &mut add);
    }

    /// Adds a subscriber of `span`. Returns its slot in the group of the span.
    pub(crate) fn subscribe(&mut self, span: &Span, subscriber: Subscriber) -> usize {
        self.watchers += 1;
        let id = match self.by_span.get(span) {
            Some(id) => *id,
            None => self.add_group(span),
        };
        self.groups[id].subscribers.insert(subscriber)
    }

    /// Adds a group without subscribers. Returns its index.
    fn add_group(&mut self, span: &Span) -> usize {
        let group = Group { span: span.clone(), subscribers: Slab::new(), events: Vec::new() };
        let id = self.groups.insert(group);
        self.by_span.insert(span.clone(), id);
        match span.as_point() {
            Some(_) => drop(self.single_keys.insert(span.shared_start(), id)),
            None => self.ranges.insert(span, id),
        }
        id
    }

    /// Removes the subscriber of `span` in `slot`.
    pub(crate) fn unsubscribe(&mut self, span: &Span, slot: usize) {
        let id = self.by_span[span];
        self.groups[id].subscribers.remove(slot);
        self.watchers -= 1;
        if self.groups[id].subscribers.is_empty() {
            let group = self.groups.remove(id);
            self.by_span.remove(span);
            match group.span.as_point() {
                Some(key) => drop(self.single_keys.remove(key)),
                None => self.ranges.remove(span),
            }
        }
    }
}
