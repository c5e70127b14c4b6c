//! An export: the published state and all readable history, in chunks for a snapshot file. It reads
//! the store in short steps, so a write waits for at most one step.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mvcc::{Effect, Effects, SnapshotCursor, Store};

use crate::Error;
use crate::pace::{self, STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

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
    /// Starts an export of the published state. `store` is locked, and has no changes of leases,
    /// alarms and users that are not published.
    pub(crate) fn start(shared: &Arc<SharedStore>, store: &Store) -> Export {
        let revision = shared.published.load(Ordering::Acquire);
        let mut effects = Effects::new();
        let cursor = SnapshotCursor::at_revision(store, revision, &mut effects);
        let started = Instant::now();
        let expiry = Some(started + EXPORT_GRACE);
        let pin = Pin::new(&shared.pins, cursor.oldest_needed_revision(), expiry);
        Export {
            shared: shared.clone(),
            cursor,
            held_bytes: memory_bytes(&effects),
            effects: effects.into_iter(),
            pin,
            started,
            payload: Vec::new(),
            returned_bytes: 0,
            estimated_bytes: store.stats().total_bytes.max(0) as u64,
            revision,
        }
    }

    /// Reads all leases. It does not wait for the client meanwhile: the cursor keeps revoked ones.
    pub(crate) fn read_leases_unless(
        &mut self,
        stops: &dyn Fn(usize) -> bool,
    ) -> Result<(), Error> {
        let mut effects: Effects = std::mem::take(&mut self.effects).collect();
        while self.cursor.reads_leases() {
            self.cursor.step(&self.shared.store.read(), STEP_ENTRIES, &mut effects);
            pace::pause(&|| stops(memory_bytes(&effects)))?;
        }
        effects.shrink_to_fit();
        self.held_bytes = memory_bytes(&effects);
        self.effects = effects.into_iter();
        Ok(())
    }

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
        self.pin.check(&store)?;
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
