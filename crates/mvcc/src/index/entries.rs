//! Iteration over the entries of a span.

use super::entry::Entry;
use super::leaf::Leaf;
use super::node::{Child, Node};

/// An iterator over the entries of consecutive keys, in key order.
#[derive(Default)]
pub(crate) struct Entries<'a> {
    /// The children after the current position, of each inner node from the root to the
    /// current leaf.
    next_children: Vec<std::slice::Iter<'a, Child>>,
    /// The current leaf; `None` at the end.
    leaf: Option<&'a Leaf>,
    /// Position of the next key in the current leaf.
    at: usize,
    /// The leaf in which the iteration ends, and the position of the first key that does not
    /// belong to it; `None` if it ends with the last key.
    end: Option<(&'a Leaf, usize)>,
}

impl<'a> Entries<'a> {
    /// Starts at the first key that is not less than `start`. Ends before the first key that
    /// is not less than `end`; without `end`, after the last key. `start` must be less than
    /// `end`.
    pub(super) fn new(root: &'a Node, start: &[u8], end: Option<&[u8]>) -> Self {
        let end = end.map(|end| find(root, end));
        let mut entries = Entries { end, ..Entries::default() };
        entries.descend(root, Some(start));
        entries
    }

    /// Continues with the first key of `node` that is not less than `start`; without `start`,
    /// with the first key.
    fn descend(&mut self, mut node: &'a Node, start: Option<&[u8]>) {
        loop {
            match node {
                Node::Leaf(leaf) => {
                    self.leaf = Some(leaf);
                    self.at = start.map_or(0, |start| leaf.position(start));
                    return;
                }
                Node::Inner(children) => {
                    let at = start.map_or(0, |start| children.position(start));
                    self.next_children.push(children.as_slice()[at + 1..].iter());
                    node = &children[at].node;
                }
            }
        }
    }

    /// Continues with the next leaf.
    fn next_leaf(&mut self) {
        self.leaf = None;
        while let Some(children) = self.next_children.last_mut() {
            if let Some(child) = children.next() {
                return self.descend(&child.node, None);
            }
            self.next_children.pop();
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let leaf = self.leaf?;
            let end = self.end.filter(|(last, _)| std::ptr::eq(*last, leaf)).map(|(_, end)| end);
            if self.at < end.unwrap_or(leaf.len()) {
                self.at += 1;
                return Some(leaf.entry(self.at - 1));
            }
            if end.is_some() {
                self.leaf = None;
                return None;
            }
            self.next_leaf();
        }
    }
}

/// Returns the leaf that contains `key`, if any does, and the position in this leaf of the
/// first key that is not less.
fn find<'a>(root: &'a Node, key: &[u8]) -> (&'a Leaf, usize) {
    let mut node = root;
    loop {
        match node {
            Node::Leaf(leaf) => return (leaf, leaf.position(key)),
            Node::Inner(children) => node = &children[children.position(key)].node,
        }
    }
}
