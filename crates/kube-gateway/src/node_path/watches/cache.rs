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

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::content::Content;
use super::event::Event;
use super::frame::{EventType, Frame};
use super::graph::Graph;
use super::kind::Kind;
use super::mailbox::Mailbox;
use super::object::Object;
use super::selector::Selector;
use super::watchers::{Watcher, Watchers};

pub use super::content::Inconsistent;

/// Changes that a pull visits, while others wait for the cache.
const MAX_VISITED: usize = 4096;

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

/// The events that a watch has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// All up to this version.
    pub version: u64,
    /// And so many of the next version.
    pub of_next: usize,
}

impl Got {
    /// All up to a version.
    pub fn all(version: u64) -> Got {
        Got { version, of_next: 0 }
    }

    /// All before a version, and so many of it.
    pub fn some_of(version: u64, events: usize) -> Got {
        match events {
            0 => Got::all(version),
            of_next => Got { version: version.saturating_sub(1), of_next },
        }
    }
}

/// What follows for a watch.
#[derive(Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Framed events.
    pub bytes: Vec<u8>,
    /// The number of events.
    pub events: usize,
    /// What the watch has got with these bytes.
    pub got: Got,
    /// Whether nothing follows now.
    pub is_complete: bool,
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
        /// What is sent first, each as an object that was added.
        objects: Vec<Arc<Object>>,
        /// What is sent then.
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

    /// The object with a key.
    pub fn object(&self, key: &[u8]) -> Option<Arc<Object>> {
        self.content.as_ref()?.objects.get(key).cloned()
    }

    /// The bytes of the objects and of their last changes.
    pub fn size(&self) -> usize {
        self.content.as_ref().map_or(0, Content::size)
    }

    /// What the pods refer to, if that is asked.
    pub fn graph(&self) -> Option<&Graph> {
        self.content.as_ref()?.graph()
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

    /// Takes everything out, and stops serving.
    #[must_use = "objects are dropped without the lock of the cache, as there may be very many"]
    pub fn clear(&mut self) -> Option<Content> {
        self.serve(false);
        self.content.take()
    }

    /// Begins with this content. Open watches end: changes before it are not known. Returns what was here before.
    #[must_use = "objects are dropped without the lock of the cache, as there may be very many"]
    pub fn replace(&mut self, content: Content) -> Option<Content> {
        let before = self.clear();
        self.content = Some(content);
        before
    }

    /// Whether pods are asked for what they refer to.
    pub fn has_references(&self) -> bool {
        self.has_references
    }

    /// Reads again to what pods refer, if there was too much once: some of them, so that the cache is not locked for
    /// long. Must be called from time to time.
    pub fn read_references(&mut self, max: usize) {
        if let Some(content) = &mut self.content {
            content.read_references(max);
        }
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

    /// Returns what follows for a watch that has got these events, about `max` bytes, and not more than about 4,096
    /// changes on; `None` if nothing is served, or some of it is no longer known. The watch must end then.
    pub fn pull(&self, selector: &Selector, got: Got, max: usize) -> Option<Pulled> {
        let content = self.content.as_ref().filter(|_| self.is_serving)?;
        if !content.history.goes_on_after(got.version) {
            return None;
        }
        let (mut bytes, mut events, mut version) = (Vec::new(), 0, got.version);
        let mut skipped = got.of_next;
        for (visited, event) in content.history.since(got.version).enumerate() {
            let is_full = bytes.len() >= max || visited >= MAX_VISITED;
            // A client goes on after the version of an event, so those of one version stay together.
            if is_full && event.version() > version {
                return Some(Pulled { bytes, events, got: Got::all(version), is_complete: false });
            }
            version = event.version();
            if skipped > 0 && version == got.version + 1 && event.concerns(selector) {
                skipped -= 1;
                continue;
            }
            events += usize::from(event.put(selector, &mut bytes));
        }
        let version = got.version.max(content.version);
        let got = if version > got.version { Got::all(version) } else { got };
        Some(Pulled { bytes, events, got, is_complete: true })
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

    /// Whether a client that has got some events of a version can [pull](Cache::pull) the others.
    pub fn has_all_of(&self, version: u64) -> bool {
        let content = self.content.as_ref();
        content.is_some_and(|content| content.history.goes_on_after(version.saturating_sub(1)))
    }

    /// Opens a watch. The mailbox gets what follows the first objects and frames.
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
        let mut objects = Vec::new();
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
                objects = content.select(self.kind, selector);
                (marked.then(|| content.bookmarks.marked(now)).into_iter().collect(), now)
            }
        };
        let mailbox = mailbox.clone();
        let number = self.watchers.add(selector, Watcher { mailbox, stream, floor });
        Ok(Started::Open { number, objects, frames, floor })
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
