//! The children of an inner node. `N` is the type of a node.

use super::hints::Hints;

/// A node below an inner node.
pub(super) struct Child<N> {
    /// A lower bound of the keys of the node, and an upper bound of the keys before it, which
    /// are less. The first child has no own bound, but that of its parent: it is empty.
    pub(super) lower: Box<[u8]>,
    /// Number of existing keys.
    pub(super) live: i64,
    pub(super) node: N,
}

/// The children of an inner node, in key order.
pub(super) struct Children<N> {
    children: Vec<Child<N>>,
    /// Those of the lower bounds, except the first one.
    hints: Hints,
}

impl<N> Children<N> {
    pub(super) fn new(children: Vec<Child<N>>) -> Children<N> {
        let mut children = Children { children, hints: Hints::default() };
        children.update_hints();
        children
    }

    fn update_hints(&mut self) {
        let bounds = self.children.len().saturating_sub(1);
        self.hints = Hints::of(bounds, |at| &self.children[at + 1].lower);
    }

    pub(super) fn as_slice(&self) -> &[Child<N>] {
        &self.children
    }

    pub(super) fn len(&self) -> usize {
        self.children.len()
    }

    /// Returns the position of the child that contains `key`, if any does.
    pub(super) fn position(&self, key: &[u8]) -> usize {
        match self.hints.find(key, |at| &self.children[at + 1].lower) {
            Ok(at) => at + 1,
            Err(at) => at,
        }
    }

    pub(super) fn insert(&mut self, at: usize, child: Child<N>) {
        self.children.insert(at, child);
        self.update_hints();
    }

    pub(super) fn remove(&mut self, at: usize) -> Child<N> {
        let child = self.children.remove(at);
        self.update_hints();
        child
    }

    /// Moves the second half of the children to a new node. Returns its lower bound and the node.
    pub(super) fn split(&mut self) -> (Box<[u8]>, Children<N>) {
        let mut right = self.children.split_off(self.children.len() / 2);
        self.children.shrink_to_fit();
        self.update_hints();
        let lower = std::mem::take(&mut right[0].lower);
        (lower, Children::new(right))
    }

    /// Moves the children of the node after this one to this node. `lower` is the lower bound of
    /// `right`.
    pub(super) fn append(&mut self, lower: Box<[u8]>, mut right: Children<N>) {
        right.children[0].lower = lower;
        self.children.append(&mut right.children);
        self.update_hints();
    }
}

impl<N> std::ops::Index<usize> for Children<N> {
    type Output = Child<N>;

    fn index(&self, at: usize) -> &Child<N> {
        &self.children[at]
    }
}

impl<N> std::ops::IndexMut<usize> for Children<N> {
    /// The lower bound of the child must not change.
    fn index_mut(&mut self, at: usize) -> &mut Child<N> {
        &mut self.children[at]
    }
}
