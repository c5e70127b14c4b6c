//! Operations for administrators: hash, export, release of unused memory. All of them
//! read the store in short steps; a write waits for at most one step.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mvcc::{Effect, Effects, HashCursor, SnapshotCursor};

use crate::pace::{STEP, give_way};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::{Error, Pipeline};

/// Bytes that complete a chunk of an export. Values are not split.
const CHUNK_BYTES: usize = 256 << 10;
/// The history for an export is kept for `EXPORT_GRACE` and one more second per
/// `EXPORT_BYTES_PER_SECOND` taken. A slower client may get an error that the revision is
/// compacted.
const EXPORT_BYTES_PER_SECOND: u64 = 1 << 20;
const EXPORT_GRACE: Duration = Duration::from_secs(60);
/// Poll interval while a compaction is applied but not yet published.
const PUBLISH_WAIT: Duration = Duration::from_millis(1);
/// Largest number of entries that shrinking one container may move.
const MAX_MOVED_ENTRIES: usize = 1 << 18;

/// A hash of the keys and their history, as HashKV returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryHash {
    /// The hash.
    pub hash: u32,
    /// The compacted revision from which the history is covered; -1 before any compaction.
    pub compact_revision: i64,
    /// The revision up to which the history is covered.
    pub revision: i64,
    /// The published revision.
    pub current: i64,
}

impl Pipeline {
    /// Hashes the history up to `revision`; 0 means the published revision. Reads the
    /// whole store, so it must run on a thread that may block.
    pub fn hash(&self, revision: i64) -> Result<HistoryHash, Error> {
        let shared = self.shared();
        let (mut cursor, current, _pin) = {
            let store = shared.store.read();
            let current = shared.published.load(Ordering::Acquire);
            let cursor = HashCursor::new(&store, revision, current)?;
            let pin = Pin::new(&shared.pins, cursor.floor(), None);
            (cursor, current, pin)
        };
        loop {
            if shared.stopping.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let more = cursor.gather(&shared.store.read(), STEP);
            if !more {
                break;
            }
            cursor.digest();
            give_way();
        }
        let revision = cursor.revision();
        let (hash, compact_revision) = cursor.finish();
        Ok(HistoryHash { hash, compact_revision, revision, current })
    }

    /// Returns the leases with their TTLs in seconds, ordered by ID.
    pub fn lease_ttls(&self) -> Vec<(i64, i64)> {
        let store = self.shared().store.read();
        let mut leases: Vec<_> =
            store.leases().map(|(id, lease)| (id, lease.ttl_seconds)).collect();
        drop(store);
        leases.sort_unstable();
        leases
    }

    /// Whether the memory of all history that a compaction at `revision` made unreadable
    /// has been freed.
    pub fn collected(&self, revision: i64) -> Result<bool, Error> {
        let shared = self.shared();
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(shared.store.read().is_collected(revision))
    }

    /// Shrinks containers with unused capacity, except those that take long to move.
    pub fn shrink_tables(&self) {
        self.shared().store.write().shrink_tables(MAX_MOVED_ENTRIES);
    }

    /// Exports the store at the published revision with all readable history, as chunks
    /// of effects.
    pub fn export(&self) -> Result<Export, Error> {
        let shared = self.shared();
        loop {
            let store = shared.store.read();
            let revision = shared.published.load(Ordering::Acquire);
            if store.compacted() <= revision {
                let mut effects = Effects::new();
                let cursor = SnapshotCursor::at(&store, revision, &mut effects);
                let started = Instant::now();
                let pin = Pin::new(&shared.pins, cursor.floor(), Some(started + EXPORT_GRACE));
                let effects = effects.into_iter();
                let estimate = store.stats().total_bytes.max(0) as u64;
                let shared = shared.clone();
                return Ok(Export {
                    shared,
                    cursor,
                    effects,
                    pin,
                    started,
                    bytes: 0,
                    estimate,
                    revision,
                });
            }
            drop(store);
            if let Some(reason) = shared.failure.get() {
                return Err(Error::LogFailed(reason.clone()));
            }
            std::thread::sleep(PUBLISH_WAIT);
        }
    }
}

/// The chunks of an export. The history is kept as long as the client takes at least
/// 1 MiB/s, after a grace period of 60 s; a slower client may get an error.
pub struct Export {
    shared: Arc<SharedStore>,
    cursor: SnapshotCursor,
    /// Effects to encode. They share keys and values with the store.
    effects: std::vec::IntoIter<Effect>,
    pin: Pin,
    started: Instant,
    /// Bytes returned so far.
    bytes: u64,
    /// Estimated bytes in all.
    estimate: u64,
    revision: i64,
}

impl Export {
    /// The exported revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Estimate of the remaining bytes; never 0 before the end.
    pub fn remaining_bytes(&self) -> u64 {
        self.estimate.saturating_sub(self.bytes).max(1)
    }

    /// Reads more effects. Returns whether there were any.
    fn refill(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let store = shared.store.read();
        if self.pin.expired() && self.cursor.floor() < store.compacted() {
            return Err(mvcc::Error::Compacted.into());
        }
        let mut effects = Effects::new();
        let more = self.cursor.step(&store, STEP, &mut effects);
        drop(store);
        give_way();
        self.effects = effects.into_iter();
        Ok(more)
    }

    fn chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut payload = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
        while payload.len() < CHUNK_BYTES {
            match self.effects.next() {
                Some(effect) => effect.encode(&mut payload),
                None if self.refill()? => {}
                None => break,
            }
        }
        self.bytes += payload.len() as u64;
        let earned = Duration::from_secs(self.bytes / EXPORT_BYTES_PER_SECOND);
        self.pin.extend(self.started + EXPORT_GRACE + earned);
        Ok(Some(payload).filter(|payload| !payload.is_empty()))
    }
}

impl Iterator for Export {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.chunk().transpose()
    }
}
