//! What administrators ask of a store, beside its work: its hash, its content as
//! a whole, memory back. All of it reads in short steps; no write waits for more
//! than one of them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mvcc::{Effect, Effects, HashCursor, SnapshotCursor};

use crate::pace::{STEP, give_way};
use crate::read::Pin;
use crate::{Error, Pipeline};

/// Bytes of one chunk of an export, about: values are not split.
const CHUNK_BYTES: usize = 256 << 10;
/// A client that is slower than this, beyond a first time to spare, may find the
/// history that its export needs collected.
const EXPORT_BYTES_A_SECOND: u64 = 1 << 20;
const EXPORT_SPARE: Duration = Duration::from_secs(60);
/// How long to wait for a compaction under way to be published.
const PUBLISH_WAIT: Duration = Duration::from_millis(1);
/// Entries of containers that are moved at once to give memory back.
const MOVED_AT_ONCE: usize = 1 << 18;

/// A hash of the keys and their history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryHash {
    /// The hash.
    pub hash: u32,
    /// The compaction from which on history is covered; -1 before any.
    pub compact_revision: i64,
    /// The revision up to which it is covered.
    pub revision: i64,
    /// The newest visible revision.
    pub current: i64,
}

impl Pipeline {
    /// Hashes the history up to `revision`, 0 for now. Takes a while: it reads
    /// everything.
    pub fn hash(&self, revision: i64) -> Result<HistoryHash, Error> {
        let shared = self.shared();
        let (mut cursor, current, _pin) = {
            let store = shared.store.read();
            let current = shared.published.load(Ordering::Acquire);
            let cursor = HashCursor::new(&store, revision, current)?;
            let pin = Pin::new(shared, cursor.floor(), None);
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

    /// Leases with their TTLs in seconds, by ID.
    pub fn lease_ttls(&self) -> Vec<(i64, i64)> {
        let store = self.shared().store.read();
        let mut leases: Vec<_> =
            store.leases().map(|(id, lease)| (id, lease.ttl_seconds)).collect();
        drop(store);
        leases.sort_unstable();
        leases
    }

    /// Whether memory holds nothing any more of what a compaction at `revision`
    /// made unreadable.
    pub fn collected(&self, revision: i64) -> Result<bool, Error> {
        let shared = self.shared();
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(shared.store.read().is_collected(revision))
    }

    /// Gives room back that containers hold in reserve, as far as that takes no
    /// time to speak of.
    pub fn release_reserves(&self) {
        self.shared().store.write().shrink_tables(MOVED_AT_ONCE);
    }

    /// The state at the newest visible revision, with all history that can be
    /// read, in chunks of effects.
    pub fn export(&self) -> Result<Export, Error> {
        let shared = self.shared();
        loop {
            let store = shared.store.read();
            let revision = shared.published.load(Ordering::Acquire);
            if store.compacted() <= revision {
                let mut effects = Effects::new();
                let cursor = SnapshotCursor::at(&store, revision, &mut effects);
                let started = Instant::now();
                let pin = Pin::new(shared, cursor.floor(), Some(started + EXPORT_SPARE));
                let effects = effects.into_iter();
                let estimate = store.stats().total_bytes.max(0) as u64;
                return Ok(Export { cursor, effects, pin, started, bytes: 0, estimate, revision });
            }
            drop(store);
            if let Some(reason) = shared.failure.get() {
                return Err(Error::LogFailed(reason.clone()));
            }
            std::thread::sleep(PUBLISH_WAIT);
        }
    }
}

/// The chunks of an export. History is kept for it as long as they are taken at
/// a fair pace; whoever falls behind is told, once the history is gone.
pub struct Export {
    cursor: SnapshotCursor,
    /// What is not encoded yet; keys and values in it are shared with the store.
    effects: std::vec::IntoIter<Effect>,
    pin: Pin,
    started: Instant,
    bytes: u64,
    estimate: u64,
    revision: i64,
}

impl Export {
    /// The revision that is exported.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Bytes that are still to come, roughly, and never 0 before the end.
    pub fn remaining_bytes(&self) -> u64 {
        self.estimate.saturating_sub(self.bytes).max(1)
    }

    /// More effects, if there are any.
    fn refill(&mut self) -> Result<bool, Error> {
        let shared = self.pin.shared();
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
        let fair = Duration::from_secs(self.bytes / EXPORT_BYTES_A_SECOND);
        self.pin.hold_until(self.started + EXPORT_SPARE + fair);
        Ok(Some(payload).filter(|payload| !payload.is_empty()))
    }
}

impl Iterator for Export {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.chunk().transpose()
    }
}
