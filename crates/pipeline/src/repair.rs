//! Going on with what is left of a damaged data directory.
//!
//! What can be read up to the first damage, of the snapshot and of the log, becomes
//! a new snapshot; the log begins anew behind it. The revision goes on behind all
//! that is found anywhere in the files, and far enough behind that to pass what is
//! not found; it counts as compacted there. The old files are kept beside.
//!
//! Nothing is taken away before the new snapshot is durable, so a repair that is
//! interrupted can be repeated.

use std::path::{Path, PathBuf};

use mvcc::{Effect, Opened, Store};
use wal::{DataDir, Error, Snapshots};

use crate::continuity::MAY_HAVE_BEEN_SHOWN;
use crate::recovery;
use crate::replay::Replay;
use crate::snapshotter::write_all;
use crate::{OpenError, check};

/// What is wrong with a data directory, and what would be left of it.
pub struct Repair {
    /// What is damaged, a line each.
    pub damage: Vec<String>,
    /// The revision of the last change that can be kept.
    pub revision: i64,
    /// From where the revision would go on.
    pub restart: i64,
    /// Keys that would be left.
    pub keys: i64,
    /// Records of the log in all, damaged ones left out.
    records: u64,
    store: Store,
    dir: DataDir,
    snapshots: Snapshots,
    damaged_snapshot: Option<PathBuf>,
}

impl Repair {
    /// Looks at `data_dir`, with its snapshots in `snapshot_dir` if that is
    /// elsewhere, and changes nothing. `None` if there is no damage.
    pub fn plan(
        data_dir: &Path,
        snapshot_dir: Option<PathBuf>,
        boot_id: &[u8],
    ) -> Result<Option<Repair>, OpenError> {
        match check(data_dir, snapshot_dir.clone(), boot_id) {
            Ok(_) => return Ok(None),
            Err(OpenError::Wal(Error::Corrupt { .. })) => {}
            Err(other) => return Err(other),
        }
        let dir = DataDir::existing(data_dir)?;
        let snapshots = Snapshots::existing(snapshot_dir.unwrap_or_else(|| dir.snap()));
        let mut replay = Replay::default();
        let mut damage = Vec::new();
        let (covered, damaged_snapshot) = match snapshots.load(|chunk| replay.record(chunk)) {
            Err(error @ Error::Corrupt { .. }) => {
                damage.push(format!("{}: the keys behind that are lost", place(&error)));
                (snapshots.newest_covers()?, snapshots.newest()?)
            }
            covered => (covered?, None),
        };
        let mut records = covered;
        match dir.require_log() {
            Ok(()) => {
                let medium = recovery::medium(&dir)?;
                match wal::inspect(&medium, covered, |payload| replay.record(payload)) {
                    Err(error @ Error::Corrupt { .. }) => {
                        damage.push(format!("{}: the log from there on is lost", place(&error)));
                    }
                    inspected => records = records.max(inspected?.next - 1),
                }
                let found = wal::remnants(&medium, |payload| replay.glance(payload))?;
                records = records.max(found);
            }
            Err(error) => damage.push(place(&error)),
        }
        let (revision, restart) = (replay.revision(), replay.behind_all() + MAY_HAVE_BEEN_SHOWN);
        let store = replay.restart_at(restart);
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

    /// Does it, and returns where the old files are.
    pub fn carry_out(self) -> Result<Vec<PathBuf>, OpenError> {
        // The log that is set aside must not be taken for one behind the snapshot.
        let writer = self.snapshots.create(self.records + 1)?;
        let opened = Effect::Opened(Opened::default());
        let effects = vec![opened, Effect::VisibleBound(self.restart)];
        write_all(&self.store, effects, writer)?;
        let mut kept = Vec::from_iter(self.dir.set_log_aside()?);
        if let Some(damaged) = self.damaged_snapshot {
            kept.push(self.snapshots.set_aside(&damaged)?);
        }
        Ok(kept)
    }
}

/// What is damaged, and where, without the advice.
fn place(error: &Error) -> String {
    match error {
        Error::Corrupt { file, offset, reason } => {
            format!("{} at offset {offset}, {reason}", file.display())
        }
        other => other.to_string(),
    }
}
