//! The hash of a history. It reads the store in short steps, so a write waits for at most one step.

use std::sync::atomic::Ordering;

use mvcc::HashCursor;

use crate::Error;
use crate::pace::{self, STEP_ENTRIES};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

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

/// Hashes the history of a store, as [`crate::Pipeline::hash_unless`] does.
pub(crate) fn hash(
    shared: &SharedStore,
    revision: i64,
    stops: &dyn Fn(usize) -> bool,
) -> Result<HistoryHash, Error> {
    let (mut cursor, current, pin) = {
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
        let store = shared.store.read();
        pin.check(&store)?;
        let more = cursor.gather(&store, STEP_ENTRIES);
        drop(store);
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
