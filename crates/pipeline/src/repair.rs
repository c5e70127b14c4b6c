//! Repairs a damaged data directory (`mem_etcd repair`).
//!
//! The repair writes a new snapshot with the content of the old one and of the log up to
//! the first damage. An empty log follows it. The revision continues after the highest
//! revision found anywhere in the files, plus a margin for lost revisions, and the store
//! is marked as compacted there. The damaged files are renamed, not removed.
//!
//! Invariant: no file is renamed before the new snapshot is durable. So an interrupted
//! repair can be repeated.

use std::path::{Path, PathBuf};

use data_dir::{DataDir, unused_damaged_name};
use files::Error;
use mvcc::{Effect, LogDurability, Store};
use snapshot::Snapshots;

use crate::continuity::LOST_LOG_MARGIN;
use crate::directory_check::check;
use crate::snapshot_write::write_snapshot;
use crate::store_builder::StoreBuilder;
use crate::{OpenError, store_recovery};

/// A planned repair: the damage of a data directory, and the data that can be kept.
pub struct Repair {
    /// A line of text for each damaged file.
    pub damage: Vec<String>,
    /// Revision of the last change that can be kept.
    pub revision: i64,
    /// Revision from which the repaired store continues.
    pub restart: i64,
    /// Number of keys that can be kept.
    pub keys: i64,
    /// Highest sequence of any intact record in the log, before or after the damage.
    highest_sequence: u64,
    store: Store,
    dir: DataDir,
    snapshots: Snapshots,
    damaged_snapshot: Option<PathBuf>,
}

impl Repair {
    /// Plans the repair of `data_dir`, with the snapshots in `snapshot_dir` if it is set.
    /// Changes nothing but the lock file. Returns `None` if there is no damage.
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
        let dir = DataDir::open_existing(data_dir)?;
        let snapshots = Snapshots::existing(snapshot_dir.unwrap_or_else(|| dir.snapshot_dir()));
        let mut builder = StoreBuilder::default();
        let mut damage = Vec::new();
        let (covered, damaged_snapshot) = match snapshots.load(|chunk| builder.add(chunk)) {
            Err(error @ Error::Corrupt { .. }) => {
                damage.push(format!("{}: the keys after this offset are lost", describe(&error)));
                (snapshots.newest_covered_record()?, snapshots.newest()?)
            }
            covered => (covered?, None),
        };
        let mut highest_sequence = covered;
        match dir.require_log() {
            Ok(()) => {
                let medium = store_recovery::medium(&dir)?;
                match wal::check(&medium, covered, |payload| builder.add(payload)) {
                    Err(error @ Error::Corrupt { .. }) => {
                        damage.push(format!(
                            "{}: the log after this offset is lost",
                            describe(&error)
                        ));
                    }
                    report => highest_sequence = highest_sequence.max(report?.next - 1),
                }
                let salvaged = wal::salvage(&medium, |payload| builder.add_revisions(payload))?;
                highest_sequence = highest_sequence.max(salvaged);
            }
            Err(error) => damage.push(describe(&error)),
        }
        let (revision, restart) =
            (builder.revision(), builder.highest_revision() + LOST_LOG_MARGIN);
        let store = builder.finish_compacted_at(restart);
        let keys = store.stats().live_keys;
        Ok(Some(Repair {
            damage,
            revision,
            restart,
            keys,
            highest_sequence,
            store,
            dir,
            snapshots,
            damaged_snapshot,
        }))
    }

    /// Carries out the repair. Returns the new paths of the damaged files.
    pub fn carry_out(self) -> Result<Vec<PathBuf>, OpenError> {
        // The new snapshot covers a record after the end of the old log. So if the old
        // log is still in place after an interruption, no later open takes it for the log
        // after the new snapshot.
        let writer = self.snapshots.create(self.highest_sequence + 1)?;
        let opened = Effect::Opened(LogDurability::default());
        let effects = vec![opened, Effect::VisibleBound(self.restart)];
        write_snapshot(&self.store, effects, writer)?;
        let mut renamed_paths = Vec::from_iter(self.dir.set_log_aside()?);
        if let Some(damaged) = self.damaged_snapshot {
            let renamed = unused_damaged_name(&damaged);
            self.snapshots.set_aside(&damaged, &renamed)?;
            renamed_paths.push(renamed);
        }
        Ok(renamed_paths)
    }
}

/// Describes the damage. Unlike the error message, the text does not contain the remedy.
fn describe(error: &Error) -> String {
    match error {
        Error::Corrupt { file, offset, reason } => {
            format!("{} at offset {offset}, {reason}", file.display())
        }
        other => other.to_string(),
    }
}
