//! The snapshot from which a store is recovered: which one it is, and whether the log that
//! follows it is complete.

use std::path::PathBuf;

use data_dir::DataDir;
use files::Error;
use mvcc::{Effect, LogDurability};
use snapshot::{Generation, Snapshots};
use wal::Covered;

use crate::continuity;
use crate::store_builder::Visit;

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
    pub(crate) missing: Option<PathBuf>,
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
        Ok(RecoveryBase { newest, missing })
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
            (None, Some(path)) if next == 1 => Err(Error::MissingSnapshot { path: path.clone() }),
            _ => Ok(()),
        }
    }
}

/// Returns the durability of the log when a snapshot was taken; its first chunk begins with
/// it. A snapshot from `mem_etcd restore` has none.
fn first_durability(mut chunk: &[u8]) -> LogDurability {
    match Effect::decode(&mut chunk) {
        Ok(Effect::Opened(durability)) => durability,
        _ => LogDurability::default(),
    }
}
