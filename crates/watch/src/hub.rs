//! Who watches what.

use std::collections::HashMap;
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::batch::Batch;
use crate::span_tree::SpanTree;
use crate::stream::{Mailbox, Stream};

/// All watchers, by what they watch.
pub struct Hub {
    queue_events: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Every event up to here has been left in the queues.
    pub(crate) revision: i64,
    groups: Slab<Group>,
    /// Groups by their span, for watchers that come and go.
    by_span: HashMap<Span, usize>,
    /// Groups by the one key that they watch, for events.
    points: HashMap<Vec<u8>, usize>,
    ranges: SpanTree,
    /// Groups that the batch being published concerns; kept for its memory.
    touched: Vec<usize>,
    watchers: usize,
}

/// The watchers of one and the same span.
struct Group {
    span: Span,
    subscribers: Slab<Subscriber>,
    /// Their events in the batch that is being published.
    events: Vec<Event>,
}

/// A subscriber's place in its group.
#[derive(Clone, Copy)]
pub(crate) struct Seat(usize);

pub(crate) struct Subscriber {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) watch_id: i64,
}

impl Hub {
    /// A hub for a store whose newest visible revision is `revision`. Each
    /// stream's queue holds `queue_events`.
    pub fn new(revision: i64, queue_events: usize) -> Arc<Self> {
        Arc::new(Hub { queue_events, state: Mutex::new(State { revision, ..State::default() }) })
    }

    /// A stream of watchers; `wake` is called, from any thread and with locks
    /// held, whenever it has something to take.
    pub fn stream(self: &Arc<Self>, wake: impl Fn() + Send + Sync + 'static) -> Stream {
        Stream::new(self.clone(), Mailbox::new(self.queue_events, wake))
    }

    /// Leaves `events`, which are those after the last call's up to `revision`,
    /// with everybody who watches them.
    pub fn publish(&self, events: &[Event], revision: i64) {
        let mut state = self.state.lock();
        debug_assert!(state.revision <= revision);
        state.revision = revision;
        if state.watchers == 0 {
            return;
        }
        let mut touched = std::mem::take(&mut state.touched);
        for event in events {
            state.distribute(event, &mut touched);
        }
        for group in touched.drain(..) {
            let group = &mut state.groups[group];
            let batch = Batch::new(revision, std::mem::take(&mut group.events));
            for (_, subscriber) in &group.subscribers {
                subscriber.mailbox.push(subscriber.watch_id, &batch);
            }
        }
        state.touched = touched;
    }

    /// Number of watchers that follow the present.
    pub fn watchers(&self) -> usize {
        self.state.lock().watchers
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
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

    pub(crate) fn subscribe(&mut self, span: &Span, subscriber: Subscriber) -> Seat {
        self.watchers += 1;
        let id = match self.by_span.get(span) {
            Some(id) => *id,
            None => self.add_group(span),
        };
        Seat(self.groups[id].subscribers.insert(subscriber))
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

    /// Removes a subscriber of `span`.
    pub(crate) fn unsubscribe(&mut self, span: &Span, seat: Seat) {
        let id = self.by_span[span];
        self.groups[id].subscribers.remove(seat.0);
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
