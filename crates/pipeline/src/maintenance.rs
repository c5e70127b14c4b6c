//! Operations for administrators: hash, export, release of unused memory. Hash and export
//! read the store in short steps, so a write waits for at most one step.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mvcc::{Effect, Effects, HashCursor, SnapshotCursor};

use crate::pace::{self, STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::shared_store::SharedStore;
use crate::{Error, Pipeline};

/// An export chunk ends with the first effect that brings it to at least this size in
/// bytes. No effect is split between chunks.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of steps in which a chunk is read on the calling thread. They visit 8,192
/// keys or events.
const CHUNK_STEPS: usize = 64;
/// An export keeps its history readable until `EXPORT_GRACE` after its start, plus one
/// second for each `EXPORT_BYTES_PER_SECOND` bytes that the client has taken. After that,
/// a compaction can end the export with the error that the revision is compacted.
const EXPORT_BYTES_PER_SECOND: u64 = 1 << 20;
const EXPORT_GRACE: Duration = Duration::from_secs(60);
/// Interval at which an export checks whether a compaction that is already applied is
/// also published.
const PUBLISH_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of entries that shrinking a table may move.
const MAX_MOVED_ENTRIES: usize = 1 << 18;

/// The hash of the keys and their history that HashKV returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryHash {
    /// The CRC-32C of the history.
    pub hash: u32,
    /// The compacted revision: the hashed history starts here; -1 before any compaction.
    pub compact_revision: i64,
    /// The last hashed revision.
    pub revision: i64,
    /// The published revision when the hash was started.
    pub current: i64,
}

impl Pipeline {
    /// Hashes the history up to `revision`; 0 means the published revision. It reads the
    /// whole store, so call it on a thread that may block.
    pub fn hash(&self, revision: i64) -> Result<HistoryHash, Error> {
        self.hash_unless(revision, &|_| false)
    }

    /// Hashes the history as [`Pipeline::hash`] does. Fails when `stops` returns true; it is called
    /// between the steps with the memory in bytes that is occupied so far.
    pub fn hash_unless(
        &self,
        revision: i64,
        stops: &dyn Fn(usize) -> bool,
    ) -> Result<HistoryHash, Error> {
        let shared = self.shared();
        let (mut cursor, current, _pin) = {
            let store = shared.store.read();
            let current = shared.published.load(Ordering::Acquire);
            let cursor = HashCursor::new(&store, revision, current)?;
            let pin = Pin::new(&shared.pins, cursor.oldest_needed_revision(), None);
            (cursor, current, pin)
        };
        loop {
            if shared.stopping.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let more = cursor.gather(&shared.store.read(), STEP_ENTRIES);
            if !more {
                break;
            }
            cursor.digest();
            pace::pause(&|| stops(cursor.memory_bytes()))?;
        }
        let revision = cursor.revision();
        let (hash, compact_revision) = cursor.finish();
        Ok(HistoryHash { hash, compact_revision, revision, current })
    }

    /// Whether all history that a compaction at `revision` made unreadable has been
    /// freed.
    pub fn is_collected(&self, revision: i64) -> Result<bool, Error> {
        let shared = self.shared();
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(shared.store.read().is_collected(revision))
    }

    /// Releases the unused capacity of the history. A history with more than
    /// `MAX_MOVED_ENTRIES` entries is left as it is.
    pub fn shrink_tables(&self) {
        self.shared().store.write().shrink_tables(MAX_MOVED_ENTRIES);
    }

    /// Starts an export: chunks of effects with the store at the published revision and
    /// all readable history. It may have to wait for a write to the log. Fails when `stops`
    /// returns true; it is called between the steps with the memory in bytes that is occupied so
    /// far, see [`Export::held_bytes`].
    pub fn export_unless(&self, stops: &dyn Fn(usize) -> bool) -> Result<Export, Error> {
        let shared = self.shared();
        loop {
            let store = shared.store.read();
            let revision = shared.published.load(Ordering::Acquire);
            if store.compacted() <= revision {
                let mut effects = Effects::new();
                let mut cursor = SnapshotCursor::at_revision(&store, revision, &mut effects);
                let started = Instant::now();
                let pin = Pin::new(
                    &shared.pins,
                    cursor.oldest_needed_revision(),
                    Some(started + EXPORT_GRACE),
                );
                let estimated_bytes = store.stats().total_bytes.max(0) as u64;
                drop(store);
                // Do not wait for the client meanwhile: the cursor keeps revoked leases.
                while cursor.reads_leases() {
                    cursor.step(&shared.store.read(), STEP_ENTRIES, &mut effects);
                    pace::pause(&|| stops(memory_bytes(&effects)))?;
                }
                effects.shrink_to_fit();
                let held_bytes = memory_bytes(&effects);
                let (shared, effects) = (shared.clone(), effects.into_iter());
                return Ok(Export {
                    shared,
                    cursor,
                    effects,
                    held_bytes,
                    pin,
                    started,
                    payload: Vec::new(),
                    returned_bytes: 0,
                    estimated_bytes,
                    revision,
                });
            }
            drop(store);
            if let Some(reason) = shared.failure.get() {
                return Err(Error::LogFailed(reason.clone()));
            }
            pace::pause(&|| stops(0))?;
            std::thread::sleep(PUBLISH_POLL_INTERVAL);
        }
    }
}

/// The chunks of an export, for a snapshot file. The history stays readable for 60 s, and
/// longer while the client has taken at least 1 MiB for each further second. After that,
/// the next item may be the error for a compacted revision.
pub struct Export {
    shared: Arc<SharedStore>,
    cursor: SnapshotCursor,
    /// Effects to encode. They share keys and values with the store.
    effects: std::vec::IntoIter<Effect>,
    /// The memory of `effects`.
    held_bytes: usize,
    pin: Pin,
    started: Instant,
    /// The part of the next chunk that was read.
    payload: Vec<u8>,
    /// Bytes returned so far.
    returned_bytes: u64,
    /// Estimated size of all chunks in bytes.
    estimated_bytes: u64,
    revision: i64,
}

impl Export {
    /// Returns the exported revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns an estimate of the remaining bytes; at least 1, even after the last chunk.
    pub fn remaining_bytes(&self) -> u64 {
        self.estimated_bytes.saturating_sub(self.returned_bytes).max(1)
    }

    /// Approximate memory in bytes of what was read and is not encoded. At the start this is
    /// every lease of the store, until all of them are encoded.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Reads effects for the next chunks. Returns false at the end of the export.
    fn refill(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let store = shared.store.read();
        if self.pin.expired() && self.cursor.oldest_needed_revision() < store.compacted() {
            return Err(mvcc::Error::Compacted.into());
        }
        let mut effects = Effects::new();
        let more = self.cursor.step(&store, STEP_ENTRIES, &mut effects);
        drop(store);
        yield_thread();
        self.held_bytes = memory_bytes(&effects);
        self.effects = effects.into_iter();
        Ok(more)
    }

    /// Continues to read the next chunk, in a bounded number of steps. Returns whether it is
    /// complete, so that [`Export::take_chunk`] returns it. Otherwise call
    /// [`Export::finish_chunk_unless`] first.
    pub fn start_chunk(&mut self) -> Result<bool, Error> {
        for _ in 0..CHUNK_STEPS {
            if self.step()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the rest of the next chunk. Long parts of the store may have nothing to export.
    /// Fails when `cancelled` returns true; it is called between the steps.
    pub fn finish_chunk_unless(&mut self, cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        while !self.step()? {
            pace::pause(cancelled)?;
        }
        Ok(())
    }

    /// Returns the next chunk, which must be complete; `None` at the end of the export.
    pub fn take_chunk(&mut self) -> Option<Vec<u8>> {
        let payload = std::mem::take(&mut self.payload);
        self.returned_bytes += payload.len() as u64;
        let extension = Duration::from_secs(self.returned_bytes / EXPORT_BYTES_PER_SECOND);
        self.pin.extend(self.started + EXPORT_GRACE + extension);
        Some(payload).filter(|payload| !payload.is_empty())
    }

    /// Encodes the effects that were read, and then reads some more unless the chunk is
    /// complete. Returns whether it is.
    fn step(&mut self) -> Result<bool, Error> {
        if self.payload.capacity() == 0 {
            self.payload.reserve(CHUNK_BYTES + CHUNK_BYTES / 4);
        }
        while self.payload.len() < CHUNK_BYTES {
            match self.effects.next() {
                Some(effect) => effect.encode(&mut self.payload),
                None => return self.refill().map(|more| !more),
            }
        }
        Ok(true)
    }
}

/// The memory of `effects`, without the keys and values that they share with the store.
fn memory_bytes(effects: &Effects) -> usize {
    effects.capacity() * size_of::<Effect>()
}

impl Iterator for Export {
    type Item = Result<Vec<u8>, Error>;

    /// Reads the next chunk. It blocks.
    fn next(&mut self) -> Option<Self::Item> {
        match self.finish_chunk_unless(&|| false) {
            Ok(()) => self.take_chunk().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}
