//! The hash that etcd's HashKV returns: a hash of the keys and their history, to compare
//! stores.
//!
//! It is a CRC-32C over the bucket name `key` and then over each change in the form in
//! which etcd stores it (revision, sub-revision, encoded pair), in the order of the
//! changes. Of the changes at or before the compacted revision, it includes only the
//! pairs that are still current at the requested revision (the last one that the hash
//! includes). Two stores with the same history have the same hash.
//!
//! The sub-revision is the position of a change within its revision. This store loses it
//! when the revision is compacted. The hash then assumes the sub-revision 0, and includes
//! the remaining changes of a revision in key order. So the hash is equal to that of etcd
//! as long as no transaction changes several keys, which holds for Kubernetes.

use crc32c::crc32c_append;
use etcdpb::{Key, KeyValue, Record};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::error::Error;
use crate::range::readable_revision;
use crate::span::Span;
use crate::store::Store;

/// The name of etcd's bucket of keys.
const BUCKET: &[u8] = b"key";
/// The mark of a deletion in etcd's encoded revisions.
const TOMBSTONE: u8 = b't';

/// A hash in progress. The store may change between steps, but garbage collection must
/// not remove history from [`HashCursor::oldest_needed_revision`] on.
pub struct HashCursor {
    stage: Stage,
    /// The span of all keys.
    span: Span,
    /// The compacted revision when the hash was started.
    compacted: i64,
    /// The last hashed revision.
    revision: i64,
    /// Pairs from before the compacted revision, in key order, until they are hashed.
    base: Vec<Record>,
    /// The changes that the last [`HashCursor::gather`] found.
    gathered: Vec<Change>,
    /// Whether `gathered` belongs to `base`.
    gathered_base: bool,
    crc: u32,
    buffer: Vec<u8>,
}

/// A change that is to be hashed.
struct Change {
    /// The position of the change within its revision.
    sub_revision: u64,
    record: Record,
}

/// What the next call of [`HashCursor::gather`] visits.
enum Stage {
    /// Pairs from before the compacted revision, after this key.
    Base { after: Option<Key> },
    /// Events from `revision` on, without the first `visited` events of this revision.
    Events { revision: i64, visited: usize },
    /// Nothing: the hash is complete.
    Done,
}

impl HashCursor {
    /// Starts a hash of the history up to revision `requested`; 0 means `current`, the
    /// published revision.
    ///
    /// # Errors
    /// Fails if the revision is compacted or greater than `current`.
    pub fn new(store: &Store, requested: i64, current: i64) -> Result<Self, Error> {
        let revision = readable_revision(store.published_compacted, requested, current)?;
        Ok(HashCursor {
            stage: Stage::Base { after: None },
            span: Span::new(&[], &[0]),
            compacted: store.published_compacted,
            revision,
            base: Vec::new(),
            gathered: Vec::new(),
            gathered_base: true,
            crc: crc32c_append(0, BUCKET),
            buffer: Vec::new(),
        })
    }

    /// Returns the first revision whose history the hash still needs.
    pub fn oldest_needed_revision(&self) -> i64 {
        self.compacted
    }

    /// Returns the last hashed revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Approximate memory in bytes that the hash occupies: the pairs are sorted before they are
    /// hashed, which needs half of their memory again.
    pub fn memory_bytes(&self) -> usize {
        let base = self.base.capacity() * size_of::<Record>();
        base + base / 2 + self.gathered.capacity() * size_of::<Change>()
    }

    /// Visits about `max_entries` keys or events. Returns false if the hash was already
    /// complete. Call [`HashCursor::digest`] after each call.
    pub fn gather(&mut self, store: &Store, max_entries: usize) -> bool {
        self.gathered_base = matches!(self.stage, Stage::Base { .. });
        match &mut self.stage {
            Stage::Base { after } => {
                let after = after.take();
                let next = self.gather_base(store, after, max_entries);
                let from = self.compacted.max(0);
                self.stage = match next {
                    Some(after) => Stage::Base { after: Some(after) },
                    None => Stage::Events { revision: from, visited: 0 },
                };
            }
            Stage::Events { revision, visited } => {
                let (revision, visited) = (*revision, *visited);
                self.stage = self.gather_events(store, revision, visited, max_entries);
            }
            Stage::Done => return false,
        }
        true
    }

    /// Hashes the changes that the last [`HashCursor::gather`] found. It takes much CPU
    /// time and does not access the store, so call it without a lock.
    pub fn digest(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        if self.gathered_base {
            self.base.extend(gathered.into_iter().map(|change| change.record));
            return;
        }
        if !self.base.is_empty() {
            let mut base = std::mem::take(&mut self.base);
            base.sort_by_key(Record::mod_revision);
            base.iter().for_each(|record| self.hash_change(0, record));
        }
        gathered.iter().for_each(|change| self.hash_change(change.sub_revision, &change.record));
    }

    /// Returns the hash, and the compacted revision with which the hashed history starts.
    pub fn finish(self) -> (u32, i64) {
        debug_assert!(matches!(self.stage, Stage::Done) && self.gathered.is_empty());
        (self.crc, self.compacted)
    }

    /// Gathers pairs from before the compacted revision. Returns the key after which the
    /// next step continues; `None` if there are no more pairs.
    fn gather_base(
        &mut self,
        store: &Store,
        after: Option<Key>,
        max_entries: usize,
    ) -> Option<Key> {
        let mut last = None;
        let after = after.as_ref().map(Key::as_bytes);
        for (visited, entry) in store.index.range(&self.span, after).enumerate() {
            if visited == max_entries {
                return last.map(Key::new);
            }
            last = Some(entry.key());
            let is_base = |record: &&Record| record.mod_revision() < self.compacted;
            let Some(record) = entry.live_at(self.revision).filter(is_base) else { continue };
            self.gathered.push(Change { sub_revision: 0, record: record.clone() });
        }
        None
    }

    /// Gathers changes from the history. Returns the next stage.
    fn gather_events(
        &mut self,
        store: &Store,
        mut revision: i64,
        mut visited: usize,
        max_entries: usize,
    ) -> Stage {
        for (count, event) in store.history.since(revision).skip(visited).enumerate() {
            if event.revision() > self.revision {
                return Stage::Done;
            }
            if count == max_entries {
                return Stage::Events { revision, visited };
            }
            if event.revision() > revision {
                (revision, visited) = (event.revision(), 0);
            }
            let sub_revision = visited as u64;
            visited += 1;
            if revision > self.compacted || self.is_visible(store, &event.record) {
                self.gathered.push(Change { sub_revision, record: event.record.clone() });
            }
        }
        Stage::Done
    }

    /// Whether `record`, a change at the compacted revision, still exists at the hashed
    /// revision.
    fn is_visible(&self, store: &Store, record: &Record) -> bool {
        let entry = store.index.get(record.key());
        let visible = entry.and_then(|entry| entry.live_at(self.revision));
        visible.is_some_and(|visible| visible.mod_revision() == record.mod_revision())
    }

    /// Adds one change to the hash.
    fn hash_change(&mut self, sub_revision: u64, record: &Record) {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.extend_from_slice(&record.mod_revision().to_be_bytes());
        buffer.push(b'_');
        buffer.extend_from_slice(&sub_revision.to_be_bytes());
        if record.is_tombstone() {
            buffer.push(TOMBSTONE);
            let key = record.key();
            encode_key(1, WireType::LengthDelimited, buffer);
            encode_varint(key.len() as u64, buffer);
            buffer.extend_from_slice(key);
        } else {
            KeyValue::from(record.clone()).encode_raw(buffer);
        }
        self.crc = crc32c_append(self.crc, &self.buffer);
    }
}
