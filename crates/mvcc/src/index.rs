//! The ordered index of keys, each with its records. Unreadable records stay until garbage
//! collection removes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;

use etcdpb::{Key, Record};

use crate::span::Span;

/// All records of one key in the index. A record is one version of the key: a value or a
/// tombstone.
#[derive(Debug)]
pub(crate) struct Entry {
    latest: Record,
    /// The records older than `latest`, oldest first. After a compaction most keys have none.
    /// The `Box` limits this field to the size of one pointer.
    #[allow(clippy::box_collection)]
    older: Option<Box<Vec<Record>>>,
}

impl Entry {
    fn new(latest: Record) -> Self {
        Entry { latest, older: None }
    }

    /// Returns the newest record, which may be a tombstone.
    pub(crate) fn latest(&self) -> &Record {
        &self.latest
    }

    /// Returns the newest record at or before `revision`, which may be a tombstone;
    /// `None` if there is none.
    pub(crate) fn at(&self, revision: i64) -> Option<&Record> {
        if self.latest.mod_revision() <= revision {
            return Some(&self.latest);
        }
        let older = self.older.as_deref()?;
        let visible = older.partition_point(|record| record.mod_revision() <= revision);
        older[..visible].last()
    }

    /// Returns the newest record at or before `revision` if the key existed at that
    /// revision.
    pub(crate) fn live_at(&self, revision: i64) -> Option<&Record> {
        self.at(revision).filter(|record| !record.is_tombstone())
    }

    /// Makes `record` the newest record. If a revision changes the key twice, the second
    /// change replaces the first, because no reader can read the state between them. Returns
    /// the record that it replaces.
    fn push(&mut self, record: Record) -> Option<Record> {
        debug_assert!(record.mod_revision() >= self.latest.mod_revision());
        let same_revision = record.mod_revision() == self.latest.mod_revision();
        let before = std::mem::replace(&mut self.latest, record);
        if same_revision {
            return Some(before);
        }
        self.older.get_or_insert_default().push(before);
        None
    }

    /// Removes the records that cannot be read at `revision` or later, and calls
    /// `dropped` for each. Returns whether records are left.
    fn compact(&mut self, revision: i64, dropped: &mut impl FnMut(&Record)) -> bool {
        if self.latest.mod_revision() <= revision {
            self.older.take().iter().flat_map(|older| older.iter()).for_each(&mut *dropped);
            if self.latest.is_tombstone() {
                dropped(&self.latest);
                return false;
            }
            return true;
        }
        let Some(older) = self.older.as_deref_mut() else { return true };
        // A reader at `revision` sees the newest record at or before it. Keep this
        // record, unless it is a tombstone: the reader finds no key with or without a tombstone.
        let visible = older.partition_point(|record| record.mod_revision() <= revision);
        let keep_from = match visible {
            0 => 0,
            n if older[n - 1].is_tombstone() => n,
            n => n - 1,
        };
        older.drain(..keep_from).for_each(|record| dropped(&record));
        if older.is_empty() {
            self.older = None;
        } else if older.capacity() > 4 * older.len() {
            older.shrink_to_fit();
        }
        true
    }
}

/// The state of a key before [`Index::push`] added a record.
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

/// The ordered index of all keys: a B-tree from keys to entries. No other module depends
/// on this data structure. Lookup, insertion and removal take O(log n).
#[derive(Default)]
pub(crate) struct Index {
    tree: BTreeMap<Key, Entry>,
}

impl Index {
    /// Returns the records of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.tree.get(key)
    }

    /// Makes `record` the newest record of its key, and returns the records before it. It
    /// descends the tree only once, because that is the most expensive part of a write.
    pub(crate) fn push(&mut self, record: Record) -> Replaced {
        match self.tree.entry(record.key().clone()) {
            MapEntry::Vacant(vacant) => {
                vacant.insert(Entry::new(record));
                Replaced::default()
            }
            MapEntry::Occupied(occupied) => {
                let entry = occupied.into_mut();
                let previous = entry.live_at(record.mod_revision() - 1).cloned();
                let live = Some(entry.latest()).filter(|r| !r.is_tombstone()).cloned();
                let removed = entry.push(record);
                Replaced { live, previous, removed }
            }
        }
    }

    /// Removes the records of `key` that a compaction at `revision` has made unreadable,
    /// and calls `dropped` for each.
    pub(crate) fn compact(&mut self, key: &[u8], revision: i64, mut dropped: impl FnMut(&Record)) {
        if let Some(entry) = self.tree.get_mut(key)
            && !entry.compact(revision, &mut dropped)
        {
            self.tree.remove(key);
        }
    }

    /// Removes all keys in `span`. Calls `dropped` for each key, with its newest record
    /// and its older records.
    pub(crate) fn remove_span(&mut self, span: &Span, mut dropped: impl FnMut(&Record, &[Record])) {
        let keys: Vec<Key> = self.range(span, None).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let entry = self.tree.remove(&key).expect("the key was found above");
            dropped(&entry.latest, entry.older.as_deref().map_or(&[], |older| older));
        }
    }

    /// Returns the keys in `span` with their entries, in key order; only those after
    /// `after` if it is set.
    pub(crate) fn range<'a>(
        &'a self,
        span: &Span,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a Key, &'a Entry)> + use<'a> {
        let range = (!span.is_empty()).then(|| self.tree.range::<[u8], _>(span.bounds(after)));
        range.into_iter().flatten()
    }

    /// Returns the number of keys, including deleted keys that are not yet collected.
    pub(crate) fn len(&self) -> usize {
        self.tree.len()
    }
}
