//! An interval tree, which finds the spans that contain a key. It is a treap ordered by
//! start. Each node stores the greatest end in its subtree. Insertion and removal take
//! O(log n). A query visits O(log n) nodes for each span that it finds.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use mvcc::Span;

/// A set of spans, each with an ID chosen by the caller. Spans of a single key are not
/// allowed.
#[derive(Default)]
pub(crate) struct SpanTree {
    root: Link,
    priorities: RandomState,
}

type Link = Option<Box<Node>>;

/// The end of a span. `Infinity` is greater than every key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Arc<[u8]>),
    Infinity,
}

/// A span in the tree.
struct Node {
    start: Arc<[u8]>,
    end: End,
    id: usize,
    /// At least the priorities of the children.
    priority: u64,
    /// The greatest end in the subtree.
    max_end: End,
    left: Link,
    right: Link,
}

impl SpanTree {
    /// Adds `span`, which must not be in the tree.
    pub(crate) fn insert(&mut self, span: &Span, id: usize) {
        let (start, end) = bounds(span);
        let priority = self.priorities.hash_one(span);
        let max_end = end.clone();
        let node = Node { start, end, id, priority, max_end, left: None, right: None };
        self.root = Some(insert(self.root.take(), Box::new(node)));
    }

    /// Removes `span`, which must be in the tree.
    pub(crate) fn remove(&mut self, span: &Span) {
        let (start, end) = bounds(span);
        self.root = remove(self.root.take(), &start, &end);
    }

    /// Calls `found` with the ID of every span.
    pub(crate) fn for_each(&self, found: &mut impl FnMut(usize)) {
        visit_all(&self.root, found);
    }

    /// Calls `found` with the ID of every span that contains `key`.
    pub(crate) fn for_each_containing(&self, key: &[u8], found: &mut impl FnMut(usize)) {
        visit(&self.root, key, found);
    }
}

/// Returns start and end of `span` as the tree orders them. They share the keys of the span.
fn bounds(span: &Span) -> (Arc<[u8]>, End) {
    (span.shared_start(), span.shared_range_end().map_or(End::Infinity, End::Before))
}

/// Inserts `node` into a tree. Returns the new root.
fn insert(tree: Link, node: Box<Node>) -> Box<Node> {
    let Some(mut root) = tree else { return node };
    if node.priority > root.priority {
        let (left, right) = split(Some(root), &node);
        let mut node = node;
        (node.left, node.right) = (left, right);
        node.update();
        return node;
    }
    match node.compare(&root.start, &root.end) {
        Ordering::Less => root.left = Some(insert(root.left.take(), node)),
        _ => root.right = Some(insert(root.right.take(), node)),
    }
    root.update();
    root
}

/// Splits a tree into the nodes before `pivot` and the nodes after it.
fn split(tree: Link, pivot: &Node) -> (Link, Link) {
    let Some(mut root) = tree else { return (None, None) };
    if root.compare(&pivot.start, &pivot.end) == Ordering::Less {
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

/// Removes a span from a tree. Returns the new root.
fn remove(tree: Link, start: &[u8], end: &End) -> Link {
    let mut root = tree?;
    match root.compare(start, end) {
        Ordering::Greater => root.left = remove(root.left.take(), start, end),
        Ordering::Less => root.right = remove(root.right.take(), start, end),
        Ordering::Equal => return merge(root.left.take(), root.right.take()),
    }
    root.update();
    Some(root)
}

/// Merges two trees. All nodes of `left` must be before all nodes of `right`.
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

/// Calls `found` with the ID of every span in a tree.
fn visit_all(tree: &Link, found: &mut impl FnMut(usize)) {
    let Some(node) = tree else { return };
    visit_all(&node.left, found);
    found(node.id);
    visit_all(&node.right, found);
}

/// Calls `found` with the ID of every span in a tree that contains `key`.
fn visit(tree: &Link, key: &[u8], found: &mut impl FnMut(usize)) {
    let Some(node) = tree else { return };
    if !node.max_end.is_after(key) {
        return;
    }
    visit(&node.left, key, found);
    if &node.start[..] <= key {
        if node.end.is_after(key) {
            found(node.id);
        }
        visit(&node.right, key, found);
    }
}

impl End {
    /// Whether a span with this end may contain `key`.
    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => &end[..] > key,
            End::Infinity => true,
        }
    }
}

impl Node {
    /// Compares the span of the node with another one.
    fn compare(&self, start: &[u8], end: &End) -> Ordering {
        self.start[..].cmp(start).then_with(|| self.end.cmp(end))
    }

    /// Updates `max_end` after a change of the children.
    fn update(&mut self) {
        let subtree_ends =
            [&self.left, &self.right].into_iter().flatten().map(|node| &node.max_end);
        let max_end = subtree_ends
            .chain([&self.end])
            .max()
            .expect("the iterator contains the end of this node");
        if *max_end != self.max_end {
            self.max_end = max_end.clone();
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
        .prop_filter("neither single keys nor empty spans", |(key, end)| *end == [0] || key < end)
    }

    proptest! {
        #[test]
        fn the_tree_finds_the_same_spans_as_a_scan(
            steps in prop::collection::vec((any::<bool>(), span()), 1..60),
            keys in prop::collection::vec(prop::collection::vec(0u8..4, 1..5), 10),
        ) {
            let mut tree = SpanTree::default();
            let mut naive: Vec<(Span, usize)> = Vec::new();
            for (id, (add, (key, end))) in steps.iter().enumerate() {
                let span = Span::new(key, end);
                let position = naive.iter().position(|(s, _)| *s == span);
                match (add, position) {
                    (true, None) => { tree.insert(&span, id); naive.push((span, id)); }
                    (false, Some(position)) => { tree.remove(&span); naive.remove(position); }
                    _ => {}
                }
            }
            for key in &keys {
                let mut found = Vec::new();
                tree.for_each_containing(key, &mut |id| found.push(id));
                let mut expected: Vec<_> =
                    naive.iter().filter(|(s, _)| s.contains(key)).map(|(_, id)| *id).collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
