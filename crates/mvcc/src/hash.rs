//! A hash of the keys and their history, by which stores are compared.
//!
//! It is etcd's: a CRC-32C over `key`, then over each change as etcd's storage
//! holds it (revision, place within the revision, the pair as a message) in the
//! order in which they were made. Of what lies at or before the compaction only
//! the pairs count that still exist at the hashed revision. Two stores with the
//! same history have the same hash.
//!
//! One thing is not kept here that etcd keeps: which place within its revision a
//! change had, once the revision is compacted. It is taken to be the first, and
//! where several remain they count in the order of their keys. As long as no
//! transaction changes several keys, as in Kubernetes, nothing differs from etcd.

use crc32c::crc32c_append;
use etcdpb::{Key, KeyValue, Record};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::range::readable;
use crate::{Error, Span, Store};

const BUCKET: &[u8] = b"key";
const TOMBSTONE: u8 = b't';

/// A hash on its way through the state, in steps between which the store may
/// change. History must be kept from [`HashCursor::floor`] on meanwhile.
pub struct HashCursor {
    stage: Stage,
    /// Everything, to walk the index with.
    span: Span,
    compacted: i64,
    revision: i64,
    /// Pairs of before the compaction, in the order of keys.
    base: Vec<Record>,
    /// What the last step found, and whether those are such pairs.
    gathered: Vec<Change>,
    gathered_base: bool,
    crc: u32,
    buffer: Vec<u8>,
}

struct Change {
    place: u64,
    record: Record,
}

enum Stage {
    Base {
        after: Option<Key>,
    },
    /// So many events of `revision` have been seen, and all before.
    Events {
        revision: i64,
        seen: usize,
    },
    Done,
}

impl HashCursor {
    /// Begins the hash of the history up to `requested`, 0 for `current`, the
    /// newest revision that readers may see.
    pub fn new(store: &Store, requested: i64, current: i64) -> Result<Self, Error> {
        let revision = readable(store, requested, current)?;
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

    /// The first revision that is still needed.
    pub fn floor(&self) -> i64 {
        self.compacted
    }

    /// The revision that is hashed.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Looks at about `budget` keys or events, and says whether there are more.
    /// Follow it with [`HashCursor::digest`], which needs no store.
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

    /// Hashes what the last step found. Takes its time; hold no lock.
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
        gathered.iter().for_each(|change| self.add(change.place, &change.record));
    }

    /// The hash, and the compaction from which on it covers the history.
    pub fn finish(self) -> (u32, i64) {
        debug_assert!(matches!(self.stage, Stage::Done) && self.gathered.is_empty());
        (self.crc, self.compacted)
    }

    /// Pairs of before the events of the compacted revision; where to go on.
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
            self.gathered.push(Change { place: 0, record: record.clone() });
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
            let place = seen as u64;
            seen += 1;
            if revision > self.compacted || self.kept(store, &event.record) {
                self.gathered.push(Change { place, record: event.record.clone() });
            }
        }
        Stage::Done
    }

    /// Whether a change of the compacted revision still shows at the hashed one.
    fn kept(&self, store: &Store, record: &Record) -> bool {
        let entry = store.index.get(record.key().as_bytes());
        let shown = entry.and_then(|entry| entry.live_at(self.revision));
        shown.is_some_and(|shown| shown.mod_revision() == record.mod_revision())
    }

    fn add(&mut self, place: u64, record: &Record) {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.extend_from_slice(&record.mod_revision().to_be_bytes());
        buffer.push(b'_');
        buffer.extend_from_slice(&place.to_be_bytes());
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
