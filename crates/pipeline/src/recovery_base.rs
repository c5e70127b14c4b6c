//! The snapshot from which a store is recovered: which one it is, and whether the log that
//! follows it is complete.

use std::path::PathBuf;

use data_dir::DataDir;
use files::Error;
use mvcc::{Effect, LogDurability};
use snapshot::{Generation, Snapshots};
use wal::{Covered, OsMedium};

use crate::store_builder::Visit;
use crate::{OpenError, continuity};

/// Returns the directory of the snapshots; `chosen` overrides the default.
pub(crate) fn snapshot_directory(dir: &DataDir, chosen: Option<PathBuf>) -> PathBuf {
    chosen.unwrap_or_else(|| dir.snapshot_dir())
}

/// Opens the snapshots of `dir` for reading, without changing any file.
pub(crate) fn inspect(dir: &DataDir, chosen: Option<PathBuf>) -> Result<Snapshots, Error> {
    Snapshots::inspect(snapshot_directory(dir, chosen), dir.manifest(), dir.identity())
}

/// The newest snapshot of a store.
pub(crate) struct RecoveryBase {
    /// `None` if the store has no snapshot.
    pub(crate) newest: Option<Generation>,
    /// A newer snapshot that the manifest lists, but that does not exist.
    pub(crate) missing: Option<Generation>,
    /// A newer snapshot that is damaged. `newest` and the log contain all of it.
    pub(crate) damaged: Option<DamagedSnapshot>,
}

/// A snapshot that is damaged.
pub(crate) struct DamagedSnapshot {
    pub(crate) generation: Generation,
    /// Where the damage is.
    pub(crate) offset: u64,
    pub(crate) reason: String,
}

impl RecoveryBase {
    /// Finds the newest of `snapshots`. Fails if they are in the default directory of `dir`,
    /// and another one is used.
    pub(crate) fn find(dir: &DataDir, snapshots: &Snapshots) -> Result<Self, Error> {
        let (newest, missing) = (snapshots.newest()?, snapshots.missing()?);
        // A manifest that lists a snapshot makes a better check possible:
        // `require_snapshot`.
        if newest.is_none() && !snapshots.has_manifest()? {
            let default = inspect(dir, None);
            if default.is_ok_and(|d| d.generations().is_ok_and(|found| !found.is_empty())) {
                let (path, found) = (snapshots.directory().to_owned(), dir.snapshot_dir());
                return Err(Error::SnapshotsElsewhere { path, found });
            }
        }
        Ok(RecoveryBase { newest, missing, damaged: None })
    }

    /// Calls `build`. If it fails because the newest snapshot is damaged, calls it again with
    /// the snapshot before, provided that this one and the log contain everything. Also
    /// returns the base that was used.
    pub(crate) fn build_with_fallback<T>(
        self,
        dir: &DataDir,
        snapshots: &Snapshots,
        mut build: impl FnMut(&RecoveryBase) -> Result<T, OpenError>,
    ) -> Result<(RecoveryBase, T), OpenError> {
        let error = match build(&self) {
            Ok(built) => return Ok((self, built)),
            Err(error) => error,
        };
        let base = match (error, self.newest) {
            (OpenError::Files(Error::Corrupt { file, offset, reason }), Some(newest))
                if file == newest.path =>
            {
                let missing = self.missing;
                let (generation, reason) = (newest, reason);
                let damaged = DamagedSnapshot { generation, offset, reason };
                RecoveryBase::before(dir, snapshots, damaged, missing)?
            }
            (error, _) => return Err(error),
        };
        let built = build(&base)?;
        Ok((base, built))
    }

    /// Returns the base with the snapshot before a damaged one. Fails with the damage if this
    /// snapshot and the log do not contain everything.
    fn before(
        dir: &DataDir,
        snapshots: &Snapshots,
        damaged: DamagedSnapshot,
        missing: Option<Generation>,
    ) -> Result<RecoveryBase, Error> {
        let covered = damaged.generation.covered;
        let corrupt = |reason: String| {
            let (file, offset) = (damaged.generation.path.clone(), damaged.offset);
            Error::Corrupt { file, offset, reason }
        };
        let mut older = snapshots.generations()?;
        older.retain(|generation| generation.covered < covered);
        let Some(before) = older.pop() else { return Err(corrupt(damaged.reason)) };
        match verify_replacement(dir, snapshots, &before, covered)? {
            Ok(()) => Ok(RecoveryBase { newest: Some(before), missing, damaged: Some(damaged) }),
            Err(why) => {
                let reason = &damaged.reason;
                let why = format!("{reason}, and the snapshot before it cannot replace it ({why})");
                Err(corrupt(why))
            }
        }
    }

    /// Passes the chunks of the snapshot to `visit`. Returns the covered record, and whether
    /// the log may end before it on a machine with the boot ID `boot_id`.
    pub(crate) fn load(
        &self,
        snapshots: &Snapshots,
        boot_id: &[u8],
        visit: Visit<'_>,
    ) -> Result<Covered, Error> {
        let Some(newest) = &self.newest else { return Ok(Covered::from(0)) };
        let mut durability = None;
        snapshots.load(newest, |chunk| {
            durability.get_or_insert_with(|| first_durability(chunk));
            visit(chunk)
        })?;
        let loss = continuity::allowed_loss(&durability.unwrap_or_default(), boot_id);
        Ok(Covered { record: newest.covered, loss })
    }

    /// Converts the error of a log that ends before the covered record: a snapshot that is
    /// not proven to belong to the store is more likely to be the reason.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match (error, &self.newest) {
            (Error::ShortLog { last, covered, .. }, Some(newest)) if !newest.proven => {
                Error::UnknownSnapshot { path: newest.path.clone(), covered, last }
            }
            (error, _) => error,
        }
    }

    /// Fails if there is neither a snapshot nor a log, but the manifest lists a snapshot.
    /// `next` is the next record of the log.
    pub(crate) fn require_snapshot(&self, next: u64) -> Result<(), Error> {
        match (&self.newest, &self.missing) {
            (None, Some(missing)) if next == 1 => {
                Err(Error::MissingSnapshot { path: missing.path.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// Fails if a listed snapshot is missing, and the snapshot `base` with the log up to the first
/// damage does not contain all of it.
pub(crate) fn require_missing_replaced(
    dir: &DataDir,
    snapshots: &Snapshots,
    base: Option<&Generation>,
) -> Result<(), Error> {
    let Some(missing) = snapshots.missing()? else { return Ok(()) };
    let covered = base.map_or(0, |base| base.covered);
    let (medium, mut last) = (OsMedium::inspect(dir.log_dir()), covered);
    // An error is that of the damage, before which all records were visited.
    let _ = wal::read_records(&medium, covered, |_| {
        last += 1;
        Ok(())
    });
    match last >= missing.covered {
        true => Ok(()),
        false => Err(Error::MissingSnapshot { path: missing.path }),
    }
}

/// Verifies that the snapshot `before` and the log after it are undamaged and contain all
/// records up to `covered`, so that they could replace a snapshot that covers this record.
/// Returns why not. Fails if a newer version wrote a part of them.
pub(crate) fn verify_replacement(
    dir: &DataDir,
    snapshots: &Snapshots,
    before: &Generation,
    covered: u64,
) -> Result<Result<(), String>, Error> {
    let medium = OsMedium::inspect(dir.log_dir());
    let loaded = snapshots.load(before, |_| Ok(()));
    let log = loaded.and_then(|()| wal::check(&medium, before.covered, |_| Ok(())));
    Ok(match log {
        Ok(log) if log.next > covered => Ok(()),
        Ok(log) => Err(format!("the log ends with record {}", log.next - 1)),
        Err(error) if error.is_newer() => return Err(error),
        Err(Error::Corrupt { file, offset, reason }) => {
            Err(format!("{} is corrupt at offset {offset}: {reason}", file.display()))
        }
        Err(other) => Err(other.to_string()),
    })
}

/// Returns the durability of the log when a snapshot was taken; its first chunk begins with
/// it. A snapshot from `mem_etcd restore` has none.
fn first_durability(mut chunk: &[u8]) -> LogDurability {
    match Effect::decode(&mut chunk) {
        Ok(Effect::Opened(durability)) => durability,
        _ => LogDurability::default(),
    }
}
