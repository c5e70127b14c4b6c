//! Creates the data directory of a member from a store: the only member of a new cluster. The others are
//! added by commands, and get the state from it. So each of them has an identity of its own, also if the
//! same store is restored again.

use std::path::{Path, PathBuf};

use consensus::Start;
use consensus::id::ClusterId;
use consensus::identity::{LogMode, StoredIdentity};
use consensus::membership::{MemberInfo, Membership};
use data_dir::DataDir;
use mvcc::{Effects, Store};
use snapshot::Snapshots;
use wal::Log;

use super::directory::{MemberDir, StoredMember};
use super::formation::formed;
use super::identity::random_member;
use super::records::{put_base, put_hard_state};
use crate::snapshot_write::write_snapshot;
use crate::{OpenError, PipelineOptions, store_recovery};

/// The member of a restored cluster.
#[derive(Clone, Debug)]
pub struct RestoredMember {
    /// Its name.
    pub name: String,
    /// Where other members will reach it.
    pub peer_urls: Vec<String>,
    /// What distinguishes the cluster from others.
    pub token: String,
}

/// Creates the directory. It is complete before it belongs to the member.
///
/// # Errors
/// If it is not empty, or cannot be written.
pub(crate) fn create(
    path: &Path,
    snapshot_dir: Option<&Path>,
    member: RestoredMember,
    store: &Store,
) -> Result<(), OpenError> {
    let RestoredMember { name, peer_urls, token } = member;
    let id = random_member();
    let info = MemberInfo { id, name, peer_urls, client_urls: Vec::new() };
    let membership = Membership::of_voters([info]);
    let cluster: ClusterId = formed(&token, &membership);
    let dir = MemberDir::create(path, snapshot_dir)?;
    // Everything is synced. The server notes its own mode when it starts.
    let identity = StoredIdentity { member: id, mode: LogMode::Fsync, boot_id: None };
    let stored = StoredMember { cluster, identity };
    write(&dir.replica(&stored)?, dir.snapshots(), &Start::new_cluster(membership), store)?;
    dir.write_member(&stored)?;
    Ok(())
}

fn write(
    dir: &DataDir,
    snapshots: PathBuf,
    start: &Start,
    store: &Store,
) -> Result<(), files::Error> {
    let snapshots = Snapshots::open(snapshots, dir.manifest(), dir.identity())?;
    let options = PipelineOptions::default();
    let medium = store_recovery::medium(dir)?;
    let (mut log, _) = Log::open(medium, options.log_options(), 0, |_| Ok(()))?;
    // The name of a snapshot is the last record that it covers.
    log.append(&[])?;
    write_snapshot(store, Effects::new(), snapshots.create(log.last())?)?;
    let mut record = Vec::new();
    put_base(&start.snapshot, &mut record);
    put_hard_state(&start.hard_state, &mut record);
    log.append(&record)?;
    log.sync()
}
