//! Reads and verifies a data directory without changing it (`mem_etcd check`).

use std::path::{Path, PathBuf};

use data_dir::{DataDir, Identity};
use mvcc::Stats;
use snapshot::{ForeignFile, Generation, Snapshots};
use wal::{LogReport, OsMedium};

use crate::OpenError;
use crate::recovery_base::{self, DamagedSnapshot, RecoveryBase};
use crate::store_builder::StoreBuilder;
use crate::store_recovery;

/// The content of a data directory that was read and verified.
#[derive(Debug)]
pub struct DirectoryReport {
    /// The IDs of the store.
    pub identity: Identity,
    /// The path of each snapshot, its size in bytes, and the covered record; the newest is
    /// the last.
    pub snapshots: Vec<(PathBuf, u64, u64)>,
    /// The damage of the newest snapshot, if the one before it and the log contain all of it.
    /// A server then starts without it.
    pub damaged_newest: Option<String>,
    /// Why the snapshot before the newest could not replace the newest, if it exists.
    pub damaged_older: Option<String>,
    /// A listed snapshot that does not exist, and the last record that it covers. It is newer
    /// than all others.
    pub missing_snapshot: Option<(PathBuf, u64)>,
    /// The files in the snapshot directory that are not of this store.
    pub foreign_files: Vec<ForeignFile>,
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
/// `boot_id` would. The snapshots are in `snapshot_dir` if it is set. Changes nothing.
/// Fails if the directory is damaged or in use.
pub fn check(
    data_dir: &Path,
    snapshot_dir: Option<PathBuf>,
    boot_id: &[u8],
) -> Result<DirectoryReport, OpenError> {
    let dir = DataDir::inspect(data_dir)?;
    dir.require_log()?;
    let snapshots = recovery_base::inspect(&dir, snapshot_dir)?;
    let base = RecoveryBase::find(&dir, &snapshots)?;
    let medium = OsMedium::inspect(dir.log_dir());
    let build = |base: &RecoveryBase| {
        StoreBuilder::build(store_recovery::files_bytes(&dir, base.newest.as_ref()), |visit| {
            let covered = base.load(&snapshots, boot_id, &mut *visit)?;
            Ok(wal::check(&medium, covered, visit).map_err(|error| base.explain(error))?)
        })
    };
    let (base, (builder, log)) = base.build_with_fallback(&dir, &snapshots, build)?;
    base.require_snapshot(log.next)?;
    let describe = |Generation { path, covered, .. }: Generation| {
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        (path, bytes, covered)
    };
    let (revision, compacted) = (builder.revision(), builder.compacted());
    let boot_id = if log.failed_before { &[][..] } else { boot_id };
    let (store, resumption) = builder.resume(boot_id);
    Ok(DirectoryReport {
        identity: dir.identity(),
        snapshots: snapshots.generations()?.into_iter().map(describe).collect(),
        damaged_newest: base.damaged.as_ref().map(|damaged| {
            let DamagedSnapshot { generation, offset, reason } = damaged;
            format!("{} is corrupt at offset {offset}: {reason}", generation.path.display())
        }),
        damaged_older: verify_older(&dir, &snapshots, &base)?.err(),
        missing_snapshot: base.missing.map(|missing| (missing.path, missing.covered)),
        foreign_files: snapshots.foreign_files()?,
        log,
        revision,
        compacted,
        stats: store.stats(),
        restart: resumption.restart_revision,
    })
}

/// Verifies the snapshot before the newest, if there is one, and the log between them.
fn verify_older(
    dir: &DataDir,
    snapshots: &Snapshots,
    base: &RecoveryBase,
) -> Result<Result<(), String>, OpenError> {
    let generations = snapshots.generations()?;
    let newest = base.newest.as_ref();
    let is_older = |older: &&Generation| newest.is_some_and(|base| older.covered < base.covered);
    Ok(match (generations.iter().rev().find(is_older), newest) {
        (Some(older), Some(newest)) => {
            recovery_base::verify_replacement(dir, snapshots, older, newest.covered)?
        }
        _ => Ok(()),
    })
}
