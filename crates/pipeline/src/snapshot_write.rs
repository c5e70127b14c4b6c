//! Writes a whole store to a snapshot file.

use std::sync::atomic::Ordering;
use std::time::Duration;

use files::Error;
use mvcc::{Effect, Effects, SnapshotCursor, Store};
use snapshot::SnapshotWriter;

use crate::journal::encode;
use crate::pace::{STEP_ENTRIES, yield_thread};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

/// While a snapshot is read back, the thread pauses after this many bytes. Reading and verifying
/// them takes about a millisecond. Without the pauses, it would use a core without interruption.
const READ_BACK_BYTES: u64 = 1 << 20;
const READ_BACK_PAUSE: Duration = Duration::from_millis(1);

/// Approximate number of keys or events in a chunk.
const CHUNK_ENTRIES: usize = 1000;

/// Writes `effects`, then all of `store`, and completes the snapshot. No other thread may
/// use the store meanwhile.
pub(crate) fn write_snapshot(
    store: &Store,
    mut effects: Effects,
    mut writer: SnapshotWriter,
) -> Result<(), Error> {
    let mut cursor = SnapshotCursor::new(store, &mut effects);
    let mut payload = Vec::new();
    let mut more = true;
    while more {
        more = cursor.step(store, CHUNK_ENTRIES, &mut effects);
        if !effects.is_empty() {
            encode(&effects, &mut payload);
            writer.write_chunk(&payload)?;
            effects.clear();
        }
    }
    writer.finish().map(drop)
}

/// Writes a snapshot that was started, while the store serves requests: `effects`, then what
/// `cursor` returns, without the effects that are not to be kept. `pin` keeps the history that the
/// cursor needs. Returns the size in bytes, or `None` if the store stops before the snapshot is
/// complete, or if its store is replaced. If this fails, no file is left.
pub(crate) fn write_running(
    shared: &SharedStore,
    mut cursor: SnapshotCursor,
    mut effects: Effects,
    pin: Pin,
    mut writer: SnapshotWriter,
    keep: impl Fn(&Effect) -> bool,
) -> Result<Option<u64>, Error> {
    let mut payload = Vec::new();
    let mut more = true;
    while more {
        if shared.stopping.load(Ordering::Relaxed) {
            writer.abandon()?;
            return Ok(None);
        }
        let store = shared.store.read();
        if pin.expired() {
            // The state of another member has replaced the store.
            drop(store);
            writer.abandon()?;
            return Ok(None);
        }
        more = cursor.step(&store, STEP_ENTRIES, &mut effects);
        drop(store);
        yield_thread();
        effects.retain(&keep);
        if !effects.is_empty() {
            encode(&effects, &mut payload);
            writer.write_chunk(&payload)?;
            effects.clear();
        }
    }
    drop(pin);
    let mut paused_at = 0;
    writer.finish_unless(|read| {
        if read - paused_at >= READ_BACK_BYTES {
            paused_at = read;
            std::thread::sleep(READ_BACK_PAUSE);
        }
        shared.stopping.load(Ordering::Relaxed)
    })
}
