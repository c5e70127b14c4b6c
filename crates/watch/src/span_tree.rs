//! Which of many spans contain a key: a treap ordered by start, where each node
//! knows the furthest end below it. Insertion and removal take O(log n), a
//! query O(log n) and the spans that it finds.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use mvcc::Span;

/// A set of spans, none a single key, each with a number of the caller's.
#[derive(Default)]
pub(crate) struct SpanTree {
    root: Link,
    priorities: RandomState,
}

type Link = Option<Box<Node>>;

/// The end of a span; no end is beyond every key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Vec<u8>),
    Infinity,
}

struct Node {
    start: Vec<u8>,
    end: End,
    id: usize,
    priority: u64,
    furthest: End,
    left: Link,
    right: Link,
}

impl SpanTree {
    /// Adds `span`, which must not be there yet.
    pub(crate) fn insert(&mut self, span: &Span, id: usize) {
        let (start, end) = ends(span);
        let priority = self.priorities.hash_one((&start, span.end()));
        let furthest = end.clone();
        let node = Node { start, end, id, priority, furthest, left: None, right: None };
        self.root = Some(insert(self.root.take(), Box::new(node)));
    }

    /// Removes `span`, which must be there.
    pub(crate) fn remove(&mut self, span: &Span) {
        let (start, end) = ends(span);
        self.root = remove(self.root.take(), &start, &end);
    }

    /// Calls `found` with the number of every span that contains `key`.
    pub(crate) fn containing(&self, key: &[u8], found: &mut impl FnMut(usize)) {
        visit(&self.root, key, found);
    }
}

fn ends(span: &Span) -> (Vec<u8>, End) {
    (span.start().to_vec(), span.end().map_or(End::Infinity, End::Before))
}

fn insert(tree: Link, node: Box<Node>) -> Box<Node> {
    let Some(mut root) = tree else { return node };
    if node.priority > root.priority {
        let (left, right) = split(Some(root), &node);
        let mut node = node;
        (node.left, node.right) = (left, right);
        node.update();
        return node;
    }
    match node.order(&root.start, &root.end) {
        Ordering::Less => root.left = Some(insert(root.left.take(), node)),
        _ => root.right = Some(insert(root.right.take(), node)),
    }
    root.update();
    root
}

/// The nodes before `pivot` and those behind it.
fn split(tree: Link, pivot: &Node) -> (Link, Link) {
    let Some(mut root) = tree else { return (None, None) };
    if root.order(&pivot.start, &pivot.end) == Ordering::Less {
        let (left, right) = split(root.right.take(), pivot);
        root.right = left;
        root.update();
        (Some(root), right)
    } else {
        let (left, right) = split(root.left.take(), pivot);
        root.left = right;
        root.update();
        (left, Some(root))
    }
}

fn remove(tree: Link, start: &[u8], end: &End) -> Link {
    let mut root = tree?;
    match root.order(start, end) {
        Ordering::Greater => root.left = remove(root.left.take(), start, end),
        Ordering::Less => root.right = remove(root.right.take(), start, end),
        Ordering::Equal => return merge(root.left.take(), root.right.take()),
    }
    root.update();
    Some(root)
}

/// One tree of two, all of whose nodes are in order.
fn merge(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, tree) | (tree, None) => tree,
        (Some(mut left), Some(right)) if left.priority > right.priority => {
            left.right = merge(left.right.take(), Some(right));
            left.update();
            Some(left)
        }
        (left, Some(mut right)) => {
            right.left = merge(left, right.left.take());
            right.update();
            Some(right)
        }
    }
}

fn visit(tree: &Link, key: &[u8], found: &mut impl FnMut(usize)) {
    let Some(node) = tree else { return };
    if !node.furthest.is_beyond(key) {
        return;
    }
    visit(&node.left, key, found);
    if &node.start[..] <= key {
        if node.end.is_beyond(key) {
            found(node.id);
        }
        visit(&node.right, key, found);
    }
}

impl End {
    fn is_beyond(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => &end[..] > key,
            End::Infinity => true,
        }
    }
}

impl Node {
    fn order(&self, start: &[u8], end: &End) -> Ordering {
        self.start[..].cmp(start).then_with(|| self.end.cmp(end))
    }

    fn update(&mut self) {
        let below = [&self.left, &self.right].into_iter().flatten().map(|node| &node.furthest);
        let furthest = below.chain([&self.end]).max().expect("its own end at least");
        if *furthest != self.furthest {
            self.furthest = furthest.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let key = || prop::collection::vec(0u8..4, 1..4);
        prop_oneof![
            4 => (key(), key()),
            1 => (key(), Just(vec![0u8])),
        ]
        .prop_filter("no points, none empty", |(key, end)| *end == [0] || key < end)
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            steps in prop::collection::vec((any::<bool>(), span()), 1..60),
            keys in prop::collection::vec(prop::collection::vec(0u8..4, 1..5), 10),
        ) {
            let mut tree = SpanTree::default();
            let mut naive: Vec<(Span, usize)> = Vec::new();
            for (id, (add, (key, end))) in steps.iter().enumerate() {
                let span = Span::new(key, end);
                let at = naive.iter().position(|(s, _)| *s == span);
                match (add, at) {
                    (true, None) => { tree.insert(&span, id); naive.push((span, id)); }
                    (false, Some(at)) => { tree.remove(&span); naive.remove(at); }
                    _ => {}
                }
            }
            for key in &keys {
                let mut found = Vec::new();
                tree.containing(key, &mut |id| found.push(id));
                let mut expected: Vec<_> =
                    naive.iter().filter(|(s, _)| s.contains(key)).map(|(_, id)| *id).collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
