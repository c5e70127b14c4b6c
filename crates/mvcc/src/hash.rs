//! etcd's HashKV: a hash of the keys and their history, used to compare stores.
//!
//! It is a CRC-32C over the bucket name `key` and then over each change in the
//! form in which etcd stores it (revision, sub-revision, encoded pair), in the
//! order of the changes. At or before the compacted revision only those pairs
//! count that still exist at the hashed revision. Two stores with the same history
//! have the same hash.
//!
//! The sub-revision, a change's position within its revision, is lost here when
//! the revision is compacted. It is then assumed to be 0, and several remaining
//! changes of a revision are hashed in key order. The hash is therefore equal to
//! etcd's as long as no transaction changes several keys, as in Kubernetes.

use crc32c::crc32c_append;
use etcdpb::{Key, KeyValue, Record};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::error::Error;
use crate::range::readable_revision;
use crate::span::Span;
use crate::store::Store;

const BUCKET: &[u8] = b"key";
const TOMBSTONE: u8 = b't';

/// A hash in progress. The store may change between steps, but must not collect
/// history from [`HashCursor::floor`] on.
pub struct HashCursor {
    stage: Stage,
    /// The span of all keys.
    span: Span,
    compacted: i64,
    revision: i64,
    /// Pairs from before the compaction, in key order.
    base: Vec<Record>,
    /// The changes that the last step found, and whether they belong to `base`.
    gathered: Vec<Change>,
    gathered_base: bool,
    crc: u32,
    buffer: Vec<u8>,
}

struct Change {
    sub_revision: u64,
    record: Record,
}

enum Stage {
    Base {
        after: Option<Key>,
    },
    /// All events before `revision` and `seen` events of it have been visited.
    Events {
        revision: i64,
        seen: usize,
    },
    Done,
}

impl HashCursor {
    /// Starts a hash of the history up to revision `requested`; 0 stands for
    /// `current`, the newest published revision.
    ///
    /// # Errors
    /// Fails if the revision is compacted or greater than `current`.
    pub fn new(store: &Store, requested: i64, current: i64) -> Result<Self, Error> {
        let revision = readable_revision(store, requested, current)?;
        Ok(HashCursor {
            stage: Stage::Base { after: None },
            span: Span::new(&[], &[0]),
            compacted: store.compacted,
            revision,
            base: Vec::new(),
            gathered: Vec::new(),
            gathered_base: true,
            crc: crc32c_append(0, BUCKET),
            buffer: Vec::new(),
        })
    }

    /// The first revision whose history the hash still needs.
    pub fn floor(&self) -> i64 {
        self.compacted
    }

    /// The hashed revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Visits about `budget` keys or events. Returns false if the hash was already
    /// complete. Call [`HashCursor::digest`] after each call.
    pub fn gather(&mut self, store: &Store, budget: usize) -> bool {
        self.gathered_base = matches!(self.stage, Stage::Base { .. });
        match &mut self.stage {
            Stage::Base { after } => {
                let after = after.take();
                let next = self.gather_base(store, after, budget);
                let from = self.compacted.max(0);
                self.stage = match next {
                    Some(after) => Stage::Base { after: Some(after) },
                    None => Stage::Events { revision: from, seen: 0 },
                };
            }
            Stage::Events { revision, seen } => {
                let (revision, seen) = (*revision, *seen);
                self.stage = self.gather_events(store, revision, seen, budget);
            }
            Stage::Done => return false,
        }
        true
    }

    /// Hashes the changes that the last [`HashCursor::gather`] found. It uses much CPU
    /// and does not access the store: call it without a lock.
    pub fn digest(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        if self.gathered_base {
            self.base.extend(gathered.into_iter().map(|change| change.record));
            return;
        }
        if !self.base.is_empty() {
            let mut base = std::mem::take(&mut self.base);
            base.sort_by_key(Record::mod_revision);
            base.iter().for_each(|record| self.add(0, record));
        }
        gathered.iter().for_each(|change| self.add(change.sub_revision, &change.record));
    }

    /// The hash, and the compacted revision from which on it covers the history.
    pub fn finish(self) -> (u32, i64) {
        debug_assert!(matches!(self.stage, Stage::Done) && self.gathered.is_empty());
        (self.crc, self.compacted)
    }

    /// Gathers pairs from before the compacted revision. Returns the key after which
    /// the next step continues.
    fn gather_base(&mut self, store: &Store, after: Option<Key>, budget: usize) -> Option<Key> {
        let mut last: Option<&Key> = None;
        let after = after.as_ref().map(Key::as_bytes);
        for (visited, (key, entry)) in store.index.range(&self.span, after).enumerate() {
            if visited == budget {
                return last.cloned();
            }
            last = Some(key);
            let old = |record: &&Record| record.mod_revision() < self.compacted;
            let Some(record) = entry.live_at(self.revision).filter(old) else { continue };
            self.gathered.push(Change { sub_revision: 0, record: record.clone() });
        }
        None
    }

    fn gather_events(
        &mut self,
        store: &Store,
        mut revision: i64,
        mut seen: usize,
        budget: usize,
    ) -> Stage {
        for (visited, event) in store.history.since(revision).skip(seen).enumerate() {
            if event.revision() > self.revision {
                return Stage::Done;
            }
            if visited == budget {
                return Stage::Events { revision, seen };
            }
            if event.revision() > revision {
                (revision, seen) = (event.revision(), 0);
            }
            let sub_revision = seen as u64;
            seen += 1;
            if revision > self.compacted || self.is_visible(store, &event.record) {
                self.gathered.push(Change { sub_revision, record: event.record.clone() });
            }
        }
        Stage::Done
    }

    /// Whether a change at the compacted revision is still visible at the hashed one.
    fn is_visible(&self, store: &Store, record: &Record) -> bool {
        let entry = store.index.get(record.key().as_bytes());
        let visible = entry.and_then(|entry| entry.live_at(self.revision));
        visible.is_some_and(|visible| visible.mod_revision() == record.mod_revision())
    }

    fn add(&mut self, sub_revision: u64, record: &Record) {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.extend_from_slice(&record.mod_revision().to_be_bytes());
        buffer.push(b'_');
        buffer.extend_from_slice(&sub_revision.to_be_bytes());
        if record.is_tombstone() {
            buffer.push(TOMBSTONE);
            let key = record.key().as_bytes();
            encode_key(1, WireType::LengthDelimited, buffer);
            encode_varint(key.len() as u64, buffer);
            buffer.extend_from_slice(key);
        } else {
            KeyValue::from(record.clone()).encode_raw(buffer);
        }
        self.crc = crc32c_append(self.crc, &self.buffer);
    }
}
