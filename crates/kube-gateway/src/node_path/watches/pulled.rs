//! Random changes of the store in a cache whose watches pull, compared with a list of all events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::cache::{Cache, Got, Inconsistent, Start, Started, StoredChange};
use super::content::Content;
use super::event::Event;
use super::frame::{EventType, Frame};
use super::kind::Kind;
use super::mailbox::Mailbox;
use super::object::Object;
use super::object::sample::object;
use super::selector::Selector;
use super::store_source::marked_bookmark;

const NAMESPACES: [&str; 2] = ["a", "b"];

fn lease(namespace: &str, name: &str, version: u64, text: &str) -> Bytes {
    object(Kind::Leases, namespace, name, version, &[], text, b"")
}

fn parsed(bytes: &Bytes) -> Object {
    Object::parse(Kind::Leases, bytes.clone()).unwrap()
}

fn all() -> Selector {
    Selector::Without(Default::default())
}

/// A cache that serves, with no Leases at version 10.
fn empty() -> Cache {
    let mut cache = Cache::new(Kind::Leases);
    let content = Content::new(Kind::Leases, Vec::new(), marked_bookmark(10).unwrap(), false);
    assert!(cache.replace(content.unwrap()).is_none());
    cache.serve(true);
    cache
}

/// A watch and the bytes that it got.
struct Watch {
    selector: Selector,
    version: u64,
    got: Vec<u8>,
    expected: Vec<u8>,
}

struct World {
    cache: Cache,
    version: u64,
    state: BTreeMap<(u8, u8), Bytes>,
    watches: Vec<Watch>,
    mailbox: Arc<Mailbox>,
    now: Instant,
}

/// What happens: changes of some Leases (a namespace, a name, and whether it exists afterwards) of one or several
/// revisions, a watch that begins, or one that pulls.
#[derive(Clone, Debug)]
enum Step {
    Change(Vec<(u8, u8, bool, bool)>),
    Watch(u8),
    Pull(u8, u16),
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..2_u8, 0..4_u8, prop::bool::weighted(0.8), any::<bool>());
    prop_oneof![
        4 => prop::collection::vec(change, 1..6).prop_map(Step::Change),
        1 => (0..3_u8).prop_map(Step::Watch),
        3 => (any::<u8>(), 0..2000_u16).prop_map(|(watch, max)| Step::Pull(watch, max)),
    ]
}

impl World {
    fn run(&mut self, step: Step) {
        match step {
            Step::Change(changes) => self.change(changes),
            Step::Watch(selector) => self.watch(selector),
            Step::Pull(watch, max) if !self.watches.is_empty() => {
                let at = usize::from(watch) % self.watches.len();
                self.pull(at, max.into());
            }
            Step::Pull(..) => {}
        }
    }

    fn change(&mut self, changes: Vec<(u8, u8, bool, bool)>) {
        let (mut stored, mut of_revision) = (Vec::new(), Vec::new());
        for (namespace, name, exists, is_next) in changes {
            // A revision has one change of a key at most.
            if is_next || stored.is_empty() || of_revision.contains(&(namespace, name)) {
                self.version += 1;
                of_revision.clear();
            }
            of_revision.push((namespace, name));
            let text = (NAMESPACES[usize::from(namespace)], format!("l{name}"));
            let bytes = lease(text.0, &text.1, self.version, "");
            let before = self.state.remove(&(namespace, name));
            let (event, object) = match (before, exists) {
                (None, false) => continue,
                (Some(before), false) => {
                    (EventType::Deleted, parsed(&before).with_version(self.version))
                }
                (None, true) => (EventType::Added, bytes.clone()),
                (Some(_), true) => (EventType::Modified, bytes.clone()),
            };
            let frame = Frame::new(event, object);
            let selects = |watch: &&mut Watch| watch.selector.selects(&parsed(&bytes));
            for watch in self.watches.iter_mut().filter(selects) {
                watch.expected.extend_from_slice(&frame.head);
                watch.expected.extend_from_slice(&frame.object);
            }
            stored.push(match exists {
                true => {
                    self.state.insert((namespace, name), bytes.clone());
                    StoredChange::Put(parsed(&bytes))
                }
                false => {
                    let key = parsed(&bytes).key();
                    StoredChange::Deleted { key, version: self.version }
                }
            });
        }
        if !stored.is_empty() {
            self.cache.apply_stored(stored, self.now).unwrap();
            let streams = if self.watches.is_empty() { &[][..] } else { &[7] };
            assert_eq!(self.mailbox.take().announced, streams);
        }
        self.cache.progress(self.version).unwrap();
    }

    fn watch(&mut self, selector: u8) {
        let selector = match selector {
            2 => all(),
            namespace => Selector::Namespace(NAMESPACES[usize::from(namespace)].as_bytes().into()),
        };
        let start = Start::After(self.version);
        let started = self.cache.watch(&selector, start, &self.mailbox, 7).unwrap();
        let Started::Open { frames, floor, .. } = started else { panic!("it is not open") };
        assert_eq!((frames.len(), floor), (0, self.version));
        let version = self.version;
        self.watches.push(Watch { selector, version, got: Vec::new(), expected: Vec::new() });
    }

    fn pull(&mut self, at: usize, max: usize) {
        let watch = &mut self.watches[at];
        let pulled = self.cache.pull(&watch.selector, Got::all(watch.version), max).unwrap();
        assert!(
            pulled.got.version >= watch.version
                && (pulled.bytes.is_empty() == (pulled.events == 0))
        );
        watch.version = pulled.got.version;
        watch.got.extend_from_slice(&pulled.bytes);
        assert!(watch.expected.starts_with(&watch.got), "an event is wrong or missing");
        if pulled.is_complete {
            assert_eq!((watch.got.len(), watch.version), (watch.expected.len(), self.version));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_watch_pulls_each_event_once_and_in_order(steps in prop::collection::vec(step(), 1..100)) {
        let mut world = World {
            cache: empty(),
            version: 10,
            state: BTreeMap::new(),
            watches: Vec::new(),
            mailbox: Arc::default(),
            now: Instant::now(),
        };
        for step in steps {
            world.run(step);
        }
        for at in 0..world.watches.len() {
            world.pull(at, usize::MAX);
        }
        let (version, listed) = world.cache.list(&all(), 0).unwrap();
        let listed: Vec<_> = listed.iter().map(|object| object.envelope().clone()).collect();
        prop_assert_eq!((version, listed), (world.version, world.state.into_values().collect()));
    }
}

#[test]
fn the_events_of_a_revision_are_pulled_together() {
    let mut cache = empty();
    let put = |name: &str, version| StoredChange::Put(parsed(&lease("a", name, version, "")));
    let changes = vec![put("x", 11), put("y", 11), put("z", 12)];
    cache.apply_stored(changes, Instant::now()).unwrap();
    let first = cache.pull(&all(), Got::all(10), 1).unwrap();
    assert_eq!((first.events, first.got.version, first.is_complete), (2, 11, false));
    let second = cache.pull(&all(), Got::all(11), 1).unwrap();
    assert_eq!((second.events, second.got.version, second.is_complete), (1, 12, true));
    // A version that the store has not reached yet.
    let later = cache.pull(&all(), Got::all(15), 1).unwrap();
    assert_eq!((later.events, later.got.version, later.is_complete), (0, 15, true));
    let Some(bookmark) = cache.bookmark_at(12) else { panic!("it serves") };
    assert_eq!(parsed(&bookmark.object).version(), 12);
}

#[test]
fn a_watch_that_has_a_part_of_a_version_pulls_the_rest() {
    let mut cache = empty();
    let put = |namespace: &str, name: &str, version| {
        StoredChange::Put(parsed(&lease(namespace, name, version, "")))
    };
    // An API server can be ahead of the cache.
    let got = Got::some_of(12, 1);
    let before = cache.pull(&all(), got, usize::MAX).unwrap();
    assert_eq!((before.events, before.got, before.is_complete), (0, got, true));
    assert!(cache.has_all_of(11) && !cache.has_all_of(10), "what was listed has no changes");
    let changes = [("a", "x", 12), ("b", "y", 12), ("a", "z", 12), ("a", "x", 13)];
    let changes = changes.map(|(namespace, name, version)| put(namespace, name, version));
    cache.apply_stored(changes.into(), Instant::now()).unwrap();
    let rest = |selector: &Selector, events, max| {
        let pulled = cache.pull(selector, Got::some_of(12, events), max).unwrap();
        (pulled.events, pulled.got)
    };
    let namespace = Selector::Namespace((*b"a").into());
    assert_eq!(rest(&all(), 0, usize::MAX), (1, Got::all(13)), "all of it");
    assert_eq!(rest(&all(), 1, usize::MAX), (3, Got::all(13)));
    assert_eq!(rest(&all(), 1, 1), (2, Got::all(12)));
    assert_eq!(rest(&all(), 3, usize::MAX), (1, Got::all(13)));
    assert_eq!(rest(&namespace, 1, usize::MAX), (2, Got::all(13)), "events of others do not count");
    assert_eq!(rest(&namespace, 2, usize::MAX), (1, Got::all(13)));
}

#[test]
fn a_watch_that_is_too_slow_ends() {
    let mut cache = empty();
    let start = Instant::now();
    for version in 11..=120 {
        let change = StoredChange::Put(parsed(&lease("a", "x", version, "")));
        let now = start + Duration::from_secs(if version == 120 { 200 } else { 0 });
        cache.apply_stored(vec![change], now).unwrap();
    }
    assert_eq!(cache.pull(&all(), Got::all(19), 1), None);
    assert_eq!(cache.pull(&all(), Got::all(20), usize::MAX).unwrap().events, 100);
    cache.serve(false);
    assert_eq!(cache.pull(&all(), Got::all(20), 1), None);
    assert!(cache.bookmark_at(20).is_none());
}

#[test]
fn a_watch_goes_on_between_the_last_change_that_was_removed_and_the_next_one() {
    let mut cache = empty();
    let start = Instant::now();
    for number in 1..=101 {
        let change = StoredChange::Put(parsed(&lease("a", "x", 10 * number + 10, "")));
        let now = start + Duration::from_secs(200 * number);
        cache.apply_stored(vec![change], now).unwrap();
    }
    assert_eq!(cache.pull(&all(), Got::all(19), 1), None);
    assert_eq!(cache.pull(&all(), Got::all(20), usize::MAX).unwrap().events, 100);
}

#[test]
fn a_pull_ends_after_many_changes_of_other_namespaces() {
    let mut cache = empty();
    let changes = |namespace, versions: std::ops::RangeInclusive<u64>| {
        versions.map(move |version| StoredChange::Put(parsed(&lease(namespace, "x", version, ""))))
    };
    let changes = changes("b", 11..=5010).chain(changes("a", 5011..=5011));
    cache.apply_stored(changes.collect(), Instant::now()).unwrap();
    let selector = Selector::Namespace((*b"a").into());
    let first = cache.pull(&selector, Got::all(10), usize::MAX).unwrap();
    assert_eq!((first.events, first.is_complete, first.got.version), (0, false, 10 + 4096));
    let second = cache.pull(&selector, Got::all(first.got.version), usize::MAX).unwrap();
    assert_eq!((second.events, second.is_complete, second.got.version), (1, true, 5011));
}

#[test]
fn a_list_has_the_leases_of_its_namespace() {
    let mut cache = empty();
    let leases = [("a", "x"), ("a-b", "x"), ("a.b", "x"), ("a", "y"), ("a0", "x"), ("aa", "a")];
    for (version, (namespace, name)) in (11..).zip(leases) {
        let change = StoredChange::Put(parsed(&lease(namespace, name, version, "")));
        cache.apply_stored(vec![change], Instant::now()).unwrap();
    }
    for (namespace, expected) in [("a", &["x", "y"][..]), ("a-b", &["x"]), ("b", &[])] {
        let selector = Selector::Namespace(namespace.as_bytes().into());
        let (_, listed) = cache.list(&selector, 0).unwrap();
        let names: Vec<_> = listed.iter().map(|object| object.name()).collect();
        assert_eq!(names, expected.iter().map(|name| name.as_bytes()).collect::<Vec<_>>());
        assert!(listed.iter().all(|object| selector.selects(object)));
    }
}

#[test]
fn changes_that_do_not_follow_are_refused() {
    let put = |version| StoredChange::Put(parsed(&lease("a", "x", version, "")));
    let deleted = |version| StoredChange::Deleted { key: (*b"a/x").into(), version };
    for changes in [vec![put(10)], vec![put(12), put(11)], vec![deleted(11)]] {
        let result = empty().apply_stored(changes, Instant::now());
        assert!(matches!(result, Err(Inconsistent(_))));
    }
    let mut cache = empty();
    cache.apply_stored(vec![put(11)], Instant::now()).unwrap();
    assert!(cache.apply_stored(vec![put(11)], Instant::now()).is_err(), "the same revision again");
    assert!(Cache::new(Kind::Leases).apply_stored(vec![put(11)], Instant::now()).is_err());
}

/// At 10,000 renewals/s, the history of 102,400 events has one of each of 100,000 Leases.
#[test]
fn a_lease_with_its_last_change_takes_a_kilobyte() {
    // What kube-apiserver sends of the Lease of a kubelet has about 430 bytes.
    let bytes = lease("kube-node-lease", "node-00001", 20_001, &"x".repeat(332));
    let (key, object) = (parsed(&bytes).key(), parsed(&bytes));
    assert!((420..440).contains(&bytes.len()), "{}", bytes.len());
    // Counters of Arcs, and what a BTreeMap keeps free.
    let counters = 2 * 2 * size_of::<usize>();
    let in_cache = 3 * (size_of::<Box<[u8]>>() + size_of::<Arc<Object>>()) / 2 + key.len();
    let in_history = size_of::<(Instant, Arc<Event>)>() + size_of::<Event>();
    let each = bytes.len() + size_of_val(&object) + counters + in_cache + in_history;
    assert!(each <= 1024, "{each}");
    // The history shares the object with the cache.
    let mut cache = empty();
    for version in [11, 12] {
        let object = parsed(&lease("a", "x", version, ""));
        cache.apply_stored(vec![StoredChange::Put(object)], Instant::now()).unwrap();
    }
    let (_, listed) = cache.list(&all(), 0).unwrap();
    // The list, the cache, and what the last event was before and after.
    assert_eq!(Arc::strong_count(&listed[0]), 4);
}
