//! The hub: all subscriptions, and the publication of events to them.
//!
//! Only synced watchers have a subscription. A publication that is large, or that too many
//! watchers want, makes its watchers unsynced instead of queueing events: they read history in
//! turns, on the tasks of their connections. So the memory of a publication is bounded, and
//! watchers that lag behind do not slow down the following ones. The work to make watchers
//! unsynced depends on the number of watched ranges: see [`Subscriptions::make_unsynced`].

use std::collections::HashMap;
use std::sync::Arc;

use mvcc::{Event, Span};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::batch::Batch;
use crate::mailbox::{Mailbox, SyncState, Watcher};
use crate::memory::QueueMemory;
use crate::sorted_keys::SortedKeys;
use crate::span_tree::SpanTree;

/// Maximum number of events that one publication queues, counted for each span that contains
/// the event, plus the number of subscribers of these spans. It takes about 20 ms. Beyond it,
/// the subscribers become unsynced.
const MAX_PUBLISHED: usize = 131_072;

/// The subscriptions of all synced watchers, grouped by span.
pub struct Hub {
    queue_events: usize,
    memory: Arc<QueueMemory>,
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
    /// Number of watchers, synced or not.
    pub(crate) watchers: usize,
}

/// The subscribers of one span; at least one.
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
        let subscriptions = Mutex::new(subscriptions);
        Arc::new(Hub { queue_events, memory: Arc::default(), subscriptions })
    }

    /// Returns the maximum number of events in the queue of a stream.
    pub(crate) fn queue_events(&self) -> usize {
        self.queue_events
    }

    /// Counts the memory of the queues of all streams.
    pub(crate) fn memory(&self) -> &Arc<QueueMemory> {
        &self.memory
    }

    /// Queues `events` for their watchers, and sets the published revision. `events` must
    /// be all events after the revision of the previous call and up to `revision`. There must
    /// be no other call at the same time.
    pub fn publish(&self, events: &[Event], revision: i64) {
        let mut subscriptions = self.subscriptions.lock();
        debug_assert!(subscriptions.revision <= revision);
        let Some(first) = events.first().filter(|_| !subscriptions.groups.is_empty()) else {
            subscriptions.revision = revision;
            return;
        };
        if events.len() <= self.queue_events && subscriptions.add_events(events) {
            subscriptions.revision = revision;
            return subscriptions.queue_batches(&self.memory);
        }
        // Sorting takes long, and creating a watch needs the lock.
        subscriptions.remove_events();
        drop(subscriptions);
        let keys = SortedKeys::new(events);
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.revision = revision;
        subscriptions.make_unsynced(&keys, first.revision());
    }

    /// Sets the published revision without events: the store was replaced by a later state. Every
    /// watcher reads the events after the revision of the previous call from its history, or gets
    /// the error of a compacted revision. There must be no other call at the same time.
    pub fn publish_replaced(&self, revision: i64) {
        let mut subscriptions = self.subscriptions.lock();
        let first = subscriptions.revision + 1;
        debug_assert!(first <= revision + 1);
        subscriptions.revision = revision;
        subscriptions.make_all_unsynced(first);
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
    /// Adds the events to the groups whose spans contain their keys. Returns false if they are
    /// too many: then only some are added.
    fn add_events(&mut self, events: &[Event]) -> bool {
        let (groups, groups_with_events) = (&mut self.groups, &mut self.groups_with_events);
        let mut published = 0;
        for event in events {
            let key = event.record.key();
            let mut add = |id: usize| {
                let group = &mut groups[id];
                if group.events.is_empty() {
                    groups_with_events.push(id);
                    published += group.subscribers.len();
                }
                group.events.push(event.clone());
                published += 1;
            };
            if let Some(id) = self.single_keys.get(key) {
                add(*id);
            }
            self.ranges.for_each_containing(key, &mut add);
            if published > MAX_PUBLISHED {
                return false;
            }
        }
        true
    }

    /// Removes the events of the groups.
    fn remove_events(&mut self) {
        for id in self.groups_with_events.drain(..) {
            self.groups[id].events = Vec::new();
        }
    }

    /// Queues the events of the groups for their subscribers.
    fn queue_batches(&mut self, memory: &Arc<QueueMemory>) {
        let mut groups_with_events = std::mem::take(&mut self.groups_with_events);
        for id in groups_with_events.drain(..) {
            let group = &mut self.groups[id];
            let batch = Batch::new(self.revision, std::mem::take(&mut group.events), memory);
            let fits = |s: &mut Subscriber| s.mailbox.queue_events(s.watch_id, &batch);
            group.subscribers.retain(|_, subscriber| fits(subscriber));
            self.remove_if_empty(id);
        }
        self.groups_with_events = groups_with_events;
    }

    /// Makes the subscribers unsynced whose spans contain one of the keys of a publication.
    /// They read its events from history, where `first` is the revision of the first one.
    ///
    /// It examines all watched ranges, in 124 to 147 ms for 800,000 of them. The lock cannot be
    /// released meanwhile: a progress notification could then be sent before the events that it
    /// covers, and a new watcher could miss events or get some twice.
    fn make_unsynced(&mut self, keys: &SortedKeys, first: i64) {
        let mut matching = Vec::new();
        self.ranges.for_each(&mut |id| {
            if keys.any_in(&self.groups[id].span) {
                matching.push(id);
            }
        });
        match keys.len() < self.single_keys.len() {
            true => matching.extend(keys.iter().filter_map(|key| self.single_keys.get(key))),
            false => {
                let groups = self.single_keys.iter();
                matching.extend(groups.filter(|(key, _)| keys.contains(key)).map(|(_, id)| id));
            }
        }
        matching.into_iter().for_each(|id| self.make_group_unsynced(id, first));
    }

    /// Makes all subscribers unsynced. They read history from the revision `first` on.
    fn make_all_unsynced(&mut self, first: i64) {
        let groups: Vec<usize> = self.groups.iter().map(|(id, _)| id).collect();
        groups.into_iter().for_each(|id| self.make_group_unsynced(id, first));
    }

    fn make_group_unsynced(&mut self, id: usize, first: i64) {
        let unsynced = |s: &mut Subscriber| s.mailbox.make_unsynced(s.watch_id, first);
        self.groups[id].subscribers.retain(|_, subscriber| !unsynced(subscriber));
        self.remove_if_empty(id);
    }

    /// Adds a subscriber of `span`. Returns its slot in the group of the span.
    pub(crate) fn subscribe(&mut self, span: &Span, subscriber: Subscriber) -> usize {
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

    /// Removes the subscription of a watcher that ends, if it has one.
    pub(crate) fn end(&mut self, watcher: &Watcher) {
        self.watchers -= 1;
        if let SyncState::Synced { slot } = watcher.sync {
            let id = self.by_span[&watcher.watch.span];
            self.groups[id].subscribers.remove(slot);
            self.remove_if_empty(id);
        }
    }

    /// Removes a group if it has no subscribers.
    fn remove_if_empty(&mut self, id: usize) {
        if !self.groups[id].subscribers.is_empty() {
            return;
        }
        let span = self.groups.remove(id).span;
        self.by_span.remove(&span);
        match span.as_point() {
            Some(key) => drop(self.single_keys.remove(key)),
            None => self.ranges.remove(&span),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use etcdpb::Record;

    use super::*;
    use crate::delivery::{Compacted, Delivery, HistoryPosition, HistoryReader};
    use crate::mailbox::QUEUE_EVENTS;
    use crate::stream::WatchStream;
    use crate::watch::{Filter, Watch};

    /// All published events, of which a read visits a part.
    #[derive(Default)]
    struct History {
        events: Vec<Event>,
        reads: Cell<usize>,
    }

    impl History {
        const READ_EVENTS: usize = 100;

        /// Publishes a revision that deletes or puts these keys.
        fn publish(&mut self, hub: &Hub, keys: impl IntoIterator<Item = String>, value: &[u8]) {
            let revision = hub.lock().revision + 1;
            let record = |key: String| Record::put(key.as_bytes(), value, revision, revision, 1, 0);
            let event = |key| Event { record: record(key), previous: None };
            let events: Vec<_> = keys.into_iter().map(event).collect();
            hub.publish(&events, revision);
            self.events.extend(events);
        }
    }

    impl HistoryReader for History {
        fn read(
            &self,
            span: &Span,
            from: HistoryPosition,
            to: i64,
            events: &mut Vec<Event>,
        ) -> Result<HistoryPosition, Compacted> {
            self.reads.set(self.reads.get() + 1);
            let first = self.events.partition_point(|e| e.revision() < from.revision);
            let left = &self.events[first + from.visited..];
            let visited = &left[..left.len().min(Self::READ_EVENTS)];
            let wanted = |e: &&Event| span.contains(e.record.key());
            events.extend(visited.iter().filter(wanted).cloned());
            let Some(next) = left.get(visited.len()) else {
                return Ok(HistoryPosition::start_of(to + 1));
            };
            let same = |e: &&Event| e.revision() == next.revision();
            let visited = first + from.visited + visited.len();
            let visited = self.events[..visited].iter().rev().take_while(same).count();
            Ok(HistoryPosition { revision: next.revision(), visited })
        }
    }

    fn watch(start: &str, end: &str) -> Watch {
        Watch {
            id: 0,
            span: Span::new(start.as_bytes(), end.as_bytes()),
            start_revision: 0,
            filter: Filter::default(),
            prev_kv: false,
            progress_notify: false,
            fragment: false,
        }
    }

    /// Takes all deliveries. Returns the number of events of each.
    fn drain(stream: &WatchStream, history: &History) -> Vec<usize> {
        let mut counts = Vec::new();
        let mut without = 0;
        while without < 1000 {
            match stream.next_delivery(history) {
                Some(Delivery::Events { events, .. }) => counts.push(events.as_slice().len()),
                Some(_) => {}
                None => without += 1,
            }
        }
        counts
    }

    /// The watchers of a publication that too many want read it from history, and the hub has
    /// nothing for them in memory. Others stay synced.
    #[test]
    fn a_publication_for_too_many_watchers_is_read_from_history() {
        let hub = Hub::new(1, QUEUE_EVENTS);
        let stream = WatchStream::open(&hub, || {});
        let keys = || (0..1000).map(|n| format!("key{n:04}"));
        let watches = 2 * MAX_PUBLISHED / 1000;
        (0..watches).for_each(|n| stream.create(watch("key", &format!("kez{n}"))));
        let points = WatchStream::open(&hub, || {});
        ["key0500", "other"].into_iter().for_each(|key| points.create(watch(key, "")));
        let mut history = History::default();
        drain(&stream, &history);
        drain(&points, &history);

        history.publish(&hub, keys(), b"");
        assert_eq!(hub.memory().used(), 0, "events were queued");
        assert_eq!(hub.lock().groups.len(), 1, "only one watch wants no event");
        assert_eq!(hub.watchers(), watches + 2);
        assert_eq!(drain(&stream, &history), vec![1000; watches]);
        assert_eq!(drain(&points, &history), [1]);
        assert_eq!(hub.lock().groups.len(), watches + 2, "all are synced again");

        // A small publication is queued.
        history.reads.set(0);
        history.publish(&hub, ["key0500".to_owned()], b"");
        assert!(hub.memory().used() > 0);
        assert_eq!(drain(&stream, &history), vec![1; watches]);
        assert_eq!(drain(&points, &history), [1]);
        assert_eq!((history.reads.get(), hub.memory().used()), (0, 0));
    }

    /// A large revision is read in several turns, and delivered as a whole.
    #[test]
    fn a_large_revision_is_read_in_turns() {
        let hub = Hub::new(1, QUEUE_EVENTS);
        let stream = WatchStream::open(&hub, || {});
        stream.create(watch("key", "kez"));
        let mut history = History::default();
        assert!(stream.next_delivery(&history).is_some());
        let events = 10 * QUEUE_EVENTS;
        history.publish(&hub, (0..events).map(|n| format!("key{n:06}")), b"");
        assert_eq!(hub.memory().used(), 0, "events were queued");
        let (mut turns, mut reads) = (0, 0);
        let delivery = loop {
            let delivery = stream.next_delivery(&history);
            turns += 1;
            assert!(history.reads.get() - reads <= 8, "a turn is bounded");
            reads = history.reads.get();
            if let Some(delivery) = delivery {
                break delivery;
            }
            assert!(hub.memory().used() >= reads * History::READ_EVENTS * size_of::<Event>());
        };
        assert_eq!(turns, events.div_ceil(8 * History::READ_EVENTS));
        let Delivery::Events { events: delivered, .. } = delivery else { panic!("{delivery:?}") };
        assert_eq!(delivered.as_slice().len(), events);
        drop(delivered);
        assert_eq!(hub.memory().used(), 0);
    }

    /// Watchers read what they have missed when the store is replaced, and stay in order.
    #[test]
    fn a_replaced_store_is_read_from_history() {
        let hub = Hub::new(1, QUEUE_EVENTS);
        let stream = WatchStream::open(&hub, || {});
        ["key1", "other"].into_iter().for_each(|key| stream.create(watch(key, "")));
        let mut history = History::default();
        drain(&stream, &history);
        history.publish(&hub, ["key1".to_owned()], b"");
        for revision in 3..=5 {
            let record = Record::put(b"key1", b"", revision, revision, 1, 0);
            history.events.push(Event { record, previous: None });
        }
        hub.publish_replaced(5);
        assert_eq!(drain(&stream, &history).iter().sum::<usize>(), 4);
        assert_eq!(hub.lock().groups.len(), 2, "both watchers are synced again");
        history.publish(&hub, ["key1".to_owned()], b"");
        assert_eq!(drain(&stream, &history), [1]);
    }

    /// The queues of all streams have bounded memory, and each stream gets all events.
    #[test]
    fn the_memory_of_all_queues_is_bounded() {
        let hub = Hub::new(1, QUEUE_EVENTS);
        let value = vec![0; 100_000];
        let streams: Vec<_> = (0..50).map(|_| WatchStream::open(&hub, || {})).collect();
        // Each watch has a span of its own, so batches are not shared.
        for (n, stream) in streams.iter().enumerate() {
            stream.create(watch("key", &format!("kez{n}")));
        }
        let mut history = History::default();
        for _ in 0..90 {
            history.publish(&hub, ["key".to_owned()], &value);
        }
        let used = hub.memory().used();
        assert!(used <= 256 << 20, "{used} bytes");
        assert!(used > 200 << 20, "{used} bytes");
        for stream in &streams {
            assert_eq!(drain(stream, &history).iter().sum::<usize>(), 90);
        }
        assert_eq!(hub.memory().used(), 0);
        let kept = WatchStream::open(&hub, || {});
        kept.create(watch("key", ""));
        history.publish(&hub, ["key".to_owned()], b"");
        drop((streams, kept));
        assert_eq!(hub.memory().used(), 0, "a dropped stream keeps nothing");
        assert_eq!(hub.watchers(), 0);
    }

    /// Progress is not reported while a watch starts in the future.
    #[test]
    fn a_progress_request_waits_for_no_future_watch() {
        let hub = Hub::new(5, QUEUE_EVENTS);
        let stream = WatchStream::open(&hub, || {});
        let mut history = History::default();
        stream.create(watch("key", ""));
        stream.create(Watch { start_revision: 7, id: 9, ..watch("key", "") });
        drain(&stream, &history);
        let progress = |history: &History| {
            stream.request_progress();
            matches!(stream.next_delivery(history), Some(Delivery::Progress { watch_id: -1, .. }))
        };
        assert!(!progress(&history));
        history.publish(&hub, ["other".to_owned()], b"");
        assert!(!progress(&history), "revision 7 is not published");
        history.publish(&hub, ["other".to_owned()], b"");
        assert!(progress(&history));
        stream.create(Watch { start_revision: 100, id: 10, ..watch("key", "") });
        drain(&stream, &history);
        assert!(!progress(&history));
        stream.cancel(10);
        drain(&stream, &history);
        assert!(progress(&history));
    }
}
