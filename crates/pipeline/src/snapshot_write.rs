//! Writes a whole store to a snapshot file.

use files::Error;
use mvcc::{Effects, SnapshotCursor, Store};
use snapshot::SnapshotWriter;

use crate::journal::encode;

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
