//! Recovers the store from its newest snapshot and its log at startup.

use std::path::{Path, PathBuf};

use data_dir::DataDir;
use mvcc::Store;
use snapshot::Snapshots;
use wal::{Log, Medium, OsMedium};

use crate::continuity::Resumption;
use crate::store_builder::StoreBuilder;
use crate::{OpenError, PipelineOptions};

/// A recovered store with its files.
pub(crate) struct RecoveredStore {
    /// The state from which this process continues. The log does not record this yet.
    pub(crate) store: Store,
    pub(crate) resumption: Resumption,
    pub(crate) log: Log,
    pub(crate) snapshots: Snapshots,
}

/// Reads the newest snapshot and the log after it, and rebuilds the store.
pub(crate) fn recover(
    dir: &DataDir,
    medium: impl Medium,
    options: &PipelineOptions,
) -> Result<RecoveredStore, OpenError> {
    let snapshot_dir = options.snapshot_dir.clone().unwrap_or_else(|| dir.snap());
    let snapshots = Snapshots::open(snapshot_dir)?;
    let bytes = files_bytes(dir, &snapshots)?;
    let (builder, (covered, log, recovered)) = StoreBuilder::build(bytes, |visit| {
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
    // After a failed write or fsync, buffered data may be lost although the machine has
    // kept running.
    let boot_id = if recovered.failed_before { &[][..] } else { &options.boot_id };
    let (store, resumption) = builder.resume(boot_id);
    tracing::info!(
        snapshot = covered,
        records = recovered.records,
        bytes = recovered.payload_bytes,
        revision = store.revision(),
        keys = store.stats().live_keys,
        "recovered the store"
    );
    if let Some(revision) = resumption.restart {
        tracing::warn!(
            revision,
            "recent writes may be lost, continuing at a later revision that is marked as compacted"
        );
    }
    Ok(RecoveredStore { store, resumption, log, snapshots })
}

/// Returns the approximate size of the newest snapshot and the log in bytes.
pub(crate) fn files_bytes(dir: &DataDir, snapshots: &Snapshots) -> Result<u64, files::Error> {
    let bytes = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let segments = std::fs::read_dir(dir.wal()).into_iter().flatten();
    let segments: Vec<PathBuf> = segments.filter_map(|e| Some(e.ok()?.path())).collect();
    Ok(segments.iter().chain(&snapshots.newest()?).map(|path| bytes(path)).sum())
}

/// Returns the medium of the log of `dir`.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, files::Error> {
    let path = dir.wal();
    OsMedium::new(path.clone()).map_err(|cause| files::Error::Io { action: "open", path, cause })
}
