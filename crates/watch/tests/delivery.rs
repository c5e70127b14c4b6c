//! Random sequences of publications, watch requests and deliveries. Each watcher receives
//! all of its events once and in order, and a progress notification never precedes an
//! event that it covers.

use std::cell::RefCell;
use std::collections::HashMap;

use etcdpb::Record;
use mvcc::{Event, Span};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use watch::{Compacted, Delivery, Filter, HistoryPosition, HistoryReader, Hub, Watch, WatchStream};

/// All published events.
#[derive(Default)]
struct History {
    events: RefCell<Vec<Event>>,
    compacted: RefCell<i64>,
}

impl HistoryReader for History {
    fn read(
        &self,
        span: &Span,
        from: HistoryPosition,
        to: i64,
        events: &mut Vec<Event>,
    ) -> Result<HistoryPosition, Compacted> {
        let compacted = *self.compacted.borrow();
        if from.revision < compacted {
            return Err(Compacted { revision: compacted });
        }
        // Read one event at a time, to allow as many interleavings as possible.
        let all = self.events.borrow();
        let mut later = all.iter().filter(|e| (from.revision..=to).contains(&e.revision()));
        let Some(event) = later.nth(from.visited) else {
            return Ok(HistoryPosition::start_of(to + 1));
        };
        let revision = event.revision();
        if from.visited > 0 && revision > from.revision {
            return Ok(HistoryPosition::start_of(revision));
        }
        events.extend(Some(event).filter(|e| span.contains(e.record.key())).cloned());
        let visited = if revision > from.revision { 1 } else { from.visited + 1 };
        match later.next().is_none_or(|next| next.revision() > revision) {
            true => Ok(HistoryPosition::start_of(revision + 1)),
            false => Ok(HistoryPosition { revision, visited }),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Publishes a batch: for each revision, the keys that it changes.
    Publish(Vec<Vec<u8>>),
    /// Creates a watch that starts `back` revisions before the newest revision. The value 0
    /// is special: the watch starts at the next revision.
    Create {
        key: u8,
        end: Option<u8>,
        back: i64,
        no_put: bool,
    },
    /// Cancels the watch at this position.
    Cancel(usize),
    RequestProgress,
    PeriodicProgress,
    /// Takes up to this many deliveries.
    Take(usize),
    /// Compacts the history `back` revisions before the newest one.
    Compact {
        back: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let revision = prop::collection::vec(0u8..6, 1..4);
    prop_oneof![
        8 => prop::collection::vec(revision, 1..4).prop_map(Step::Publish),
        3 => (0u8..6, prop::option::of(0u8..8), -2i64..10, prop::bool::weighted(0.2))
            .prop_map(|(key, end, back, no_put)| Step::Create { key, end, back, no_put }),
        1 => (0usize..8).prop_map(Step::Cancel),
        2 => Just(Step::RequestProgress),
        1 => Just(Step::PeriodicProgress),
        8 => (1usize..12).prop_map(Step::Take),
        1 => (0i64..6).prop_map(|back| Step::Compact { back }),
    ]
}

/// The events that the client has received for one watch.
struct Received {
    watch: Watch,
    /// The first revision of the watch.
    from: i64,
    /// The revision and the key of each event.
    events: Vec<(i64, Vec<u8>)>,
    compacted: bool,
}

struct Client {
    stream: WatchStream,
    /// The watches whose creation has not been answered, each with the revision that was
    /// published when it was requested.
    requested: Vec<(Watch, i64)>,
    watches: HashMap<i64, Received>,
    /// The published revision.
    revision: i64,
}

impl Client {
    fn receive(&mut self, delivery: Delivery, history: &History) {
        match delivery {
            Delivery::Created { watch_id, revision } => {
                let (watch, now) = self.requested.remove(0);
                assert_eq!(now, revision);
                let from =
                    if watch.start_revision == 0 { revision + 1 } else { watch.start_revision };
                let received = Received { watch, from, events: vec![], compacted: false };
                self.watches.insert(watch_id, received);
            }
            Delivery::Rejected { .. } => {
                assert!(self.requested.remove(0).0.span.is_empty());
            }
            Delivery::Canceled { watch_id, .. } => {
                self.watches.remove(&watch_id).expect("the cancelled watch exists");
            }
            Delivery::Compacted { watch_id, compact_revision, .. } => {
                let received = self.watches.get_mut(&watch_id).unwrap();
                let last_event =
                    received.expected(history).into_iter().map(|(r, _)| r).max().unwrap_or(0);
                assert!(received.from < compact_revision || last_event > 0);
                received.compacted = true;
            }
            Delivery::Events { watch_id, events, .. } => {
                let received =
                    self.watches.get_mut(&watch_id).expect("the watch of the events exists");
                assert!(!events.as_slice().is_empty());
                for event in events.as_slice().iter().cloned() {
                    received.events.push((event.revision(), event.record.key().to_vec()));
                }
                let last = received.events.last().expect("at least one event").0;
                let expected = received.expected(history).into_iter().filter(|e| e.0 <= last);
                assert_eq!(received.events, expected.collect::<Vec<_>>(), "whole revisions");
            }
            Delivery::Progress { watch_id, revision } => {
                assert!(revision <= self.revision);
                let of = |id: &i64| watch_id == -1 || watch_id == *id;
                for (_, received) in
                    self.watches.iter().filter(|(id, watch)| of(id) && !watch.compacted)
                {
                    let expected =
                        received.expected(history).into_iter().filter(|e| e.0 <= revision);
                    assert_eq!(
                        received.events,
                        expected.collect::<Vec<_>>(),
                        "events up to revision {revision} at its progress notification"
                    );
                }
            }
        }
    }
}

impl Received {
    /// Returns all published events of the watch.
    fn expected(&self, history: &History) -> Vec<(i64, Vec<u8>)> {
        let wanted = |event: &&Event| {
            event.revision() >= self.from
                && self.watch.span.contains(event.record.key())
                && (event.record.is_tombstone() || !self.watch.filter.no_put)
        };
        let events = history.events.borrow();
        let pair = |e: &Event| (e.revision(), e.record.key().to_vec());
        events.iter().filter(wanted).map(pair).collect()
    }
}

/// Returns the events of a batch. Advances `now`, the newest revision.
fn batch(revisions: &[Vec<u8>], now: &mut i64) -> Vec<Event> {
    let mut events = Vec::new();
    for keys in revisions {
        *now += 1;
        for key in keys {
            let record = match *now % 3 {
                0 => Record::tombstone(&[*key], *now),
                _ => Record::put(&[*key], b"v", *now, *now, 1, 0),
            };
            events.push(Event { record, previous: None });
        }
    }
    events
}

fn run(steps: &[Step], queue_events: usize) {
    let history = History::default();
    let mut now = 1;
    let hub = Hub::new(now, queue_events);
    let stream = WatchStream::open(&hub, || {});
    let mut client = Client { stream, requested: vec![], watches: HashMap::new(), revision: now };
    for step in steps {
        match step {
            Step::Publish(revisions) => {
                let events = batch(revisions, &mut now);
                history.events.borrow_mut().extend(events.iter().cloned());
                client.revision = now;
                hub.publish(&events, now);
            }
            Step::Create { key, end, back, no_put } => {
                let end = end.map_or(vec![], |end| vec![end + 1]);
                let watch = Watch {
                    id: 0,
                    span: Span::new(&[*key], &end),
                    start_revision: if *back == 0 { 0 } else { (now - back).max(1) },
                    filter: Filter { no_put: *no_put, no_delete: false },
                    prev_kv: false,
                    progress_notify: true,
                    fragment: false,
                };
                client.requested.push((watch.clone(), now));
                client.stream.create(watch);
            }
            Step::Cancel(nth) => {
                let ids: Vec<i64> =
                    client.watches.iter().filter(|w| !w.1.compacted).map(|w| *w.0).collect();
                if let Some(id) = ids.get(*nth) {
                    client.stream.cancel(*id);
                }
            }
            Step::RequestProgress => client.stream.request_progress(),
            Step::PeriodicProgress => client.stream.send_periodic_progress(),
            Step::Take(count) => {
                for _ in 0..*count {
                    let Some(delivery) = client.stream.next_delivery(&history) else { break };
                    client.receive(delivery, &history);
                }
            }
            Step::Compact { back } => {
                let mut compacted = history.compacted.borrow_mut();
                *compacted = (now - back).max(*compacted);
            }
        }
    }
    // A call returns nothing also if it has reached its limit of history reads. Therefore the
    // loop ends only after 100 such calls.
    let mut empty_calls = 0;
    while empty_calls < 100 {
        match client.stream.next_delivery(&history) {
            Some(delivery) => client.receive(delivery, &history),
            None => empty_calls += 1,
        }
    }
    for received in client.watches.values() {
        let expected = received.expected(&history);
        if received.compacted {
            assert!(expected.starts_with(&received.events), "the received events are no prefix");
        } else {
            assert_eq!(received.events, expected);
        }
    }
    drop(client);
    assert_eq!(hub.watchers(), 0, "dropping the stream has not removed its watchers");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/delivery.seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_event_is_delivered_once_and_in_order(steps in prop::collection::vec(step(), 1..80), queue in 1usize..20) {
        run(&steps, queue);
    }
}

fn put(revision: i64, key: &[u8]) -> Event {
    Event { record: Record::put(key, b"", revision, revision, 1, 0), previous: None }
}

fn all(id: i64) -> Watch {
    Watch {
        id,
        span: Span::new(b"\0", b"\0"),
        start_revision: 0,
        filter: Filter::default(),
        prev_kv: false,
        progress_notify: false,
        fragment: false,
    }
}

/// While the stream reads history for a watch, the client may cancel the watch and create
/// another one with the same ID. The stream must not confuse the two.
#[test]
fn a_watch_id_is_reused_while_history_is_read() {
    struct Interfering<'a>(&'a WatchStream, History);
    impl HistoryReader for Interfering<'_> {
        fn read(
            &self,
            _: &Span,
            _: HistoryPosition,
            to: i64,
            _: &mut Vec<Event>,
        ) -> Result<HistoryPosition, Compacted> {
            self.0.cancel(5);
            self.0.create(all(5));
            Ok(HistoryPosition::start_of(to + 1))
        }
    }
    let hub = Hub::new(9, 10);
    let stream = WatchStream::open(&hub, || {});
    stream.create(Watch { start_revision: 2, ..all(5) });
    let reader = Interfering(&stream, History::default());
    let deliveries: Vec<_> = (0..4).map(|_| stream.next_delivery(&reader)).collect();
    assert!(matches!(deliveries[0], Some(Delivery::Created { watch_id: 5, .. })));
    assert!(matches!(deliveries[1], Some(Delivery::Canceled { watch_id: 5, .. })));
    assert!(matches!(deliveries[2], Some(Delivery::Created { watch_id: 5, .. })));
    assert!(deliveries[3].is_none());
    hub.publish(&[put(10, b"k")], 10);
    assert!(matches!(stream.next_delivery(&reader.1), Some(Delivery::Events { watch_id: 5, .. })));
    assert!(stream.next_delivery(&reader.1).is_none());
}

/// A watcher whose queue overflows after a long time without events has missed nothing
/// before the overflow. A compaction at an earlier revision must not cancel it.
#[test]
fn overflow_after_an_idle_time_survives_compaction() {
    let history = History::default();
    let hub = Hub::new(1, 2);
    let stream = WatchStream::open(&hub, || {});
    stream.create(Watch { span: Span::new(b"k", b""), ..all(0) });
    for revision in 2..100 {
        hub.publish(&[put(revision, b"other")], revision);
    }
    *history.compacted.borrow_mut() = 99;
    for revision in 100..110 {
        history.events.borrow_mut().push(put(revision, b"k"));
        hub.publish(&[put(revision, b"k")], revision);
    }
    let mut revisions = Vec::new();
    while let Some(delivery) = stream.next_delivery(&history) {
        match delivery {
            Delivery::Events { events, .. } => {
                revisions.extend(events.as_slice().iter().map(Event::revision))
            }
            Delivery::Created { .. } => {}
            other => panic!("unexpected delivery {other:?}"),
        }
    }
    assert_eq!(revisions, (100..110).collect::<Vec<_>>());
}

#[test]
fn a_watch_id_is_chosen_by_the_client_or_is_the_next_free_one() {
    let stream = WatchStream::open(&Hub::new(1, 10), || {});
    for id in [0, 1, 0, 1] {
        stream.create(all(id));
    }
    let history = History::default();
    let mut responses = Vec::new();
    while let Some(delivery) = stream.next_delivery(&history) {
        responses.push(match delivery {
            Delivery::Created { watch_id, .. } => Ok(watch_id),
            Delivery::Rejected { reason, .. } => Err(reason),
            other => panic!("unexpected delivery {other:?}"),
        });
    }
    let duplicate = Err("mvcc: duplicate watch ID provided on the WatchStream");
    assert_eq!(responses, [Ok(0), Ok(1), Ok(2), duplicate]);
}
