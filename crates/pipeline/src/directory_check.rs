//! Reads and verifies a data directory without changing it (`mem_etcd check`).

use std::path::{Path, PathBuf};

use data_dir::{DataDir, Identity};
use mvcc::Stats;
use snapshot::Snapshots;
use wal::LogReport;

use crate::OpenError;
use crate::store_builder::StoreBuilder;
use crate::store_recovery;

/// The content of a data directory that was read and verified.
#[derive(Debug)]
pub struct DirectoryReport {
    /// The IDs of the store.
    pub identity: Identity,
    /// The path of the newest snapshot, its size in bytes, and the covered record.
    pub snapshot: Option<(PathBuf, u64, u64)>,
    /// The log after the snapshot.
    pub log: LogReport,
    /// The revision of the last change.
    pub revision: i64,
    /// The compacted revision, the oldest that can be read; -1 before any compaction.
    pub compacted: i64,
    /// Numbers and sizes of keys, events and leases.
    pub stats: Stats,
    /// Set if writes may be lost: the revision from which a server would continue.
    pub restart: Option<i64>,
}

/// Reads and verifies all of `data_dir` as a server on a machine with the boot ID
/// `boot_id` would. The snapshots are in `snapshot_dir` if it is set. Changes nothing but
/// the lock file. Fails if the directory is damaged or in use.
pub fn check(
    data_dir: &Path,
    snapshot_dir: Option<PathBuf>,
    boot_id: &[u8],
) -> Result<DirectoryReport, OpenError> {
    let dir = DataDir::open_existing(data_dir)?;
    dir.require_log()?;
    let snapshots = Snapshots::existing(snapshot_dir.unwrap_or_else(|| dir.snapshot_dir()));
    let medium = store_recovery::medium(&dir)?;
    let bytes = store_recovery::files_bytes(&dir, &snapshots)?;
    let (builder, (covered, log)) = StoreBuilder::build(bytes, |visit| {
        let covered = snapshots.load(&mut *visit)?;
        Ok((covered, wal::check(&medium, covered, visit)?))
    })?;
    let snapshot = snapshots.newest()?.map(|path| {
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        (path, bytes, covered)
    });
    let (revision, compacted) = (builder.revision(), builder.compacted());
    let (store, resumption) = builder.resume(boot_id);
    Ok(DirectoryReport {
        identity: dir.identity(),
        snapshot,
        log,
        revision,
        compacted,
        stats: store.stats(),
        restart: resumption.restart_revision,
    })
}
