//! Looking at a data directory without changing it.

use std::path::{Path, PathBuf};

use mvcc::Stats;
use wal::{DataDir, Identity, Inspection, Snapshots};

use crate::OpenError;
use crate::recovery;
use crate::replay::Replay;

/// What a data directory holds; everything in it has been read and checked.
#[derive(Debug)]
pub struct Report {
    /// To whom it belongs.
    pub identity: Identity,
    /// The newest snapshot, its size in bytes, and the last record that it covers.
    pub snapshot: Option<(PathBuf, u64, u64)>,
    /// The log behind it.
    pub log: Inspection,
    /// The revision of the last change.
    pub revision: i64,
    /// The first revision that can be read; -1 before any compaction.
    pub compacted: i64,
    /// Sizes of the state.
    pub stats: Stats,
    /// The revision from which a start goes on, if that is not
    /// the one of the last change.
    pub restart: Option<i64>,
}

/// Reads all of `data_dir`, with its snapshots in `snapshot_dir` if that is
/// elsewhere, as a process on `boot_id` finds it. The directory must not be in
/// use; nothing in it is changed.
pub fn check(
    data_dir: &Path,
    snapshot_dir: Option<PathBuf>,
    boot_id: &[u8],
) -> Result<Report, OpenError> {
    let dir = DataDir::existing(data_dir)?;
    dir.require_log()?;
    let snapshots = Snapshots::existing(snapshot_dir.unwrap_or_else(|| dir.snap()));
    let medium = recovery::medium(&dir)?;
    let bytes = recovery::files_bytes(&dir, &snapshots)?;
    let (replay, (covered, log)) = Replay::build(bytes, |visit| {
        let covered = snapshots.load(&mut *visit)?;
        Ok((covered, wal::inspect(&medium, covered, visit)?))
    })?;
    let snapshot = snapshots.newest()?.map(|path| {
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        (path, bytes, covered)
    });
    let (revision, compacted) = (replay.revision(), replay.compacted());
    let (store, resumption) = replay.resume(boot_id);
    Ok(Report {
        identity: dir.identity(),
        snapshot,
        log,
        revision,
        compacted,
        stats: store.stats(),
        restart: resumption.restart,
    })
}
