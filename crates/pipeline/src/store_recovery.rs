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
    /// The recovered store. The changes that `resumption` describes are applied to it, but
    /// they are not in the log yet.
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
    let snapshot_dir = options.snapshot_dir.clone().unwrap_or_else(|| dir.snapshot_dir());
    let snapshots = Snapshots::open(snapshot_dir)?;
    let bytes = files_bytes(dir, &snapshots)?;
    let (builder, (covered, log, recovered)) = StoreBuilder::build(bytes, |visit| {
        let covered = snapshots.load(&mut *visit)?;
        let (log, recovered) = Log::open(medium, options.log_options(), covered, visit)?;
        Ok((covered, log, recovered))
    })?;
    if let Some(write) = &recovered.unfinished_write {
        tracing::warn!(
            file = %write.file.display(),
            offset = write.offset,
            "truncated the log before an unfinished write"
        );
    }
    // After a failed write or fsync, the kernel may have dropped buffered data although
    // the machine has kept running. Pass an empty boot ID, so that `resume` treats the
    // data as lost, as after a reboot.
    let boot_id = if recovered.failed_before { &[][..] } else { &options.boot_id };
    let (store, resumption) = builder.resume(boot_id);
    tracing::info!(
        covered_record = covered,
        records = recovered.records,
        bytes = recovered.payload_bytes,
        revision = store.revision(),
        keys = store.stats().live_keys,
        "recovered the store"
    );
    if let Some(revision) = resumption.restart_revision {
        tracing::warn!(
            revision,
            "recent writes may be lost; the store continues at this higher revision, and all earlier revisions are compacted"
        );
    }
    Ok(RecoveredStore { store, resumption, log, snapshots })
}

/// Returns the size of the newest snapshot and the log in bytes. Files whose size cannot
/// be read count as empty.
pub(crate) fn files_bytes(dir: &DataDir, snapshots: &Snapshots) -> Result<u64, files::Error> {
    let bytes = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let segments = std::fs::read_dir(dir.log_dir()).into_iter().flatten();
    let segments: Vec<PathBuf> = segments.filter_map(|e| Some(e.ok()?.path())).collect();
    Ok(segments.iter().chain(&snapshots.newest()?).map(|path| bytes(path)).sum())
}

/// Opens the log directory of `dir`. Creates it if it is missing.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, files::Error> {
    let path = dir.log_dir();
    OsMedium::new(path.clone()).map_err(|cause| files::Error::Io { action: "open", path, cause })
}
