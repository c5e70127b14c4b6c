//! `mem_etcd restore`: creates a data directory from a snapshot.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::BoolishValueParser;
use data_dir::Identity;
use pipeline::{RestoredMember, SavedSnapshot};

use crate::cluster_flags::{DEFAULT_TOKEN, InitialMember, ReplicationLog};

/// Create a data directory from a snapshot that `etcdctl snapshot save` took of mem_etcd
/// or of etcd. Members are not restored: the directory is that of a server without peers or, with
/// --replication-log, of the only member of a new cluster.
///
/// A restore undoes the changes that were made after the snapshot. Clients that saw these
/// changes must list all objects again. To force them, the restore raises the revision and
/// marks all older revisions as compacted. The cluster and the member get new IDs.
#[derive(Args, Debug)]
pub struct Restore {
    /// Path of the snapshot file.
    file: PathBuf,

    /// Path of the data directory to create; it must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Directory for the snapshot; start the server with the same --snapshot-dir
    /// [default: DATA_DIR/snap]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,

    /// Create the directory of a member of a new cluster. It is the only member at first: start it with the
    /// same flags, and add the others with etcdctl member add.
    #[arg(long, value_enum)]
    replication_log: Option<ReplicationLog>,

    /// Name of the member.
    #[arg(long, default_value = "default", requires = "replication_log")]
    name: String,

    /// The member and its peer URLs: NAME=URL, comma-separated.
    #[arg(long, value_name = "NAME=URL", value_delimiter = ',', requires = "replication_log")]
    initial_cluster: Vec<InitialMember>,

    /// Token of the cluster.
    #[arg(long, value_name = "TOKEN", default_value = DEFAULT_TOKEN, requires = "replication_log")]
    initial_cluster_token: String,

    /// Number by which to raise the revision; 0 keeps the revision and the history.
    #[arg(long, default_value_t = 1_000_000_000, value_name = "COUNT")]
    bump_revision: u64,

    /// Mark all revisions below the raised one as compacted; must be true if the revision
    /// is raised, and false otherwise [default: true if the revision is raised]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new())]
    mark_compacted: Option<bool>,

    /// Do not require or verify the hash at the end of the snapshot.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = BoolishValueParser::new())]
    skip_hash_check: bool,
}

impl Restore {
    pub fn run(self) -> Result<ExitCode> {
        let raised = self.bump_revision > 0;
        ensure!(
            self.mark_compacted.is_none_or(|mark| mark == raised),
            "--mark-compacted must be true if --bump-revision is above 0, and false if it is 0"
        );
        let member = self.member()?;
        let mut saved = SavedSnapshot::read(&self.file, self.skip_hash_check)?;
        let keys = saved.status().keys;
        let before = saved.revision();
        saved.bump(self.bump_revision)?;
        match member {
            Some(member) => {
                saved.write_member(&self.data_dir, self.snapshot_dir.as_deref(), member)?;
            }
            None => {
                let id = || rand::random_range(1..=u64::MAX);
                let fresh = Identity { cluster_id: id(), member_id: id() };
                saved.write(&self.data_dir, self.snapshot_dir, fresh)?;
            }
        }
        let (dir, after) = (self.data_dir.display(), saved.revision());
        println!("restored {keys} keys to {dir}: revision {before} is now {after}");
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the member of the new cluster; `None` for a server without peers.
    fn member(&self) -> Result<Option<RestoredMember>> {
        let Some(log) = self.replication_log else { return Ok(None) };
        ensure!(
            log != ReplicationLog::Memory,
            "--replication-log memory keeps no data: restore with fsync or buffered"
        );
        let urls = InitialMember::urls_of(&self.initial_cluster, &self.name);
        ensure!(!urls.is_empty(), "--initial-cluster has no member {}: set --name", self.name);
        ensure!(
            urls.len() == self.initial_cluster.len(),
            "--initial-cluster must have only {}: restore one member, start it, and add the others \
             with etcdctl member add",
            self.name
        );
        Ok(Some(RestoredMember {
            name: self.name.clone(),
            peer_urls: urls.iter().map(ToString::to_string).collect(),
            token: self.initial_cluster_token.clone(),
        }))
    }
}
