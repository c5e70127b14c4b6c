//! Recovers the store from its newest snapshot and its log at startup.

use std::path::{Path, PathBuf};

use data_dir::{DataDir, unused_damaged_name};
use mvcc::Store;
use snapshot::{Generation, Snapshots};
use wal::{Log, Medium, OsMedium};

use crate::continuity::Resumption;
use crate::recovery_base::{DamagedSnapshot, RecoveryBase, snapshot_directory};
use crate::store_builder::StoreBuilder;
use crate::{OpenError, PipelineOptions};

/// Maximum number of warnings about files in the snapshot directory.
const MAX_WARNINGS: usize = 10;

/// A recovered store with its files.
pub(crate) struct RecoveredStore {
    /// The recovered store. The changes that `resumption` describes are applied to it, but
    /// they are not in the log yet.
    pub(crate) store: Store,
    pub(crate) resumption: Resumption,
    pub(crate) log: Log,
    pub(crate) snapshots: Snapshots,
    pub(crate) sizes: RecoveredSizes,
}

/// The sizes that determine when the next snapshot is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecoveredSizes {
    /// Size of the newest snapshot in bytes; 0 without a snapshot.
    pub(crate) snapshot_bytes: u64,
    /// Size of the log after the newest snapshot in bytes.
    pub(crate) log_bytes: u64,
    /// Size of the log after the snapshot before it in bytes, or somewhat less; at least
    /// `log_bytes`.
    pub(crate) kept_log_bytes: u64,
}

/// Reads the newest snapshot and the log after it, and rebuilds the store.
pub(crate) fn recover(
    dir: &DataDir,
    medium: impl Medium,
    options: &PipelineOptions,
) -> Result<RecoveredStore, OpenError> {
    let directory = snapshot_directory(dir, options.snapshot_dir.clone());
    let snapshots = Snapshots::open(directory, dir.manifest(), dir.identity())?;
    let base = RecoveryBase::find(dir, &snapshots)?;
    warn_of_other_files(&snapshots, &base)?;
    let mut medium = Some(medium);
    let build = |base: &RecoveryBase| {
        StoreBuilder::build(files_bytes(dir, base.newest.as_ref()), |visit| {
            let covered = base.load(&snapshots, &options.boot_id, &mut *visit)?;
            let medium = medium.take().expect("the log is opened once");
            let opened = Log::open(medium, options.log_options(), covered, visit);
            let (log, recovered) = opened.map_err(|error| base.explain(error))?;
            Ok((covered.record, log, recovered))
        })
    };
    let (base, (builder, (covered, log, recovered))) =
        base.build_with_fallback(dir, &snapshots, build)?;
    base.require_snapshot(log.last() + 1)?;
    forget_missing(&snapshots, log.last())?;
    adopt(&snapshots, &base)?;
    set_damaged_aside(&snapshots, &base)?;
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
    // The oldest segment may be needed only for its last record, and the newest one may be empty.
    let unneeded = 2 * options.log_options().segment_bytes;
    let log_bytes = recovered.uncovered_bytes;
    let sizes = RecoveredSizes {
        snapshot_bytes: base.newest.as_ref().map_or(0, |newest| file_bytes(&newest.path)),
        log_bytes,
        kept_log_bytes: files_bytes(dir, None).saturating_sub(unneeded).max(log_bytes),
    };
    Ok(RecoveredStore { store, resumption, log, snapshots, sizes })
}

/// Logs a warning for each file in the snapshot directory that is not of this store, and for
/// a missing snapshot.
fn warn_of_other_files(snapshots: &Snapshots, base: &RecoveryBase) -> Result<(), files::Error> {
    let foreign = snapshots.foreign_files()?;
    for file in foreign.iter().take(MAX_WARNINGS) {
        let (path, reason) = (file.path.display(), &file.reason);
        tracing::warn!(file = %path, reason, "ignored a file in the snapshot directory");
    }
    if foreign.len() > MAX_WARNINGS {
        let count = foreign.len() - MAX_WARNINGS;
        tracing::warn!(count, "ignored more files in the snapshot directory");
    }
    if let Some(missing) = &base.missing {
        tracing::warn!(file = %missing.path.display(), "the newest snapshot is missing");
    }
    Ok(())
}

/// Removes missing snapshots from the manifest if they cover records after `last`, the last
/// record of the log. It fails on a full disk too: the store must not write such records while
/// the manifest lists these snapshots.
fn forget_missing(snapshots: &Snapshots, last: u64) -> Result<(), files::Error> {
    for path in snapshots.forget_missing(last)? {
        tracing::error!(
            file = %path.display(), last_record = last,
            "a missing snapshot contains writes after the end of the log: these writes are lost, and the snapshot will not be used even if it appears again"
        );
    }
    Ok(())
}

/// Writes the manifest of a directory of an earlier version, which has none. On a full disk,
/// the store opens without it.
fn adopt(snapshots: &Snapshots, base: &RecoveryBase) -> Result<(), files::Error> {
    match snapshots.adopt(base.newest.as_ref()) {
        Err(error) if error.is_disk_full() => {
            tracing::warn!(%error, "could not write the list of snapshots");
            Ok(())
        }
        adopted => adopted,
    }
}

/// Renames a damaged snapshot that was not needed, so that the next snapshots do not count it
/// as a generation. On a full disk, it stays listed.
fn set_damaged_aside(snapshots: &Snapshots, base: &RecoveryBase) -> Result<(), files::Error> {
    let Some(DamagedSnapshot { generation, offset, reason }) = &base.damaged else {
        return Ok(());
    };
    let renamed = unused_damaged_name(&generation.path);
    let (file, kept_as) = (generation.path.display(), renamed.display());
    tracing::warn!(
        %file, offset, reason, %kept_as,
        "the newest snapshot is damaged; recovered the store from the snapshot before it and the log, nothing is lost"
    );
    match snapshots.set_aside(generation, &renamed) {
        Err(error) if error.is_disk_full() => {
            tracing::warn!(%error, "could not write the list of snapshots");
            Ok(())
        }
        set_aside => set_aside,
    }
}

/// Returns the size of the newest snapshot and the log in bytes. Files whose size cannot
/// be read count as empty.
pub(crate) fn files_bytes(dir: &DataDir, newest: Option<&Generation>) -> u64 {
    let segments = std::fs::read_dir(dir.log_dir()).into_iter().flatten();
    let segments: Vec<PathBuf> = segments.filter_map(|e| Some(e.ok()?.path())).collect();
    let newest = newest.map(|generation| &generation.path);
    segments.iter().chain(newest).map(|path| file_bytes(path)).sum()
}

/// Returns the size of a file in bytes; 0 if it cannot be read.
fn file_bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

/// Opens the log directory of `dir`. Creates it if it is missing.
pub(crate) fn medium(dir: &DataDir) -> Result<OsMedium, files::Error> {
    let path = dir.log_dir();
    OsMedium::new(path.clone()).map_err(|cause| files::Error::Io { action: "open", path, cause })
}
