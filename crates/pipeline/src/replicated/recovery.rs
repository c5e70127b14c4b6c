//! Recovers a member from its snapshot and its log. The entries of the log are applied by the replica
//! as those that other members send, when it knows that they are committed.

use std::path::PathBuf;

use anyhow::anyhow;
use consensus::Start;
use consensus::entry::HardState;
use consensus::membership::MemberInfo;
use data_dir::DataDir;
use files::Error;
use mvcc::Store;
use snapshot::Snapshots;
use wal::{AllowedLoss, Covered, Log};

use super::records::{Stored, put_base, put_entries, put_hard_state, put_restored};
use crate::store_builder::StoreBuilder;
use crate::{OpenError, PipelineOptions, store_recovery};

/// A recovered member.
pub(super) struct RecoveredMember {
    pub(super) store: Store,
    pub(super) start: Start,
    pub(super) files: MemberFiles,
}

/// The files of a member.
pub(super) struct MemberFiles {
    pub(super) dir: DataDir,
    pub(super) log: Log,
    pub(super) snapshots: Snapshots,
    pub(super) hard_state: HardState,
    /// Size of the log after the snapshot in bytes.
    pub(super) log_bytes: u64,
}

/// Reads the files of a member. `snapshots` is the directory of its snapshots.
pub(super) fn recover(
    dir: DataDir,
    snapshots: PathBuf,
    options: &PipelineOptions,
) -> Result<RecoveredMember, OpenError> {
    let snapshots = Snapshots::open(snapshots, dir.manifest(), dir.identity())?;
    // The log may say that this state has replaced everything before it.
    if let Some(missing) = snapshots.missing()? {
        return Err(Error::MissingSnapshot { path: missing.path }.into());
    }
    let newest = snapshots.newest()?;
    let bytes = store_recovery::files_bytes(&dir, newest.as_ref());
    let (builder, ()) = StoreBuilder::build(bytes, |visit| {
        newest.iter().try_for_each(|newest| snapshots.load(newest, &mut *visit))?;
        Ok(())
    })?;
    let store = builder.finish();
    let mut stored = Stored::default();
    let record = newest.map_or(0, |newest| newest.covered);
    let covered = Covered { record, loss: AllowedLoss::Never };
    let medium = store_recovery::medium(&dir)?;
    let (log, recovered) =
        Log::open(medium, options.log_options(), covered, |record| stored.add(record))?;
    let Stored { base, entries, hard_state } = stored;
    tracing::info!(
        covered_record = record,
        entries = entries.len(),
        term = hard_state.term,
        revision = store.revision(),
        "recovered the member"
    );
    let start = match base {
        Some(snapshot) => Start { base: snapshot.position, snapshot, entries, hard_state },
        // It has not received the state of the cluster.
        None => Start { hard_state, ..Start::blank() },
    };
    let log_bytes = recovered.uncovered_bytes;
    let files = MemberFiles { dir, log, snapshots, hard_state, log_bytes };
    Ok(RecoveredMember { store, start, files })
}

impl RecoveredMember {
    /// Whether the member has never had the state of the cluster.
    pub(super) fn is_blank(&self) -> bool {
        self.start.snapshot.membership.voters().is_empty()
    }

    /// Makes `own` the only member of the cluster, in the log too. Returns the members before.
    ///
    /// # Errors
    /// If the member has no state, or the log cannot be written.
    pub(super) fn force_new_cluster(
        &mut self,
        own: &MemberInfo,
    ) -> Result<Vec<MemberInfo>, OpenError> {
        if self.is_blank() {
            return Err(OpenError::Cluster(anyhow!(
                "--force-new-cluster: the data directory has no state of a cluster"
            )));
        }
        let before = self.start.known_members();
        self.start = std::mem::take(&mut self.start).force_new_cluster(own.clone());
        let Start { snapshot, entries, hard_state, .. } = &self.start;
        // One record, so that a crash leaves all or nothing.
        let mut record = Vec::new();
        put_restored(snapshot, &mut record);
        put_hard_state(hard_state, &mut record);
        put_entries(entries, &mut record);
        let MemberFiles { log, log_bytes, .. } = &mut self.files;
        log.append(&record)?;
        log.sync()?;
        *log_bytes += record.len() as u64;
        self.files.hard_state = *hard_state;
        Ok(before)
    }
}

/// Creates the files of a member that begins with `start`. `snapshots` is the directory of its snapshots.
pub(super) fn create(
    dir: DataDir,
    snapshots: PathBuf,
    start: &Start,
    options: &PipelineOptions,
) -> Result<MemberFiles, Error> {
    let snapshots = Snapshots::open(snapshots, dir.manifest(), dir.identity())?;
    let medium = store_recovery::medium(&dir)?;
    let (mut log, _) = Log::open(medium, options.log_options(), 0, |_| Ok(()))?;
    let mut record = Vec::new();
    if !start.snapshot.membership.voters().is_empty() {
        put_base(&start.snapshot, &mut record);
    }
    put_hard_state(&start.hard_state, &mut record);
    log.append(&record)?;
    log.sync()?;
    let hard_state = start.hard_state;
    Ok(MemberFiles { dir, log, snapshots, hard_state, log_bytes: record.len() as u64 })
}
