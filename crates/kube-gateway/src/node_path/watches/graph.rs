//! Which ConfigMaps and Secrets the pods of each node refer to.
//!
//! This is the part of the Node authorizer's graph that has no further edge between an object and a pod.
//! The pods themselves are in their cache: their references are read again when they leave a node.
//!
//! # Invariants
//! - A node has an object exactly while a pod with the name of this node refers to it.
//! - Each object is named once, and its name is dropped with its last node.
//! - A graph with too many edges is empty. The pods are read again, some at a time, when they have fewer references.
//!   Until all are read, no reference is known.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::kind::Kind;
use super::object::Object;
use super::references::{self, Reference};

/// The largest number of edges between nodes and objects. An edge takes about 40 bytes; the name of an
/// object is kept once. If there are more, no reference is known, and all requests are forwarded.
const MAX_EDGES: usize = 8 << 20;

/// A resource, a namespace and a name, as [`key`] writes them.
type Key = Arc<[u8]>;

/// The objects of each node.
pub struct Graph {
    /// By the name of the node: the objects, and how many pods refer to each of them.
    nodes: HashMap<Box<[u8]>, BTreeMap<Key, u32>>,
    keys: HashSet<Key>,
    edges: usize,
    max_edges: usize,
    /// What all pods refer to, counted for each pod. There are at most as many edges.
    references: usize,
    coverage: Coverage,
}

/// Of which pods the graph has the edges.
enum Coverage {
    /// Of all.
    All,
    /// Of none, as there were too many edges. They are read again when pods have fewer references than this.
    None { retry_below: usize },
    /// Of those up to a key, in the order of the keys.
    UpTo(Option<Box<[u8]>>),
}

/// What a pod adds to the graph.
#[derive(Default, PartialEq)]
struct Edges<'a> {
    node: &'a [u8],
    namespace: &'a [u8],
    references: Vec<Reference<'a>>,
}

impl<'a> Edges<'a> {
    fn of(pod: Option<&'a Object>) -> Edges<'a> {
        match pod.filter(|pod| !pod.node().is_empty() && !pod.namespace().is_empty()) {
            Some(pod) => Edges {
                node: pod.node(),
                namespace: pod.namespace(),
                references: references::of(pod),
            },
            None => Edges::default(),
        }
    }
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::bounded(MAX_EDGES)
    }
}

impl Graph {
    fn bounded(max_edges: usize) -> Graph {
        let (nodes, keys) = (HashMap::new(), HashSet::new());
        Graph { nodes, keys, edges: 0, max_edges, references: 0, coverage: Coverage::All }
    }

    /// Notes that a pod has changed, was created or was deleted.
    pub fn change(&mut self, before: Option<&Object>, after: Option<&Object>) {
        let is_read = match &self.coverage {
            Coverage::All => true,
            Coverage::None { .. } => false,
            Coverage::UpTo(last) => before
                .or(after)
                .is_some_and(|pod| last.as_ref().is_some_and(|last| pod.key() <= *last)),
        };
        let (before, after) = (Edges::of(before), Edges::of(after));
        if before == after {
            return;
        }
        self.references += after.references.len();
        self.references -= before.references.len();
        if is_read {
            self.add(&after);
            self.remove(&before);
            self.check_size();
        }
    }

    /// Empties the graph if it is too large. Returns whether it was not.
    fn check_size(&mut self) -> bool {
        let fits = self.edges <= self.max_edges;
        if !fits {
            let references = self.references;
            let retry_below = references - references / 10;
            let coverage = Coverage::None { retry_below };
            *self = Graph { references, coverage, ..Graph::bounded(self.max_edges) };
        }
        fits
    }

    /// If not all pods are in the graph, and they may be, says after which key [`Graph::read`] goes on with the next
    /// one; `Some(None)` is the first pod of all.
    pub fn begin_reading(&mut self) -> Option<Option<Box<[u8]>>> {
        match &self.coverage {
            Coverage::All => None,
            Coverage::UpTo(last) => Some(last.clone()),
            Coverage::None { retry_below } => {
                let may_fit = self.references <= self.max_edges || self.references < *retry_below;
                may_fit.then(|| {
                    self.coverage = Coverage::UpTo(None);
                    None
                })
            }
        }
    }

    /// Adds the next pod, which has this key. Returns whether further ones may follow: there may be too many edges again.
    pub fn read(&mut self, key: &[u8], pod: &Object) -> bool {
        self.add(&Edges::of(Some(pod)));
        self.coverage = Coverage::UpTo(Some(key.into()));
        self.check_size()
    }

    /// Notes that all pods were read.
    pub fn complete(&mut self) {
        self.coverage = Coverage::All;
    }

    /// Whether a pod of a node refers to an object.
    pub fn refers(&self, node: &[u8], kind: Kind, namespace: &[u8], name: &[u8]) -> bool {
        let objects = self.nodes.get(node).filter(|_| self.is_complete());
        objects.is_some_and(|objects| objects.contains_key(&key(kind, namespace, name)[..]))
    }

    /// The number of edges; `None` if there are too many, or were and not all pods have been read again.
    pub fn edges(&self) -> Option<usize> {
        self.is_complete().then_some(self.edges)
    }

    fn is_complete(&self) -> bool {
        matches!(self.coverage, Coverage::All)
    }

    fn add(&mut self, edges: &Edges<'_>) {
        if edges.references.is_empty() {
            return;
        }
        let objects = self.nodes.entry(edges.node.into()).or_default();
        for Reference { kind, name } in &edges.references {
            let key = key(*kind, edges.namespace, name);
            let key = match self.keys.get(&key[..]) {
                Some(key) => key.clone(),
                None => {
                    let key = Key::from(key);
                    self.keys.insert(key.clone());
                    key
                }
            };
            let pods = objects.entry(key).or_default();
            *pods += 1;
            self.edges += usize::from(*pods == 1);
        }
    }

    fn remove(&mut self, edges: &Edges<'_>) {
        let Some(objects) = self.nodes.get_mut(edges.node) else { return };
        for Reference { kind, name } in &edges.references {
            let key = key(*kind, edges.namespace, name);
            let Some(pods) = objects.get_mut(&key[..]) else { continue };
            *pods -= 1;
            if *pods > 0 {
                continue;
            }
            self.edges -= 1;
            let Some((key, _)) = objects.remove_entry(&key[..]) else { continue };
            // One is here, and one in `keys`.
            if Arc::strong_count(&key) == 2 {
                self.keys.remove(&key);
            }
        }
        if objects.is_empty() {
            self.nodes.remove(edges.node);
        }
    }
}

/// Names an object. A namespace has no slash in it.
fn key(kind: Kind, namespace: &[u8], name: &[u8]) -> Vec<u8> {
    [&[kind.index() as u8], namespace, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;
    use crate::node_path::watches::references::sample::{WAYS, parsed};

    const NODES: [&str; 3] = ["", "a", "b"];
    const NAMES: [&str; 4] = ["w", "x", "y", "z"];

    /// What pods refer to, by node.
    fn expected(pods: &BTreeMap<u8, Object>) -> BTreeSet<(Vec<u8>, Reference<'_>)> {
        let bound = pods.values().filter(|pod| !pod.node().is_empty());
        let edges = bound.flat_map(|pod| {
            references::of(pod).into_iter().map(|reference| (pod.node().to_vec(), reference))
        });
        edges.collect()
    }

    proptest! {
        #[test]
        fn a_node_has_what_its_pods_refer_to(
            steps in prop::collection::vec(
                (0..6_u8, 0..4_usize, prop::collection::vec((0..WAYS.len(), 0..4_usize), 0..4)),
                1..60
            )
        ) {
            let (mut graph, mut pods) = (Graph::default(), BTreeMap::new());
            for (name, node, references) in steps {
                let references: Vec<_> =
                    references.into_iter().map(|(way, name)| (way, NAMES[name])).collect();
                let node = NODES.get(node);
                let after = node.map(|node| parsed(&format!("p{name}"), node, 1, &references));
                graph.change(pods.get(&name), after.as_ref());
                match after {
                    Some(after) => pods.insert(name, after),
                    None => pods.remove(&name),
                };
                let expected = expected(&pods);
                prop_assert_eq!(graph.edges(), Some(expected.len()));
                for node in &NODES {
                    for (kind, name) in
                        Kind::REFERENCED.into_iter().flat_map(|kind| NAMES.map(|it| (kind, it)))
                    {
                        let (node, name) = (node.as_bytes(), name.as_bytes());
                        let edge = (node.to_vec(), Reference { kind, name });
                        let is_expected = expected.contains(&edge);
                        prop_assert_eq!(graph.refers(node, kind, b"ns", name), is_expected);
                        prop_assert!(!graph.refers(node, kind, b"other", name));
                    }
                }
                let named: BTreeSet<_> = expected.iter().map(|(_, reference)| reference).collect();
                prop_assert_eq!(graph.keys.len(), named.len());
            }
            for pod in pods.values() {
                graph.change(Some(pod), None);
            }
            prop_assert!(graph.nodes.is_empty() && graph.keys.is_empty());
            prop_assert_eq!(graph.edges(), Some(0));
        }
    }

    #[test]
    fn too_many_edges_are_none() {
        let mut graph = Graph::bounded(2);
        let pods: Vec<_> = NAMES.iter().map(|name| parsed(name, "a", 1, &[(0, *name)])).collect();
        graph.change(None, Some(&pods[0]));
        graph.change(None, Some(&pods[1]));
        assert_eq!(graph.edges(), Some(2));
        graph.change(None, Some(&pods[2]));
        assert_eq!(graph.edges(), None);
        assert!(!graph.refers(b"a", Kind::Secrets, b"ns", b"w"));
        assert_eq!(graph.begin_reading(), None, "it has three references");
        graph.change(Some(&pods[2]), None);
        assert_eq!(graph.edges(), None, "it does not know what was there");
        assert_eq!(graph.begin_reading(), Some(None));
        assert!(graph.nodes.is_empty());
    }

    /// Checks that the graph has everything to which these pods of one node refer, and nothing else.
    fn assert_complete(graph: &Graph, pods: &BTreeMap<Box<[u8]>, Object>) {
        let of_pod = |pod: &Object| {
            let references = references::of(pod).into_iter();
            references.map(|it| it.name.to_vec()).collect::<Vec<_>>()
        };
        let names: BTreeSet<_> = pods.values().flat_map(of_pod).collect();
        assert_eq!(graph.edges(), Some(names.len()));
        for name in NAMES {
            let refers = graph.refers(b"a", Kind::Secrets, b"ns", name.as_bytes());
            assert_eq!(refers, names.contains(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn pods_are_read_again_while_they_change() {
        let pod = |name: &str, names: &[&str]| {
            let references: Vec<_> = names.iter().map(|name| (0, *name)).collect();
            parsed(name, "a", 1, &references)
        };
        let mut graph = Graph::bounded(3);
        let mut pods: BTreeMap<Box<[u8]>, Object> = BTreeMap::new();
        let set = |graph: &mut Graph, pods: &mut BTreeMap<Box<[u8]>, Object>, pod: Object| {
            let before = pods.insert(pod.key(), pod.clone());
            graph.change(before.as_ref(), Some(&pod));
        };
        set(&mut graph, &mut pods, pod("w", &["w", "x"]));
        for name in ["x", "y", "z"] {
            set(&mut graph, &mut pods, pod(name, &[name]));
        }
        assert_eq!(graph.edges(), None);
        for name in NAMES {
            set(&mut graph, &mut pods, pod(name, &["w"]));
        }
        // Pods that were read, and one that was not.
        for changed in [Some(("w", "x")), Some(("z", "x")), Some(("x", "z")), None] {
            let last = graph.begin_reading().expect("it may fit");
            let start = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (key, next) = pods.range::<[u8], _>((start, Bound::Unbounded)).next().unwrap();
            assert!(graph.read(key, next));
            assert_eq!(graph.edges(), None, "not all pods are read");
            if let Some((name, refers_to)) = changed {
                set(&mut graph, &mut pods, pod(name, &[refers_to]));
            }
        }
        graph.complete();
        assert_complete(&graph, &pods);
    }
}
