//! Repairs a damaged data directory (`mem_etcd repair`).
//!
//! The snapshot and the log up to the first damage become a new snapshot, followed by an
//! empty log. The revision continues after every revision found anywhere in the files,
//! plus a margin for revisions that are lost, and the store is marked as compacted there.
//! The damaged files are kept under another name.
//!
//! Invariant: no file is moved before the new snapshot is durable. So an interrupted
//! repair can be repeated.

use std::path::{Path, PathBuf};

use data_dir::{DataDir, unused_damaged_name};
use files::Error;
use mvcc::{Effect, Opened, Store};
use snapshot::Snapshots;

use crate::continuity::LOST_LOG_MARGIN;
use crate::directory_check::check;
use crate::snapshot_write::write_snapshot;
use crate::store_builder::StoreBuilder;
use crate::{OpenError, store_recovery};

/// A planned repair: the damage of a data directory and what can be kept.
pub struct Repair {
    /// The damage, one line for each damaged file.
    pub damage: Vec<String>,
    /// Revision of the last change that can be kept.
    pub revision: i64,
    /// Revision from which the repaired store continues.
    pub restart: i64,
    /// Number of keys that can be kept.
    pub keys: i64,
    /// Highest sequence of an intact record anywhere in the log.
    records: u64,
    store: Store,
    dir: DataDir,
    snapshots: Snapshots,
    damaged_snapshot: Option<PathBuf>,
}

impl Repair {
    /// Plans the repair of `data_dir`, with the snapshots in `snapshot_dir` if it is set.
    /// Changes nothing. Returns `None` if there is no damage.
    pub fn plan(
        data_dir: &Path,
        snapshot_dir: Option<PathBuf>,
        boot_id: &[u8],
    ) -> Result<Option<Repair>, OpenError> {
        match check(data_dir, snapshot_dir.clone(), boot_id) {
            Ok(_) => return Ok(None),
            Err(OpenError::Files(Error::Corrupt { .. })) => {}
            Err(other) => return Err(other),
        }
        let dir = DataDir::existing(data_dir)?;
        let snapshots = Snapshots::existing(snapshot_dir.unwrap_or_else(|| dir.snap()));
        let mut builder = StoreBuilder::default();
        let mut damage = Vec::new();
        let (covered, damaged_snapshot) = match snapshots.load(|chunk| builder.add(chunk)) {
            Err(error @ Error::Corrupt { .. }) => {
                damage.push(format!("{}: the keys after it are lost", describe(&error)));
                (snapshots.newest_covers()?, snapshots.newest()?)
            }
            covered => (covered?, None),
        };
        let mut records = covered;
        match dir.require_log() {
            Ok(()) => {
                let medium = store_recovery::medium(&dir)?;
                match wal::check(&medium, covered, |payload| builder.add(payload)) {
                    Err(error @ Error::Corrupt { .. }) => {
                        damage.push(format!("{}: the log from there on is lost", describe(&error)));
                    }
                    report => records = records.max(report?.next - 1),
                }
                let highest = wal::salvage(&medium, |payload| builder.note_revisions(payload))?;
                records = records.max(highest);
            }
            Err(error) => damage.push(describe(&error)),
        }
        let (revision, restart) =
            (builder.revision(), builder.highest_revision() + LOST_LOG_MARGIN);
        let store = builder.restart_at(restart);
        let keys = store.stats().live_keys;
        Ok(Some(Repair {
            damage,
            revision,
            restart,
            keys,
            records,
            store,
            dir,
            snapshots,
            damaged_snapshot,
        }))
    }

    /// Carries out the repair, and returns the new paths of the damaged files.
    pub fn carry_out(self) -> Result<Vec<PathBuf>, OpenError> {
        // One more than the old log has, so that the old log can never be taken for the
        // continuation of this snapshot.
        let writer = self.snapshots.create(self.records + 1)?;
        let opened = Effect::Opened(Opened::default());
        let effects = vec![opened, Effect::VisibleBound(self.restart)];
        write_snapshot(&self.store, effects, writer)?;
        let mut kept = Vec::from_iter(self.dir.set_log_aside()?);
        if let Some(damaged) = self.damaged_snapshot {
            let renamed = unused_damaged_name(&damaged);
            self.snapshots.set_aside(&damaged, &renamed)?;
            kept.push(renamed);
        }
        Ok(kept)
    }
}

/// Describes the damage without the remedy that the error message contains.
fn describe(error: &Error) -> String {
    match error {
        Error::Corrupt { file, offset, reason } => {
            format!("{} at offset {offset}, {reason}", file.display())
        }
        other => other.to_string(),
    }
}
