//! From snapshot and log to the state, at the start.

use std::path::{Path, PathBuf};

use mvcc::Store;
use wal::{DataDir, Log, Medium, OsMedium, Snapshots};

use crate::continuity::Resumption;
use crate::replay::Replay;
use crate::{OpenError, Options};

/// What the files of a store held.
pub(crate) struct Recovery {
    /// Ready to go on; the log does not say so yet.
    pub(crate) store: Store,
    pub(crate) resumption: Resumption,
    pub(crate) log: Log,
    pub(crate) snapshots: Snapshots,
}

/// Reads the newest snapshot and the log behind it, and rebuilds the state.
pub(crate) fn recover(
    dir: &DataDir,
    medium: impl Medium,
    options: &Options,
) -> Result<Recovery, OpenError> {
    let snapshot_dir = options.snapshot_dir.clone().unwrap_or_else(|| dir.snap());
    let snapshots = Snapshots::open(snapshot_dir)?;
    let bytes = files_bytes(dir, &snapshots)?;
    let (replay, (covered, log, recovered)) = Replay::build(bytes, |visit| {
        let covered = snapshots.load(&mut *visit)?;
        let (log, recovered) = Log::open(medium, options.log(), covered, visit)?;
        Ok((covered, log, recovered))
    })?;
    if let Some(cut) = &recovered.cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            "cut off an unfinished write at the end of the log"
        );
    }
    // What the kernel had taken and then could not write is lost without a crash.
    let boot_id = if recovered.failed_before { &[][..] } else { &options.boot_id };
    let (store, resumption) = replay.resume(boot_id);
    tracing::info!(
        snapshot = covered,
        records = recovered.records,
        bytes = recovered.payload_bytes,
        revision = store.revision(),
        keys = store.stats().live_keys,
        "recovered"
    );
    if let Some(revision) = resumption.restart {
        tracing::warn!(
            revision,
            "writes that were not on the disk may be lost: going on behind them, compacted there"
        );
    }
    Ok(Recovery { store, resumption, log, snapshots })
}

/// Bytes of the newest snapshot and of the log, about.
pub(crate) fn files_bytes(dir: &DataDir, snapshots: &Snapshots) -> Result<u64, wal::Error> {
    let bytes = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let segments = std::fs::read_dir(dir.wal()).into_iter().flatten();
    let segments: Vec<PathBuf> = segments.filter_map(|e| Some(e.ok()?.path())).collect();
    Ok(segments.iter().chain(&snapshots.newest()?).map(|path| bytes(path)).sum())
}

/// Where the log of `dir` lies.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, wal::Error> {
    let path = dir.wal();
    OsMedium::new(path.clone()).map_err(|cause| wal::Error::Io { action: "open", path, cause })
}
