//! Random operations on a cache, compared with a naive model of kube-apiserver's rules: it keeps the
//! state after every version, and derives every answer from these states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::cache::{Cache, Change, Inconsistent, Refused, Start, Started};
use super::content::Content;
use super::frame::{EventType, Frame};
use super::kind::Kind;
use super::mailbox::{Item, Mailbox};
use super::object::Object;
use super::object::sample::pod;
use super::selector::Selector;

const NODES: [&str; 3] = ["", "n1", "n2"];
const MARK: &str = "k8s.io/initial-events-end";

/// An operation. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Operation {
    Put { name: u8, node: u8, gap: u8 },
    Delete { name: u8, gap: u8 },
    Progress { gap: u8 },
    Wait { seconds: u8 },
    List { selector: u8, back: i8 },
    Watch { selector: u8, start: u8, back: i16 },
    Close { watch: u8 },
    Replace { gap: u8 },
    Bookmark,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let gap = 0..3_u8;
    prop_oneof![
        12 => (0..6_u8, 0..3_u8, gap.clone())
            .prop_map(|(name, node, gap)| Put { name, node, gap }),
        4 => (0..6_u8, gap.clone()).prop_map(|(name, gap)| Delete { name, gap }),
        2 => gap.clone().prop_map(|gap| Progress { gap }),
        1 => (0..100_u8).prop_map(|seconds| Wait { seconds }),
        3 => (any::<u8>(), -3..5_i8).prop_map(|(selector, back)| List { selector, back }),
        6 => (any::<u8>(), any::<u8>(), -3..300_i16)
            .prop_map(|(selector, start, back)| Watch { selector, start, back }),
        1 => any::<u8>().prop_map(|watch| Close { watch }),
        1 => gap.prop_map(|gap| Replace { gap }),
        2 => Just(Bookmark),
    ]
}

type State = BTreeMap<String, (Bytes, u8)>;

/// A watch and what it got.
struct Watch {
    selector: Selector,
    mailbox: Arc<Mailbox>,
    number: u64,
    expected: Vec<Frame>,
    got: Vec<Frame>,
    /// Changes up to it are not expected.
    floor: u64,
    is_open: bool,
}

struct World {
    kind: Kind,
    cache: Cache,
    now: Instant,
    version: u64,
    /// The version of the last list.
    listed: u64,
    /// The state after each change, with its time.
    states: Vec<(u64, Instant, State)>,
    watches: Vec<Watch>,
}

fn selector(kind: Kind, number: u8) -> Selector {
    if kind.is_referenced() {
        let name = number % 7;
        // Sometimes the namespace has no such object.
        let namespace = if number > 200 { 1 - name % 2 } else { name % 2 };
        let text = |prefix, number| format!("{prefix}{number}").into_bytes().into();
        return Selector::Object { namespace: text("ns", namespace), name: text("p", name) };
    }
    match number % 5 {
        0 => Selector::Without(Default::default()),
        1 => Selector::Name((*b"p1").into()),
        other => Selector::Node(NODES[usize::from(other) - 2].as_bytes().into()),
    }
}

fn selects(selector: &Selector, key: &str, node: u8) -> bool {
    match selector {
        Selector::Without(_) => true,
        Selector::Name(name) => key.as_bytes().ends_with(name),
        Selector::Object { namespace, name } => {
            key.as_bytes() == [&namespace[..], b"/", name].concat()
        }
        Selector::Namespace(namespace) => {
            key.as_bytes().starts_with(&[&namespace[..], b"/"].concat())
        }
        Selector::Node(wanted) => NODES[usize::from(node)].as_bytes() == &wanted[..],
    }
}

fn parsed(bytes: &Bytes) -> Object {
    Object::parse(Kind::Pods, bytes.clone()).unwrap()
}

fn bookmark(version: u64, marked: bool) -> Bytes {
    pod("", "", "", version, if marked { MARK } else { "" })
}

fn content(kind: Kind, objects: Vec<Object>, marked: Object) -> Result<Content, Inconsistent> {
    Content::new(kind, objects, marked, false)
}

/// Begins with these objects at a version.
fn replace(cache: &mut Cache, objects: Vec<Object>, version: u64) {
    let content = content(Kind::Pods, objects, parsed(&bookmark(version, true)));
    drop(cache.replace(content.unwrap()));
}

impl World {
    fn new(kind: Kind) -> World {
        let mut world = World {
            kind,
            cache: Cache::new(kind),
            now: Instant::now(),
            version: 0,
            listed: 0,
            states: vec![(0, Instant::now(), State::new())],
            watches: Vec::new(),
        };
        world.replace(10);
        world
    }

    fn state(&self) -> &State {
        &self.states.last().unwrap().2
    }

    fn replace(&mut self, gap: u64) {
        self.version += gap + 1;
        self.listed = self.version;
        let state = self.state().clone();
        self.states = vec![(self.version, self.now, state.clone())];
        let objects = state.values().map(|(bytes, _)| parsed(bytes)).collect();
        replace(&mut self.cache, objects, self.version);
        self.cache.serve(true);
        self.watches.iter_mut().for_each(|watch| watch.is_open = false);
    }

    /// Applies a change to the cache and to the model.
    fn change(&mut self, key: &str, after: Option<u8>, gap: u8) {
        let before = self.state().get(key).cloned();
        if before.is_none() && after.is_none() {
            return;
        }
        self.version += u64::from(gap) + 1;
        let text = self.version.to_string();
        let (namespace, name) = key.split_once('/').unwrap();
        let encoded =
            |node: u8| pod(namespace, name, NODES[usize::from(node)], self.version, &text);
        let event = match (&before, after) {
            (None, _) => EventType::Added,
            (_, Some(_)) => EventType::Modified,
            (_, None) => EventType::Deleted,
        };
        let last = |(bytes, _): &(Bytes, u8)| parsed(bytes).with_version(self.version);
        let object = after.map(encoded).or(before.as_ref().map(last)).unwrap();
        let mut state = self.state().clone();
        match after {
            Some(node) => drop(state.insert(key.to_owned(), (object.clone(), node))),
            None => drop(state.remove(key)),
        }
        let delivered = self.cache.apply(Change { event, object: parsed(&object) }, self.now);
        self.states.push((self.version, self.now, state));
        let at = self.states.len() - 1;
        let mut expected = 0;
        for index in 0..self.watches.len() {
            let watch = &self.watches[index];
            if watch.is_open && watch.floor < self.version {
                let frame = self.frame(&watch.selector, at);
                expected += usize::from(frame.is_some());
                self.watches[index].expected.extend(frame);
            }
        }
        assert_eq!(delivered, Ok(expected));
    }

    /// What the change that led to a state is to a watch.
    fn frame(&self, selector: &Selector, at: usize) -> Option<Frame> {
        let (version, _, after) = &self.states[at];
        let (_, _, before) = &self.states[at - 1];
        let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let key = keys.into_iter().find(|key| before.get(*key) != after.get(*key))?;
        let selected = |state: &State| {
            state.get(key).filter(|(_, node)| selects(selector, key, *node)).cloned()
        };
        match (selected(before), selected(after)) {
            (None, None) => None,
            (None, Some((bytes, _))) => Some(Frame::new(EventType::Added, bytes)),
            (Some(_), Some((bytes, _))) => Some(Frame::new(EventType::Modified, bytes)),
            (Some((bytes, _)), None) => {
                Some(Frame::new(EventType::Deleted, parsed(&bytes).with_version(*version)))
            }
        }
    }

    fn selected(&self, selector: &Selector) -> Vec<Bytes> {
        let state = self.state().iter();
        let selected = state.filter(|(key, (_, node))| selects(selector, key, *node));
        selected.map(|(_, (bytes, _))| bytes.clone()).collect()
    }

    fn list(&self, selector: &Selector, at_least: u64) {
        let listed = self.cache.list(selector, at_least);
        if at_least > self.version {
            assert_eq!(listed.err(), Some(Refused::Behind));
            return;
        }
        let (version, objects) = listed.unwrap();
        let objects: Vec<_> = objects.iter().map(|object| object.envelope().clone()).collect();
        assert_eq!((version, objects), (self.version, self.selected(selector)));
    }

    fn watch(&mut self, selector: Selector, start: Start) {
        let mailbox = Arc::new(Mailbox::default());
        let started = self.cache.watch(&selector, start, &mailbox, 7);
        let mut expected = Vec::new();
        let mut floor = self.version;
        match start {
            Start::Now => {}
            Start::State { at_least, .. } if at_least > self.version => {
                assert_eq!(started.err(), Some(Refused::Behind));
                return;
            }
            Start::State { marked, .. } => {
                let objects = self.selected(&selector).into_iter();
                expected.extend(objects.map(|bytes| Frame::new(EventType::Added, bytes)));
                let mark = || Frame::new(EventType::Bookmark, bookmark(self.version, true));
                expected.extend(marked.then(mark));
            }
            Start::After(version) => {
                floor = version;
                let oldest = self.oldest();
                if version < oldest {
                    let Ok(Started::Expired(frame)) = started else { panic!("{started:?}") };
                    assert_eq!(frame, Frame::expired(version, oldest));
                    return;
                }
                for at in 1..self.states.len() {
                    if self.states[at].0 > version {
                        expected.extend(self.frame(&selector, at));
                    }
                }
            }
        }
        let Ok(Started::Open { number, objects, frames, .. }) = started else {
            panic!("{started:?}")
        };
        let added = |object: &Arc<Object>| Frame::new(EventType::Added, object.envelope().clone());
        let got = objects.iter().map(added).chain(frames).collect();
        let is_open = true;
        self.watches.push(Watch { selector, mailbox, number, expected, got, floor, is_open });
    }

    /// The lowest version from which a watch can begin: 100 changes are kept, and those of 150 s.
    fn oldest(&self) -> u64 {
        let mut kept: Vec<(u64, Instant)> = Vec::new();
        let mut oldest = self.listed;
        for (version, time, _) in &self.states[1..] {
            kept.push((*version, *time));
            let is_old = |first: &(u64, Instant)| *time - first.1 > Duration::from_secs(150);
            while kept.len() > 100 && kept.first().is_some_and(is_old) {
                kept.remove(0);
                oldest = kept[0].0 - 1;
            }
        }
        oldest
    }

    fn collect(&mut self) {
        for watch in &mut self.watches {
            let delivery = watch.mailbox.take();
            let mut has_ended = false;
            for (stream, item) in delivery.items {
                assert_eq!(stream, 7);
                match item {
                    Item::Event(frame) => watch.got.push(frame),
                    Item::End => has_ended = true,
                }
            }
            assert!(!delivery.overflowed && (!has_ended || !watch.is_open));
        }
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Put { name, node, gap } => {
                self.change(&format!("ns{}/p{name}", name % 2), Some(node), gap);
            }
            Operation::Delete { name, gap } => {
                self.change(&format!("ns{}/p{name}", name % 2), None, gap);
            }
            Operation::Progress { gap } => {
                self.version += u64::from(gap);
                self.cache.progress(self.version).unwrap();
            }
            Operation::Wait { seconds } => self.now += Duration::from_secs(seconds.into()),
            Operation::List { selector: number, back } => {
                let at_least = self.version.saturating_add_signed(-i64::from(back));
                self.list(&selector(self.kind, number), at_least);
            }
            Operation::Watch { selector: number, start, back } => {
                let version = self.version.saturating_add_signed(-i64::from(back));
                let start = match start % 8 {
                    0 => Start::Now,
                    1 => Start::State { at_least: version, marked: start > 127 },
                    2 => Start::State { at_least: 0, marked: true },
                    _ => Start::After(version),
                };
                self.watch(selector(self.kind, number), start);
            }
            Operation::Close { watch } if !self.watches.is_empty() => {
                let at = usize::from(watch) % self.watches.len();
                let watch = &mut self.watches[at];
                watch.is_open = false;
                self.cache.remove(&watch.selector, watch.number);
            }
            Operation::Close { .. } => {}
            Operation::Replace { gap } => self.replace(gap.into()),
            Operation::Bookmark => {
                let expected = Frame::new(EventType::Bookmark, bookmark(self.version, false));
                assert_eq!(self.cache.bookmark(), Some((self.version, expected)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_model_says(
        operations in prop::collection::vec(operation(), 1..400)
    ) {
        for kind in [Kind::Pods, Kind::Secrets] {
            let mut world = World::new(kind);
            for operation in operations.clone() {
                world.run(operation);
            }
            world.collect();
            for watch in &world.watches {
                prop_assert!(watch.got == watch.expected);
            }
            let open = world.watches.iter().filter(|watch| watch.is_open).count();
            prop_assert_eq!(world.cache.counts(), (open, world.state().len()));
            let objects = world.state().values().map(|(bytes, _)| parsed(bytes).size());
            prop_assert!(world.cache.size() >= objects.sum());
        }
    }
}

#[test]
fn what_does_not_follow_is_refused() {
    let object = |name: &str, version| parsed(&pod("ns", name, "n", version, ""));
    let mut cache = Cache::new(Kind::Pods);
    let change = |event, name: &str, version| Change { event, object: object(name, version) };
    let now = Instant::now();
    assert!(cache.apply(change(EventType::Added, "a", 1), now).is_err(), "nothing was listed");
    cache.serve(true);
    assert!(!cache.is_serving() && cache.bookmark().is_none());
    let marked = || parsed(&bookmark(10, true));
    let content = |objects, marked| content(Kind::Pods, objects, marked);
    assert!(content(vec![object("a", 11)], marked()).is_err(), "newer than the bookmark");
    assert!(content(vec![object("a", 1), object("a", 2)], marked()).is_err(), "twice");
    assert!(content(vec![], parsed(&bookmark(10, false))).is_err(), "no mark");
    replace(&mut cache, vec![object("a", 9)], 10);
    assert_eq!(cache.list(&selector(Kind::Pods, 0), 0).err(), Some(Refused::NotServing));
    assert!(cache.apply(change(EventType::Modified, "a", 10), now).is_err(), "not higher");
    assert!(cache.progress(9).is_err(), "lower");
    for (event, name) in [
        (EventType::Added, "a"),
        (EventType::Modified, "b"),
        (EventType::Deleted, "b"),
        (EventType::Bookmark, "a"),
    ] {
        replace(&mut cache, vec![object("a", 9)], 10);
        assert!(cache.apply(change(event, name, 11), now).is_err(), "{event:?} {name}");
    }
}

#[test]
fn the_size_is_that_of_the_objects_and_their_changes() {
    let object = |name: &str, version| parsed(&pod("ns", name, "n", version, ""));
    let change = |event, name: &str, version| Change { event, object: object(name, version) };
    let mut cache = Cache::new(Kind::Secrets);
    assert_eq!(cache.size(), 0);
    let objects = vec![object("a", 8), object("b", 9)];
    let each = objects[0].size();
    replace(&mut cache, objects, 10);
    assert_eq!(cache.size(), 2 * each);
    let mut last = cache.size();
    let mut grows = |cache: &Cache| cache.size() - std::mem::replace(&mut last, cache.size());
    let now = Instant::now();
    cache.apply(change(EventType::Added, "c", 11), now).unwrap();
    assert!((each..2 * each).contains(&grows(&cache)));
    // What was there before is kept for the history.
    cache.apply(change(EventType::Modified, "c", 12), now).unwrap();
    assert!((each..2 * each).contains(&grows(&cache)));
    // So is what was deleted.
    cache.apply(change(EventType::Deleted, "c", 13), now).unwrap();
    assert!((1..each).contains(&grows(&cache)));
    drop(cache.clear());
    assert_eq!(cache.size(), 0);
}

#[test]
fn an_event_visits_the_watches_of_its_object_alone() {
    let mut cache = Cache::new(Kind::Secrets);
    replace(&mut cache, Vec::new(), 10);
    cache.serve(true);
    let mailboxes: Vec<Arc<Mailbox>> = (0..3).map(|_| Arc::default()).collect();
    let now = Instant::now();
    for (mailbox, (namespace, name)) in
        mailboxes.iter().zip([("ns", "a"), ("ns", "b"), ("other", "a")])
    {
        let (namespace, name) = (namespace.as_bytes().into(), name.as_bytes().into());
        let selector = Selector::Object { namespace, name };
        cache.watch(&selector, Start::Now, mailbox, 7).unwrap();
    }
    let object = parsed(&pod("ns", "a", "n", 11, ""));
    let delivered = cache.apply(Change { event: EventType::Added, object }, now);
    assert_eq!(delivered, Ok(1));
    let counts = mailboxes.iter().map(|mailbox| mailbox.take().items.len());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 0, 0]);
}
