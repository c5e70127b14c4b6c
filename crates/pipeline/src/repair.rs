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
use snapshot::{Generation, Snapshots};
use wal::{LogRecords, OsMedium};

use crate::continuity::LOST_LOG_MARGIN;
use crate::directory_check::check;
use crate::snapshot_write::write_snapshot;
use crate::store_builder::StoreBuilder;
use crate::{OpenError, recovery_base};

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
    /// The undamaged snapshot whose content is kept.
    base: Option<Generation>,
    damaged_snapshot: Option<Generation>,
    /// Whether the list of snapshots is damaged.
    damaged_manifest: bool,
}

/// What can be kept of the files of a store.
struct Kept {
    builder: StoreBuilder,
    /// The undamaged snapshot whose content is kept.
    base: Option<Generation>,
    damaged_snapshot: Option<Generation>,
    highest_sequence: u64,
}

impl Repair {
    /// Plans the repair of `data_dir`, with the snapshots in `snapshot_dir` if it is set.
    /// Changes nothing. Returns `None` if there is no damage.
    pub fn plan(
        data_dir: &Path,
        snapshot_dir: Option<PathBuf>,
        boot_id: &[u8],
    ) -> Result<Option<Repair>, OpenError> {
        let mut damage = Vec::new();
        match check(data_dir, snapshot_dir.clone(), boot_id) {
            Ok(report) if report.damaged_newest.is_none() => return Ok(None),
            Ok(_) | Err(OpenError::Files(Error::Corrupt { .. })) => {}
            Err(OpenError::Files(error @ Error::ShortLog { .. })) => damage.push(describe(&error)),
            Err(other) => return Err(other),
        }
        let dir = DataDir::inspect(data_dir)?;
        let mut snapshots = recovery_base::inspect(&dir, snapshot_dir)?;
        let damaged_manifest = match snapshots.has_manifest() {
            Err(error @ Error::Corrupt { .. }) => {
                damage.push(describe(&error));
                snapshots.ignore_manifest();
                true
            }
            read => read.map(|_| false)?,
        };
        let Kept { builder, base, damaged_snapshot, highest_sequence } =
            read_kept(&dir, &snapshots, &mut damage)?;
        recovery_base::require_missing_replaced(&dir, &snapshots, base.as_ref())?;
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
            base,
            damaged_snapshot,
            damaged_manifest,
        }))
    }

    /// Carries out the repair. Returns the new paths of the damaged files.
    pub fn carry_out(self) -> Result<Vec<PathBuf>, OpenError> {
        let dir = self.dir.lock_for_writing()?;
        let mut snapshots = self.snapshots.open_for_writing()?;
        let mut renamed_paths = Vec::new();
        if self.damaged_manifest {
            renamed_paths.push(dir.set_manifest_aside()?);
            snapshots.use_manifest();
        }
        // Until the new snapshot exists, the old one must stay listed.
        snapshots.adopt(self.base.as_ref().or(self.damaged_snapshot.as_ref()))?;
        // The new snapshot covers a record after the end of the old log. So if the old
        // log is still in place after an interruption, no later open takes it for the log
        // after the new snapshot.
        let writer = snapshots.create(self.highest_sequence + 1)?;
        let opened = Effect::Opened(LogDurability::default());
        let effects = vec![opened, Effect::VisibleBound(self.restart)];
        write_snapshot(&self.store, effects, writer)?;
        renamed_paths.extend(dir.set_log_aside()?);
        if let Some(damaged) = self.damaged_snapshot {
            let renamed = unused_damaged_name(&damaged.path);
            snapshots.set_aside(&damaged, &renamed)?;
            renamed_paths.push(renamed);
        }
        Ok(renamed_paths)
    }
}

/// Reads what can be kept. Adds a line to `damage` for each damaged file.
fn read_kept(
    dir: &DataDir,
    snapshots: &Snapshots,
    damage: &mut Vec<String>,
) -> Result<Kept, OpenError> {
    let mut generations = snapshots.generations()?;
    let (mut base, before) = (generations.pop(), generations.pop());
    let highest_covered = base.as_ref().map_or(0, |newest| newest.covered);
    let mut builder = StoreBuilder::default();
    let mut damaged_snapshot = None;
    if let Some(newest) = &base {
        match snapshots.load(newest, |chunk| builder.add(chunk)) {
            Err(error @ Error::Corrupt { .. }) => {
                damaged_snapshot = Some(newest.clone());
                match before {
                    Some(before) if is_complete(dir, snapshots, &before, newest.covered)? => {
                        damage.push(format!("{}: nothing is lost", describe(&error)));
                        builder = StoreBuilder::default();
                        snapshots.load(&before, |chunk| builder.add(chunk))?;
                        base = Some(before);
                    }
                    _ => damage
                        .push(format!("{}: the keys after this offset are lost", describe(&error))),
                }
            }
            loaded => loaded?,
        }
    }
    let covered = base.as_ref().map_or(0, |base| base.covered);
    let last = add_log(dir, covered, &mut builder, damage)?;
    let highest_sequence = highest_covered.max(last);
    let base = base.filter(|base| Some(base) != damaged_snapshot.as_ref());
    Ok(Kept { builder, base, damaged_snapshot, highest_sequence })
}

/// Whether the snapshot `before` and the log after it are undamaged and contain all records
/// up to `covered`. Fails if a newer version wrote a part of them.
fn is_complete(
    dir: &DataDir,
    snapshots: &Snapshots,
    before: &Generation,
    covered: u64,
) -> Result<bool, Error> {
    let mut builder = StoreBuilder::default();
    let loaded = snapshots.load(before, |chunk| builder.add(chunk));
    let medium = OsMedium::inspect(dir.log_dir());
    let records = wal::read_records(&medium, before.covered, |payload| builder.add(payload));
    match loaded.and(records) {
        Ok(records) => Ok(records.next > covered),
        Err(error) if error.is_newer() => Err(error),
        Err(_) => Ok(false),
    }
}

/// Adds the log after the record `covered` to the store, up to the first damage. Returns the
/// highest sequence of an intact record.
fn add_log(
    dir: &DataDir,
    covered: u64,
    builder: &mut StoreBuilder,
    damage: &mut Vec<String>,
) -> Result<u64, OpenError> {
    if let Err(error) = dir.require_log() {
        damage.push(describe(&error));
        return Ok(0);
    }
    let medium = OsMedium::inspect(dir.log_dir());
    let mut last = 0;
    match wal::read_records(&medium, covered, |payload| builder.add(payload)) {
        Err(error @ Error::Corrupt { .. }) => {
            damage.push(format!("{}: the log after this offset is lost", describe(&error)));
        }
        records => {
            let LogRecords { next, covered_damage } = records?;
            last = next - 1;
            match covered_damage {
                Some(error) => damage.push(format!(
                    "{}: the snapshot covers it, and the log after it is kept",
                    describe(&error)
                )),
                None => require_head(&medium, covered, damage)?,
            }
        }
    }
    Ok(last.max(wal::salvage(&medium, |payload| builder.add_revisions(payload))?))
}

/// Adds a line to `damage` if `HEAD` is damaged, or if the log has less than it states.
fn require_head(
    medium: &OsMedium,
    covered: u64,
    damage: &mut Vec<String>,
) -> Result<(), OpenError> {
    match wal::check(medium, covered, |_| Ok(())) {
        Err(error @ Error::Corrupt { .. }) => {
            damage.push(format!("{}: all intact records are kept", describe(&error)));
        }
        checked => drop(checked?),
    }
    Ok(())
}

/// Describes the damage. Unlike the error message, the text does not contain the remedy.
fn describe(error: &Error) -> String {
    match error {
        Error::Corrupt { file, offset, reason } => {
            format!("{} at offset {offset}, {reason}", file.display())
        }
        Error::ShortLog { path, last, covered } => {
            let path = path.display();
            format!("{path}: the log ends with record {last}, the snapshot covers {covered}")
        }
        other => other.to_string(),
    }
}
