//! All subscriptions, and the publication of events to them.

use std::collections::HashMap;
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::batch::Batch;
use crate::mailbox::Mailbox;
use crate::span_tree::SpanTree;

/// The subscriptions of all watchers, ordered by span.
pub struct Hub {
    queue_events: usize,
    subscriptions: Mutex<Subscriptions>,
}

#[derive(Default)]
pub(crate) struct Subscriptions {
    /// The published revision: all events up to it are in the queues.
    pub(crate) revision: i64,
    groups: Slab<Group>,
    /// Groups by span, to add and remove subscribers.
    by_span: HashMap<Span, usize>,
    /// Groups with a single-key span, by that key; finds the subscribers of an event.
    points: HashMap<Vec<u8>, usize>,
    /// Groups with other spans; finds the subscribers of an event.
    ranges: SpanTree,
    /// Groups with events in the current publication. The vector is reused.
    touched: Vec<usize>,
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
    /// Creates a hub for a store whose published revision is `revision`. Each stream's
    /// queue holds `queue_events` events.
    pub fn new(revision: i64, queue_events: usize) -> Arc<Self> {
        let subscriptions = Subscriptions { revision, ..Subscriptions::default() };
        Arc::new(Hub { queue_events, subscriptions: Mutex::new(subscriptions) })
    }

    /// Number of events that a stream's queue holds.
    pub(crate) fn queue_events(&self) -> usize {
        self.queue_events
    }

    /// Queues `events` for their watchers and sets the published revision. The events
    /// must be all those after the previous call's revision up to `revision`.
    pub fn publish(&self, events: &[Event], revision: i64) {
        let mut subscriptions = self.subscriptions.lock();
        debug_assert!(subscriptions.revision <= revision);
        subscriptions.revision = revision;
        if subscriptions.watchers == 0 {
            return;
        }
        let mut touched = std::mem::take(&mut subscriptions.touched);
        for event in events {
            subscriptions.distribute(event, &mut touched);
        }
        for group in touched.drain(..) {
            let group = &mut subscriptions.groups[group];
            let batch = Batch::new(revision, std::mem::take(&mut group.events));
            for (_, subscriber) in &group.subscribers {
                subscriber.mailbox.push(subscriber.watch_id, &batch);
            }
        }
        subscriptions.touched = touched;
    }

    /// Number of watchers of all streams.
    pub fn watchers(&self) -> usize {
        self.subscriptions.lock().watchers
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock()
    }
}

impl Subscriptions {
    /// Adds `event` to the groups whose spans contain its key.
    fn distribute(&mut self, event: &Event, touched: &mut Vec<usize>) {
        let key = event.record.key().as_bytes();
        let groups = &mut self.groups;
        let mut touch = |id: usize| {
            let group = &mut groups[id];
            if group.events.is_empty() {
                touched.push(id);
            }
            group.events.push(event.clone());
        };
        if let Some(id) = self.points.get(key) {
            touch(*id);
        }
        self.ranges.containing(key, &mut touch);
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

    fn add_group(&mut self, span: &Span) -> usize {
        let group = Group { span: span.clone(), subscribers: Slab::new(), events: Vec::new() };
        let id = self.groups.insert(group);
        self.by_span.insert(span.clone(), id);
        match span.as_point() {
            Some(key) => drop(self.points.insert(key.to_vec(), id)),
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
                Some(key) => drop(self.points.remove(key)),
                None => self.ranges.remove(span),
            }
        }
    }
}
