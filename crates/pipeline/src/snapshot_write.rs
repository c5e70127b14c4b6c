//! Writing a whole store to a snapshot file.

use files::Error;
use mvcc::{Effects, SnapshotCursor, Store};
use snapshot::SnapshotWriter;

use crate::journal::encode;

/// Keys or events of one chunk.
const STEP: usize = 1000;

/// Writes `effects` and then all of `store`, which no other thread uses, and completes
/// the snapshot.
pub(crate) fn write_snapshot(
    store: &Store,
    mut effects: Effects,
    mut writer: SnapshotWriter,
) -> Result<(), Error> {
    let mut cursor = SnapshotCursor::new(store, &mut effects);
    let mut payload = Vec::new();
    let mut more = true;
    while more {
        more = cursor.step(store, STEP, &mut effects);
        if !effects.is_empty() {
            encode(&effects, &mut payload);
            writer.chunk(&payload)?;
            effects.clear();
        }
    }
    writer.finish().map(drop)
}
