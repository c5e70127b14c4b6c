//! The objects of one resource and their last changes, as the cache keeps them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::frame::{EventType, Frame};
use super::graph::Graph;
use super::history::History;
use super::kind::Kind;
use super::object::{Object, object_key};
use super::selector::Selector;

/// The annotation of the bookmark after the initial events of a watch.
pub const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

type Key = Box<[u8]>;

/// The objects and their last changes.
pub struct Content {
    /// All changes up to it are known.
    pub version: u64,
    /// The objects.
    pub objects: BTreeMap<Key, Arc<Object>>,
    /// Keys of the objects of each node, if objects belong to nodes.
    by_node: HashMap<Box<[u8]>, BTreeSet<Key>>,
    /// Their last changes.
    pub history: History,
    /// Bookmarks.
    pub bookmarks: Bookmarks,
    /// The bytes of the objects.
    size: usize,
    /// What pods refer to.
    graph: Option<Graph>,
}

/// Bookmarks as the API server encodes them.
pub struct Bookmarks {
    marked: Object,
    plain: Object,
    /// The last one that was sent.
    last: Option<(u64, Frame)>,
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

impl Content {
    /// All objects at the version of a bookmark, the one that follows the initial events of a watch. `has_references`
    /// says whether pods are asked for what they refer to. With very many objects this takes long.
    ///
    /// # Errors
    /// If an object occurs twice, or the bookmark is not the expected one.
    pub fn new(
        kind: Kind,
        objects: Vec<Object>,
        marked: Object,
        has_references: bool,
    ) -> Result<Content, Inconsistent> {
        let version = marked.version();
        let mut content = Content {
            version,
            objects: BTreeMap::new(),
            by_node: HashMap::new(),
            history: History::new(version),
            bookmarks: Bookmarks::new(kind, marked)?,
            size: 0,
            graph: has_references.then(Graph::default),
        };
        for object in objects {
            if object.version() > version {
                return Err(Inconsistent("an object is newer than the bookmark after it"));
            }
            if content.put(kind, Arc::new(object)).is_some() {
                return Err(Inconsistent("an object was sent twice"));
            }
        }
        Ok(content)
    }

    /// The bytes of the objects and of their last changes.
    pub fn size(&self) -> usize {
        self.size + self.history.size()
    }

    /// What pods refer to, if that is asked.
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// Reads the references of so many pods, if the graph does not have all of them, and may now.
    pub fn read_references(&mut self, max: usize) {
        let Some(graph) = &mut self.graph else { return };
        let Some(last) = graph.begin_reading() else { return };
        let start = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let pods = self.objects.range::<[u8], _>((start, Bound::Unbounded)).take(max);
        let mut read = 0;
        for (key, pod) in pods {
            read += 1;
            if !graph.read(key, pod) {
                return;
            }
        }
        if read < max {
            graph.complete();
        }
    }

    /// Adds or replaces an object. Returns the one before.
    pub fn put(&mut self, kind: Kind, object: Arc<Object>) -> Option<Arc<Object>> {
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

    /// Removes an object. Returns it.
    pub fn remove(&mut self, key: &[u8]) -> Option<Arc<Object>> {
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

    /// The selected objects in the order of their keys.
    pub fn select(&self, kind: Kind, selector: &Selector) -> Vec<Arc<Object>> {
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
    pub fn marked(&self, version: u64) -> Frame {
        Frame::new(EventType::Bookmark, self.marked.with_version(version))
    }

    /// The bookmark of a version.
    pub fn plain(&mut self, version: u64) -> Frame {
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
