//! Leaves: the keys and their records.

use etcdpb::Record;

use super::entry::Entry;
use super::growth::{insert, shrink};
use super::hints::Hints;

/// Maximum number of keys of a leaf, and of children of an inner node.
pub(super) const MAX_LEN: usize = 64;

/// A node with fewer keys or children is merged with a neighbour.
pub(super) const MIN_LEN: usize = MAX_LEN / 4;

/// The records of one key that are older than its newest record, oldest first. The `Box`
/// limits an element to the size of one pointer.
#[allow(clippy::box_collection)]
type Older = Option<Box<Vec<Record>>>;

/// The state of a key before `Index::push` added a record.
#[derive(Default)]
pub(crate) struct Replaced {
    /// The newest record before the push; `None` if there was none or it was a tombstone.
    pub(crate) live: Option<Record>,
    /// The newest record at the revision before that of the new record, if the key existed at
    /// that revision. It differs from `live` if an earlier change at the revision of the new
    /// record also changed the key.
    pub(crate) previous: Option<Record>,
    /// The record of that earlier change, which may be a tombstone. It is no longer in the
    /// index.
    pub(crate) removed: Option<Record>,
}

/// What `Index::pop` has done.
pub(crate) struct Popped {
    /// The record that was the newest.
    pub(crate) removed: Record,
    /// The record that is the newest now, which may be a tombstone; `None` if the key was removed.
    pub(crate) restored: Option<Record>,
}

/// The records of up to [`MAX_LEN`] consecutive keys.
#[derive(Default)]
pub(super) struct Leaf {
    /// The newest record of each key, in key order.
    latest: Vec<Record>,
    /// The older records of each key; empty if no key has any. After a compaction, this is
    /// the case in most leaves.
    older: Vec<Older>,
    hints: Hints,
}

impl Leaf {
    pub(super) fn len(&self) -> usize {
        self.latest.len()
    }

    /// Returns the first key. The leaf must not be empty.
    pub(super) fn first_key(&self) -> &[u8] {
        self.latest[0].key()
    }

    /// Returns the last key. The leaf must not be empty.
    pub(super) fn last_key(&self) -> &[u8] {
        self.latest[self.len() - 1].key()
    }

    /// Returns the number of keys before `key`.
    pub(super) fn position(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at)
    }

    /// Returns the position of `key`, or the position where it has to be inserted.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.hints.find(key, |at| self.latest[at].key())
    }

    /// Returns the records of the key at this position.
    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        Entry::new(&self.latest[at], self.older_of(at))
    }

    fn older_of(&self, at: usize) -> &[Record] {
        self.older.get(at).and_then(Option::as_deref).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of existing keys before this position.
    pub(super) fn live_before(&self, at: usize) -> i64 {
        self.latest[..at].iter().map(|record| i64::from(!record.is_tombstone())).sum()
    }

    /// Makes `record` the newest record of the new key at this position.
    pub(super) fn insert(&mut self, at: usize, record: Record) {
        let first = self.latest.first().map(Record::key);
        let is_noted = self.hints.insert(at, record.key(), first);
        insert(&mut self.latest, at, record);
        if !is_noted {
            self.update_hints();
        }
        if !self.older.is_empty() {
            insert(&mut self.older, at, None);
        }
    }

    fn update_hints(&mut self) {
        self.hints = Hints::of(self.len(), |at| self.latest[at].key());
    }

    /// Makes `record` the newest record of the key at this position. If a revision changes the
    /// key twice, the second change replaces the first, because no reader can read the state
    /// between them.
    pub(super) fn push(&mut self, at: usize, record: Record) -> Replaced {
        let revision = record.mod_revision();
        let previous = self.entry(at).live_at(revision - 1).cloned();
        let latest = std::mem::replace(&mut self.latest[at], record);
        debug_assert!(revision >= latest.mod_revision());
        let live = Some(&latest).filter(|record| !record.is_tombstone()).cloned();
        if revision == latest.mod_revision() {
            return Replaced { live, previous, removed: Some(latest) };
        }
        if self.older.is_empty() {
            self.older.reserve_exact(self.latest.capacity());
            self.older.resize_with(self.latest.len(), || None);
        }
        self.older[at].get_or_insert_default().push(latest);
        Replaced { live, previous, removed: None }
    }

    /// Removes the newest record of the key at this position, if it has this revision. The caller
    /// removes the key if there is no other record.
    pub(super) fn pop(&mut self, at: usize, revision: i64) -> Option<Popped> {
        if self.latest[at].mod_revision() != revision {
            return None;
        }
        let older = self.older.get_mut(at);
        let restored = older.and_then(Option::as_mut).and_then(|records| records.pop());
        let Some(restored) = restored else {
            return Some(Popped { removed: self.latest[at].clone(), restored: None });
        };
        self.older[at].take_if(|records| records.is_empty());
        if self.older.iter().all(Option::is_none) {
            self.older = Vec::new();
        }
        let removed = std::mem::replace(&mut self.latest[at], restored.clone());
        Some(Popped { removed, restored: Some(restored) })
    }

    /// Removes the records of the key at this position that cannot be read at `revision` or
    /// later, and calls `dropped` for each. Returns whether no record is left: the caller then
    /// removes the key.
    pub(super) fn compact(
        &mut self,
        at: usize,
        revision: i64,
        dropped: &mut impl FnMut(&Record),
    ) -> bool {
        let latest = &self.latest[at];
        let is_latest_visible = latest.mod_revision() <= revision;
        if let Some(older) = self.older.get_mut(at) {
            match is_latest_visible {
                true => older.take().iter().flat_map(|older| older.iter()).for_each(&mut *dropped),
                false => compact_older(older, revision, dropped),
            }
            if self.older.iter().all(Option::is_none) {
                self.older = Vec::new();
            }
        }
        let is_unreadable = is_latest_visible && latest.is_tombstone();
        if is_unreadable {
            dropped(latest);
        }
        is_unreadable
    }

    /// Removes the key at this position.
    pub(super) fn remove(&mut self, at: usize) {
        self.latest.remove(at);
        shrink(&mut self.latest);
        self.hints.remove(at);
        if !self.older.is_empty() {
            self.older.remove(at);
            shrink(&mut self.older);
        }
    }

    /// Whether the leaf has more keys than a leaf may have.
    pub(super) fn is_too_large(&self) -> bool {
        self.len() > MAX_LEN
    }

    /// Whether the leaf has so few keys that it should be merged with a neighbour.
    pub(super) fn is_too_small(&self) -> bool {
        self.len() < MIN_LEN
    }

    /// Moves the second half of the keys to a new leaf.
    pub(super) fn split(&mut self) -> Leaf {
        let half = self.len() / 2;
        let latest = self.latest.split_off(half);
        self.latest.shrink_to_fit();
        let older = match self.older.is_empty() {
            true => Vec::new(),
            false => self.older.split_off(half),
        };
        self.older.shrink_to_fit();
        let mut right = Leaf { latest, older, hints: Hints::default() };
        self.update_hints();
        right.update_hints();
        right
    }

    /// Moves all keys of the leaf after this one to this leaf.
    pub(super) fn append(&mut self, mut right: Leaf) {
        let len = self.len() + right.len();
        if !self.older.is_empty() || !right.older.is_empty() {
            self.older.reserve_exact(len - self.older.len());
            self.older.resize_with(self.len(), || None);
            self.older.append(&mut right.older);
            self.older.resize_with(len, || None);
        }
        self.latest.reserve_exact(right.len());
        self.latest.append(&mut right.latest);
        self.update_hints();
    }
}

/// Removes the records that cannot be read at `revision` or later, if a newer record than
/// these is not visible at `revision`.
fn compact_older(older: &mut Older, revision: i64, dropped: &mut impl FnMut(&Record)) {
    let Some(records) = older else { return };
    // A reader at `revision` sees the newest record at or before it. Keep this record, unless
    // it is a tombstone: the reader finds no key with or without a tombstone.
    let visible = records.partition_point(|record| record.mod_revision() <= revision);
    let keep_from = match visible {
        0 => 0,
        n if records[n - 1].is_tombstone() => n,
        n => n - 1,
    };
    records.drain(..keep_from).for_each(|record| dropped(&record));
    if records.is_empty() {
        *older = None;
    } else if records.capacity() > 4 * records.len() {
        records.shrink_to_fit();
    }
}
