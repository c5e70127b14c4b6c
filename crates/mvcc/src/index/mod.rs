//! The ordered index of keys, each with its records. Unreadable records stay until garbage
//! collection removes them.
//!
//! The index is a B+ tree that knows how many existing keys each of its parts has, so that
//! a count does not visit the keys:
//!
//! - `leaf`: up to 64 keys with their records
//! - `node`: the nodes, and the operations that descend from the root to a leaf
//! - `inner`: the children of an inner node
//! - `hints`: what a search reads instead of most keys
//! - `growth`: vectors that leave little memory unused
//! - `entries`: iteration in key order
//! - `entry`: the records of one key
//!
//! A reader gets keys from the records: there are no copies of keys beside the shortened ones
//! that separate the nodes.

use etcdpb::Record;

use crate::span::Span;

mod entries;
mod entry;
mod growth;
mod hints;
mod inner;
mod leaf;
mod node;

use entries::Entries;
pub(crate) use entry::Entry;
pub(crate) use leaf::{Popped, Replaced};
use node::Node;

/// The ordered index of all keys. Lookup, insertion, removal and count take O(log n). No other
/// module depends on the data structure.
#[derive(Default)]
pub(crate) struct Index {
    root: Node,
    /// Number of keys, including deleted keys that are not yet collected.
    len: usize,
}

impl Index {
    /// Returns the records of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        self.root.get(key)
    }

    /// Makes `record` the newest record of its key, and returns the records before it. It
    /// descends the tree only once, because that is the most expensive part of a write.
    pub(crate) fn push(&mut self, record: Record) -> Replaced {
        let pushed = self.root.push(record);
        self.len += usize::from(pushed.is_new_key);
        if let Some(right) = pushed.split {
            self.root.grow(right);
        }
        pushed.replaced
    }

    /// Removes the newest record of `key`, if it has this revision, and the key if it has no other
    /// record. It takes back [`Index::push`].
    pub(crate) fn pop(&mut self, key: &[u8], revision: i64) -> Option<Popped> {
        let popped = self.root.pop(key, revision)?;
        if popped.restored.is_none() {
            self.removed_key();
        }
        Some(popped)
    }

    /// Removes the records of `key` that a compaction at `revision` has made unreadable,
    /// and calls `dropped` for each.
    pub(crate) fn compact(&mut self, key: &[u8], revision: i64, mut dropped: impl FnMut(&Record)) {
        if self.root.compact(key, revision, &mut dropped) {
            self.removed_key();
        }
    }

    /// Removes all keys in `span`. Calls `dropped` for each key, with its newest record
    /// and its older records.
    pub(crate) fn remove_span(&mut self, span: &Span, mut dropped: impl FnMut(&Record, &[Record])) {
        let records = self.range(span, None).map(|entry| entry.latest().clone());
        for record in records.collect::<Vec<_>>() {
            self.root.remove(record.key(), &mut dropped);
            self.removed_key();
        }
    }

    /// Updates the index after the removal of a key.
    fn removed_key(&mut self) {
        self.len -= 1;
        self.root.shrink();
    }

    /// Returns the entries of the keys in `span`, in key order; only those after `after` if
    /// it is set. `after` must be in the span.
    pub(crate) fn range<'a>(&'a self, span: &Span, after: Option<&[u8]>) -> Entries<'a> {
        if span.is_empty() {
            return Entries::default();
        }
        // The key that follows `after` immediately is `after` and a zero.
        let after = after.map(|after| [after, &[0]].concat());
        let start = after.as_deref().unwrap_or(span.start());
        Entries::new(&self.root, start, span.end().as_deref())
    }

    /// Returns the number of keys in `span` that exist now.
    pub(crate) fn count_live(&self, span: &Span) -> i64 {
        if span.is_empty() {
            return 0;
        }
        let before_end = match span.end() {
            Some(end) => self.root.live_before(&end),
            None => self.root.live(),
        };
        before_end - self.root.live_before(span.start())
    }

    /// Returns the number of keys, including deleted keys that are not yet collected.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests;
