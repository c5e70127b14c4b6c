//! The inner nodes of the tree, and the operations that descend from a node to a leaf.

use etcdpb::Record;

use super::entry::Entry;
use super::hints::common;
use super::inner;
use super::leaf::{Leaf, MAX_LEN, MIN_LEN, Popped, Replaced};

/// A node below an inner node.
pub(super) type Child = inner::Child<Node>;
type Children = inner::Children<Node>;

/// A node of the tree: all leaves have the same depth. Only a root may be small or empty.
pub(super) enum Node {
    Leaf(Leaf),
    Inner(Children),
}

/// The result of [`Node::push`].
pub(super) struct Pushed {
    pub(super) replaced: Replaced,
    /// Whether the node did not contain the key before.
    pub(super) is_new_key: bool,
    /// The second half of the node, if it became too large.
    pub(super) split: Option<Child>,
}

impl Default for Node {
    fn default() -> Self {
        Node::Leaf(Leaf::default())
    }
}

impl Node {
    /// Returns the records of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.find(key).ok().map(|at| leaf.entry(at)),
                Node::Inner(children) => node = &children[children.position(key)].node,
            }
        }
    }

    /// Returns the number of existing keys.
    pub(super) fn live(&self) -> i64 {
        match self {
            Node::Leaf(leaf) => leaf.live_before(leaf.len()),
            Node::Inner(children) => sum_live(children.as_slice()),
        }
    }

    /// Returns the number of existing keys before `key`.
    pub(super) fn live_before(&self, key: &[u8]) -> i64 {
        let (mut node, mut live) = (self, 0);
        loop {
            match node {
                Node::Leaf(leaf) => return live + leaf.live_before(leaf.position(key)),
                Node::Inner(children) => {
                    let at = children.position(key);
                    live += sum_live(&children.as_slice()[..at]);
                    node = &children[at].node;
                }
            }
        }
    }

    /// Makes `record` the newest record of its key.
    pub(super) fn push(&mut self, record: Record) -> Pushed {
        match self {
            Node::Leaf(leaf) => {
                let (replaced, is_new_key) = match leaf.find(record.key()) {
                    Ok(at) => (leaf.push(at, record), false),
                    Err(at) => {
                        leaf.insert(at, record);
                        (Replaced::default(), true)
                    }
                };
                Pushed { replaced, is_new_key, split: self.split_if_too_large() }
            }
            Node::Inner(children) => {
                let at = children.position(record.key());
                let child = &mut children[at];
                let is_live = !record.is_tombstone();
                let mut pushed = child.node.push(record);
                let was_live = pushed.replaced.live.is_some();
                child.live += i64::from(is_live) - i64::from(was_live);
                if let Some(right) = pushed.split.take() {
                    child.live -= right.live;
                    children.insert(at + 1, right);
                    pushed.split = self.split_if_too_large();
                }
                pushed
            }
        }
    }

    /// Removes the newest record of `key`, if it has this revision, and the key if it has no other
    /// record.
    pub(super) fn pop(&mut self, key: &[u8], revision: i64) -> Option<Popped> {
        match self {
            Node::Leaf(leaf) => {
                let at = leaf.find(key).ok()?;
                let popped = leaf.pop(at, revision)?;
                if popped.restored.is_none() {
                    leaf.remove(at);
                }
                Some(popped)
            }
            Node::Inner(children) => {
                let at = children.position(key);
                let popped = children[at].node.pop(key, revision)?;
                let is_live = popped.restored.as_ref().is_some_and(|record| !record.is_tombstone());
                let was_live = !popped.removed.is_tombstone();
                children[at].live += i64::from(is_live) - i64::from(was_live);
                if popped.restored.is_none() {
                    merge_if_too_small(children, at);
                }
                Some(popped)
            }
        }
    }

    /// Removes the records of `key` that cannot be read at `revision` or later, and calls
    /// `dropped` for each. Returns whether this removed the key.
    pub(super) fn compact(
        &mut self,
        key: &[u8],
        revision: i64,
        dropped: &mut impl FnMut(&Record),
    ) -> bool {
        match self {
            Node::Leaf(leaf) => {
                let Ok(at) = leaf.find(key) else { return false };
                let is_unreadable = leaf.compact(at, revision, dropped);
                if is_unreadable {
                    leaf.remove(at);
                }
                is_unreadable
            }
            Node::Inner(children) => {
                let at = children.position(key);
                // A key without records is deleted, so the number of existing keys is the same.
                let is_removed = children[at].node.compact(key, revision, dropped);
                if is_removed {
                    merge_if_too_small(children, at);
                }
                is_removed
            }
        }
    }

    /// Removes a key, which must be in the node. Calls `dropped` with its newest record and
    /// its older records. Returns whether the key existed.
    pub(super) fn remove(
        &mut self,
        key: &[u8],
        dropped: &mut impl FnMut(&Record, &[Record]),
    ) -> bool {
        match self {
            Node::Leaf(leaf) => {
                let at = leaf.find(key).expect("the key is in the leaf");
                let entry = leaf.entry(at);
                let existed = !entry.latest().is_tombstone();
                dropped(entry.latest(), entry.older());
                leaf.remove(at);
                existed
            }
            Node::Inner(children) => {
                let at = children.position(key);
                let child = &mut children[at];
                let existed = child.node.remove(key, dropped);
                child.live -= i64::from(existed);
                merge_if_too_small(children, at);
                existed
            }
        }
    }

    /// Makes this root a child of a new root, beside `right`, the second half of the old root.
    pub(super) fn grow(&mut self, right: Child) {
        let node = std::mem::take(self);
        let left = Child { lower: Box::default(), live: node.live(), node };
        *self = Node::Inner(Children::new(vec![left, right]));
    }

    /// Replaces a root that has only one child by this child.
    pub(super) fn shrink(&mut self) {
        if let Node::Inner(children) = self
            && children.len() == 1
        {
            *self = children.remove(0).node;
        }
    }

    /// Moves the second half of the node to a new one, if it is too large.
    fn split_if_too_large(&mut self) -> Option<Child> {
        match self {
            Node::Leaf(leaf) if leaf.is_too_large() => {
                let right = leaf.split();
                let lower = separator(leaf.last_key(), right.first_key()).into();
                let node = Node::Leaf(right);
                Some(Child { lower, live: node.live(), node })
            }
            Node::Inner(children) if children.len() > MAX_LEN => {
                let (lower, right) = children.split();
                let node = Node::Inner(right);
                Some(Child { lower, live: node.live(), node })
            }
            Node::Leaf(_) | Node::Inner(_) => None,
        }
    }

    fn is_too_small(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.is_too_small(),
            Node::Inner(children) => children.len() < MIN_LEN,
        }
    }

    /// Moves the contents of the node after this one to this node. `lower` is the lower bound
    /// of `right`.
    fn append(&mut self, lower: Box<[u8]>, right: Node) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => left.append(right),
            (Node::Inner(left), Node::Inner(right)) => left.append(lower, right),
            _ => unreachable!("all leaves have the same depth"),
        }
    }
}

fn sum_live(children: &[Child]) -> i64 {
    children.iter().map(|child| child.live).sum()
}

/// Merges the child at this position with a neighbour, if it is too small. If both together are
/// too large for one node, they share their contents evenly.
fn merge_if_too_small(children: &mut Children, at: usize) {
    if !children[at].node.is_too_small() || children.len() == 1 {
        return;
    }
    let left = at.saturating_sub(1);
    let Child { lower, live, node } = children.remove(left + 1);
    let child = &mut children[left];
    child.node.append(lower, node);
    child.live += live;
    if let Some(right) = child.node.split_if_too_large() {
        child.live -= right.live;
        children.insert(left + 1, right);
    }
}

/// Returns the shortest key that is greater than `left` and not greater than `right`.
/// `left` must be less than `right`.
fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..common(left, right) + 1]
}
