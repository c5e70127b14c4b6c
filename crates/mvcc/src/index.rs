//! All keys in order, each with the records that can still be read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;

use etcdpb::{Key, Record};

use crate::span::Span;

/// The records of one key, oldest first.
#[derive(Debug)]
pub(crate) struct Entry {
    latest: Record,
    /// Records before the latest; almost always none after a compaction, so
    /// the common case pays one empty pointer.
    #[allow(clippy::box_collection)]
    older: Option<Box<Vec<Record>>>,
}

impl Entry {
    fn new(latest: Record) -> Self {
        Entry { latest, older: None }
    }

    /// The newest record, be it a tombstone.
    pub(crate) fn latest(&self) -> &Record {
        &self.latest
    }

    /// The key's record as of `revision`; `None` if it had none by then.
    pub(crate) fn at(&self, revision: i64) -> Option<&Record> {
        if self.latest.mod_revision() <= revision {
            return Some(&self.latest);
        }
        let older = self.older.as_deref()?;
        let visible = older.partition_point(|record| record.mod_revision() <= revision);
        older[..visible].last()
    }

    /// As [`Entry::at`], but only where the key existed.
    pub(crate) fn live_at(&self, revision: i64) -> Option<&Record> {
        self.at(revision).filter(|record| !record.is_tombstone())
    }

    /// Puts `record` on top. A second change in the same revision replaces the
    /// first, which no reader can ever ask for.
    fn push(&mut self, record: Record) {
        debug_assert!(record.mod_revision() >= self.latest.mod_revision());
        let same_revision = record.mod_revision() == self.latest.mod_revision();
        let before = std::mem::replace(&mut self.latest, record);
        if !same_revision {
            self.older.get_or_insert_default().push(before);
        }
    }

    /// Drops what cannot be read at `revision` or later, and says whether
    /// anything readable is left.
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
        // The newest record at or before `revision` is what a reader at that
        // revision sees; a tombstone shows them nothing and can go as well.
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

/// What a key was before it got a new record.
#[derive(Default)]
pub(crate) struct Before {
    /// Its newest record, if it existed.
    pub(crate) latest: Option<Record>,
    /// The record that a reader of the revision before saw: another one if the
    /// revision changes the key twice.
    pub(crate) previous: Option<Record>,
}

/// The ordered index of all keys.
///
/// The one place that knows the data structure: a B-tree from shared keys to
/// entries. Lookup, insertion and removal are O(log n).
#[derive(Default)]
pub(crate) struct Index {
    tree: BTreeMap<Key, Entry>,
}

impl Index {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.tree.get(key)
    }

    /// Adds `record` as the newest of its key, and returns what was before. One
    /// way through the tree, because that is most of what a write costs.
    pub(crate) fn push(&mut self, record: Record) -> Before {
        match self.tree.entry(record.key().clone()) {
            MapEntry::Vacant(vacant) => {
                vacant.insert(Entry::new(record));
                Before::default()
            }
            MapEntry::Occupied(occupied) => {
                let entry = occupied.into_mut();
                let previous = entry.live_at(record.mod_revision() - 1).cloned();
                let latest = Some(entry.latest()).filter(|r| !r.is_tombstone()).cloned();
                entry.push(record);
                Before { latest, previous }
            }
        }
    }

    /// Drops the records of `key` that a compaction at `revision` made
    /// unreadable, and tells `dropped` of each.
    pub(crate) fn compact(&mut self, key: &[u8], revision: i64, mut dropped: impl FnMut(&Record)) {
        if let Some(entry) = self.tree.get_mut(key)
            && !entry.compact(revision, &mut dropped)
        {
            self.tree.remove(key);
        }
    }

    /// Drops all records of the keys inside `span`, and tells `dropped` of each
    /// key's newest record, and then of the older ones.
    pub(crate) fn forget(&mut self, span: &Span, mut dropped: impl FnMut(&Record, &[Record])) {
        let keys: Vec<Key> = self.range(span, None).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let entry = self.tree.remove(&key).expect("just found");
            dropped(&entry.latest, entry.older.as_deref().map_or(&[], |older| older));
        }
    }

    /// The entries inside `span` in order, from `after` (exclusive) when given.
    pub(crate) fn range<'a>(
        &'a self,
        span: &'a Span,
        after: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a Key, &'a Entry)> {
        let bounds = (!span.is_empty()).then(|| span.bounds(after));
        bounds.into_iter().flat_map(|bounds| self.tree.range::<[u8], _>(bounds))
    }

    /// Number of keys, those included that were deleted since the compaction.
    pub(crate) fn len(&self) -> usize {
        self.tree.len()
    }
}
