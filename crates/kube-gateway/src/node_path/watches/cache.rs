//! The watch cache of one resource: what kube-apiserver's `storage/cacher` does, without I/O.
//!
//! # Invariants
//! - Changes are applied in the order of their versions, each once. Anything else is refused, and the
//!   objects must then be listed again.
//! - A watch gets each change after the version where it began once, and in order. What it gets at its
//!   start and what comes later meet without a gap, because both happen under the same lock.
//! - A bookmark has a version up to which all changes were delivered before.
//! - While nothing is [served](Cache::serve), there is no watch.
//!
//! Events are pushed to the watches: each concerns few of many. Those of objects that come from the store
//! ([`Kind::is_stored`]) concern all watches, and there are thousands in a second. So a watch is told that
//! there are some, and pulls them from the history when its client has taken the ones before. A slow client
//! takes no memory, and its watch ends when the history does not have its next event any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::event::Event;
use super::frame::{EventType, Frame};
use super::graph::Graph;
use super::history::History;
use super::kind::Kind;
use super::mailbox::Mailbox;
use super::object::{Object, object_key};
use super::selector::Selector;
use super::watchers::{Watcher, Watchers};

/// The annotation of the bookmark after the initial events of a watch.
pub const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// Changes that a pull visits, while others wait for the cache.
const MAX_VISITED: usize = 4096;

type Key = Box<[u8]>;

/// The watch cache of one resource.
pub struct Cache {
    kind: Kind,
    content: Option<Content>,
    is_serving: bool,
    watchers: Watchers,
    /// Whether pods are asked for what they refer to.
    has_references: bool,
    /// Whether a source reports changes at this moment.
    is_connected: bool,
}

/// The objects and their last changes.
struct Content {
    version: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    /// Keys of the objects of each node, if objects belong to nodes.
    by_node: HashMap<Box<[u8]>, BTreeSet<Key>>,
    history: History,
    bookmarks: Bookmarks,
    /// The bytes of the objects.
    size: usize,
    /// What pods refer to.
    graph: Option<Graph>,
}

/// Bookmarks as the API server encodes them.
struct Bookmarks {
    marked: Object,
    plain: Object,
    /// The last one that was sent.
    last: Option<(u64, Frame)>,
}

/// A change that the API server reports.
pub struct Change {
    /// What happened.
    pub event: EventType,
    /// The object after it, or the last one with the version of its deletion.
    pub object: Object,
}

/// A change that the store reports.
pub enum StoredChange {
    /// The object was created or changed.
    Put(Object),
    /// The object with this key was deleted.
    Deleted {
        /// The key, without the prefix of the resource.
        key: Box<[u8]>,
        /// The revision.
        version: u64,
    },
}

impl StoredChange {
    fn version(&self) -> u64 {
        match self {
            StoredChange::Put(object) => object.version(),
            StoredChange::Deleted { version, .. } => *version,
        }
    }
}

/// The last change that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// The key of the object, without the prefix of the resource.
    pub key: Box<[u8]>,
    /// The version of the change.
    pub version: u64,
    /// The object after it, as it is sent; `None` if it was deleted.
    pub object: Option<Bytes>,
}

/// What follows for a watch.
#[derive(Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Framed events.
    pub bytes: Vec<u8>,
    /// The number of events.
    pub events: usize,
    /// With these bytes, the watch has everything up to this version.
    pub version: u64,
    /// Whether nothing follows now.
    pub is_complete: bool,
}

/// Why a change is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Inconsistent(pub &'static str);

impl std::error::Error for Inconsistent {}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After a version.
    After(u64),
    /// Now.
    Now,
    /// With all objects, at this version or later. `marked`: a bookmark follows them.
    State {
        /// The version.
        at_least: u64,
        /// Whether a bookmark follows.
        marked: bool,
    },
}

/// Why a request must go to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing is served now.
    NotServing,
    /// The version is not known yet.
    Behind,
}

/// A watch that has begun.
#[derive(Debug)]
pub enum Started {
    /// It is open.
    Open {
        /// Its number.
        number: u64,
        /// What is sent first.
        frames: Vec<Frame>,
        /// A bookmark must have a higher version.
        floor: u64,
    },
    /// The version is too old: this error is all that is sent.
    Expired(Frame),
}

impl Cache {
    /// An empty cache.
    pub fn new(kind: Kind) -> Cache {
        Cache {
            kind,
            content: None,
            is_serving: false,
            watchers: Watchers::new(kind),
            has_references: false,
            is_connected: false,
        }
    }

    /// An empty cache of pods that knows what they refer to.
    pub fn with_references() -> Cache {
        Cache { has_references: true, ..Cache::new(Kind::Pods) }
    }

    /// The number of open watches and of objects.
    pub fn counts(&self) -> (usize, usize) {
        (self.watchers.len(), self.content.as_ref().map_or(0, |content| content.objects.len()))
    }

    /// The version up to which changes are known, if there is any content.
    pub fn version(&self) -> Option<u64> {
        self.content.as_ref().map(|content| content.version)
    }

    /// The last change that is known. There was no other one up to the [version](Cache::version), except deletions
    /// before the objects were read.
    pub fn last_change(&self) -> Option<LastChange> {
        let content = self.content.as_ref()?;
        let Some(event) = content.history.last() else {
            let object = content.objects.values().max_by_key(|object| object.version())?;
            let (key, version) = (object.key(), object.version());
            return Some(LastChange { key, version, object: Some(object.envelope().clone()) });
        };
        let (key, version) = (event.objects().next()?.key(), event.version());
        let object = event.after().map(|object| object.envelope().clone());
        Some(LastChange { key, version, object })
    }

    /// The bytes of the objects and of their last changes.
    pub fn size(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.size + content.history.size())
    }

    /// What the pods refer to, if that is asked.
    pub fn graph(&self) -> Option<&Graph> {
        self.content.as_ref()?.graph.as_ref()
    }

    /// Notes that a source reports changes from now on, or does not any more.
    pub fn set_connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
    }

    /// Whether a pod that is bound to a node certainly refers to an object. Watches may stay for a while
    /// without a source; a pod could be deleted in this time.
    pub fn refers(&self, node: &[u8], kind: Kind, namespace: &[u8], name: &[u8]) -> bool {
        let graph = self.graph().filter(|_| self.is_serving && self.is_connected);
        graph.is_some_and(|graph| graph.refers(node, kind, namespace, name))
    }

    /// Begins to serve, if there is any content, or stops and ends all watches.
    pub fn serve(&mut self, serving: bool) {
        self.is_serving = serving && self.content.is_some();
        if !self.is_serving {
            self.watchers.end();
        }
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// Forgets everything, and stops serving.
    pub fn clear(&mut self) {
        self.content = None;
        self.serve(false);
    }

    /// Begins with all objects at the version of a bookmark, the one that follows the initial events of a
    /// watch. Open watches end: changes before it are not known.
    ///
    /// # Errors
    /// If an object occurs twice, or the bookmark is not the expected one.
    pub fn replace(&mut self, objects: Vec<Object>, marked: Object) -> Result<(), Inconsistent> {
        self.clear();
        let version = marked.version();
        let mut content = Content {
            version,
            objects: BTreeMap::new(),
            by_node: HashMap::new(),
            history: History::new(version),
            bookmarks: Bookmarks::new(self.kind, marked)?,
            size: 0,
            graph: self.has_references.then(Graph::default),
        };
        for object in objects {
            if object.version() > version {
                return Err(Inconsistent("an object is newer than the bookmark after it"));
            }
            if content.put(self.kind, Arc::new(object)).is_some() {
                return Err(Inconsistent("an object was sent twice"));
            }
        }
        self.content = Some(content);
        Ok(())
    }

    /// Applies a change, and delivers it. Returns to how many watches.
    ///
    /// # Errors
    /// If the change does not follow from what is known. The cache must be cleared then.
    pub fn apply(&mut self, change: Change, now: Instant) -> Result<usize, Inconsistent> {
        let content = self.content.as_mut().ok_or(Inconsistent("nothing was listed"))?;
        let Change { event, object } = change;
        if object.version() <= content.version {
            return Err(Inconsistent("the version of a change is not higher than the last one"));
        }
        let version = object.version();
        let event = match event {
            EventType::Added | EventType::Modified => {
                let object = Arc::new(object);
                let before = content.put(self.kind, object.clone());
                if before.is_none() != (event == EventType::Added) {
                    return Err(Inconsistent("a change does not fit to the object that is known"));
                }
                Event::changed(before, object)
            }
            EventType::Deleted => {
                let before = content.remove(&object.key());
                let before = before.ok_or(Inconsistent("an unknown object was deleted"))?;
                Event::deleted(before, &object)
            }
            EventType::Bookmark | EventType::Error => {
                return Err(Inconsistent("the event is no change"));
            }
        };
        let event = Arc::new(event);
        content.version = version;
        let delivered = self.watchers.deliver(&event);
        content.history.push(event, now);
        Ok(delivered)
    }

    /// Applies changes that the store reports, with all changes of each of their revisions, and wakes the
    /// watches. They [pull](Cache::pull) them.
    ///
    /// # Errors
    /// As [`Cache::apply`].
    pub fn apply_stored(
        &mut self,
        changes: Vec<StoredChange>,
        now: Instant,
    ) -> Result<(), Inconsistent> {
        let content = self.content.as_mut().ok_or(Inconsistent("nothing was listed"))?;
        let known = content.version;
        for change in changes {
            let version = change.version();
            if version <= known || version < content.version {
                return Err(Inconsistent(
                    "the revision of a change is not higher than the last one",
                ));
            }
            let event = match change {
                StoredChange::Put(object) => {
                    let object = Arc::new(object);
                    let before = content.put(self.kind, object.clone());
                    // Its namespace and name are all that selectors need of it. Without the older object the history
                    // takes less memory.
                    Event::changed(before.map(|_| object.clone()), object)
                }
                StoredChange::Deleted { key, version } => {
                    let before = content.remove(&key);
                    let before = before.ok_or(Inconsistent("an unknown object was deleted"))?;
                    Event::removed(before, version)
                }
            };
            content.version = version;
            content.history.push(Arc::new(event), now);
        }
        self.watchers.announce();
        Ok(())
    }

    /// Returns what follows for a watch that has got everything up to a version, about `max` bytes, and not more than
    /// about 4,096 changes on; `None` if nothing is served, or some of it is no longer known. The watch must end then.
    pub fn pull(&self, selector: &Selector, after: u64, max: usize) -> Option<Pulled> {
        let content = self.content.as_ref().filter(|_| self.is_serving)?;
        if !content.history.goes_on_after(after) {
            return None;
        }
        let (mut bytes, mut events, mut version) = (Vec::new(), 0, after);
        for (visited, event) in content.history.since(after).enumerate() {
            let is_full = bytes.len() >= max || visited >= MAX_VISITED;
            // A client goes on after the version of an event, so those of one version stay together.
            if is_full && event.version() > version {
                return Some(Pulled { bytes, events, version, is_complete: false });
            }
            events += usize::from(event.put(selector, &mut bytes));
            version = event.version();
        }
        let version = after.max(content.version);
        Some(Pulled { bytes, events, version, is_complete: true })
    }

    /// Returns the bookmark of a version up to which a watch has pulled everything; `None` if nothing is
    /// served.
    pub fn bookmark_at(&mut self, version: u64) -> Option<Frame> {
        let content = self.content.as_mut().filter(|_| self.is_serving)?;
        Some(content.bookmarks.plain(version))
    }

    /// Notes that there is no further change up to a version.
    ///
    /// # Errors
    /// If the version is lower than that of the last change.
    pub fn progress(&mut self, version: u64) -> Result<(), Inconsistent> {
        let content = self.content.as_mut().ok_or(Inconsistent("nothing was listed"))?;
        if version < content.version {
            return Err(Inconsistent("a bookmark is older than the last change"));
        }
        content.version = version;
        Ok(())
    }

    /// Returns the selected objects in the order of their keys, at a version that is at least this one.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn list(
        &self,
        selector: &Selector,
        at_least: u64,
    ) -> Result<(u64, Vec<Arc<Object>>), Refused> {
        let content = self.content.as_ref().filter(|_| self.is_serving);
        let content = content.ok_or(Refused::NotServing)?;
        if content.version < at_least {
            return Err(Refused::Behind);
        }
        Ok((content.version, content.select(self.kind, selector)))
    }

    /// Opens a watch. The mailbox gets what follows the first frames.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn watch(
        &mut self,
        selector: &Selector,
        start: Start,
        mailbox: &Arc<Mailbox>,
        stream: u32,
    ) -> Result<Started, Refused> {
        let content = self.content.as_mut().filter(|_| self.is_serving);
        let content = content.ok_or(Refused::NotServing)?;
        let now = content.version;
        let (frames, floor) = match start {
            Start::Now => (Vec::new(), now),
            Start::After(version) => {
                let oldest = content.history.oldest();
                if version < oldest {
                    return Ok(Started::Expired(Frame::expired(version, oldest)));
                }
                let (mut frames, mut floor) = (Vec::new(), version);
                let is_pulled = self.kind.is_stored();
                for event in content.history.since(version).filter(|_| !is_pulled) {
                    if let Some(frame) = event.frame(selector) {
                        frames.push(frame);
                        floor = event.version();
                    }
                }
                (frames, floor)
            }
            Start::State { at_least, marked } => {
                if now < at_least {
                    return Err(Refused::Behind);
                }
                let objects = content.select(self.kind, selector);
                let added =
                    |object: &Arc<Object>| Frame::new(EventType::Added, object.envelope().clone());
                let mut frames: Vec<_> = objects.iter().map(added).collect();
                if marked {
                    frames.push(content.bookmarks.marked(now));
                }
                (frames, now)
            }
        };
        let mailbox = mailbox.clone();
        let number = self.watchers.add(selector, Watcher { mailbox, stream, floor });
        Ok(Started::Open { number, frames, floor })
    }

    /// Removes a watch, unless it has ended.
    pub fn remove(&mut self, selector: &Selector, number: u64) {
        self.watchers.remove(selector, number);
    }

    /// Returns the bookmark of now, with its version; `None` if nothing is served. All changes up to it
    /// are in the mailboxes already.
    pub fn bookmark(&mut self) -> Option<(u64, Frame)> {
        let content = self.content.as_mut().filter(|_| self.is_serving)?;
        Some((content.version, content.bookmarks.plain(content.version)))
    }
}

impl Content {
    /// Adds or replaces an object. Returns the one before.
    fn put(&mut self, kind: Kind, object: Arc<Object>) -> Option<Arc<Object>> {
        let key = object.key();
        let before = self.objects.insert(key.clone(), object.clone());
        self.note(before.as_deref(), Some(&object));
        if kind.node_field().is_some() {
            let moved = before.as_ref().is_none_or(|before| before.node() != object.node());
            if moved {
                before.iter().for_each(|before| self.forget_node(before, &key));
                self.by_node.entry(object.node().into()).or_default().insert(key);
            }
        }
        before
    }

    fn remove(&mut self, key: &[u8]) -> Option<Arc<Object>> {
        let before = self.objects.remove(key)?;
        self.note(Some(&before), None);
        self.forget_node(&before, key);
        Some(before)
    }

    /// Notes what was in the cache before a change, and what is in it afterwards.
    fn note(&mut self, before: Option<&Object>, after: Option<&Object>) {
        self.size += after.map_or(0, Object::size);
        self.size -= before.map_or(0, Object::size);
        if let Some(graph) = &mut self.graph {
            graph.change(before, after);
        }
    }

    fn forget_node(&mut self, object: &Object, key: &[u8]) {
        if let Some(keys) = self.by_node.get_mut(object.node()) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_node.remove(object.node());
            }
        }
    }

    fn select(&self, kind: Kind, selector: &Selector) -> Vec<Arc<Object>> {
        match selector {
            Selector::Node(node) => {
                let keys = self.by_node.get(node).into_iter().flatten();
                keys.filter_map(|key| self.objects.get(key).cloned()).collect()
            }
            Selector::Object { namespace, name } => {
                let object = self.objects.get(&object_key(namespace, name));
                object.cloned().into_iter().collect()
            }
            // Objects without a namespace have their names as keys.
            Selector::Name(name) if kind == Kind::Nodes => {
                self.objects.get(name).cloned().into_iter().collect()
            }
            Selector::Namespace(namespace) => {
                // The character after the slash.
                let [start, end] = [b"/", b"0"].map(|end| [&namespace[..], end].concat());
                let range = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
                self.objects.range::<[u8], _>(range).map(|(_, object)| object.clone()).collect()
            }
            _ => {
                let selected = self.objects.values().filter(|object| selector.selects(object));
                selected.cloned().collect()
            }
        }
    }
}

impl Bookmarks {
    fn new(kind: Kind, marked: Object) -> Result<Bookmarks, Inconsistent> {
        let wrong = Inconsistent("the bookmark after the initial events is not the expected one");
        if !marked.mentions(INITIAL_EVENTS_END) || !marked.name().is_empty() {
            return Err(wrong);
        }
        let plain = marked.without_annotations().and_then(|plain| Object::parse(kind, plain));
        Ok(Bookmarks { plain: plain.ok_or(wrong)?, marked, last: None })
    }

    /// The bookmark that follows initial events.
    fn marked(&self, version: u64) -> Frame {
        Frame::new(EventType::Bookmark, self.marked.with_version(version))
    }

    fn plain(&mut self, version: u64) -> Frame {
        match &self.last {
            Some((last, frame)) if *last == version => frame.clone(),
            _ => {
                let frame = Frame::new(EventType::Bookmark, self.plain.with_version(version));
                self.last = Some((version, frame.clone()));
                frame
            }
        }
    }
}
