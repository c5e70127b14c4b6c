//! `mem_etcd restore`: a data directory from a snapshot.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::BoolishValueParser;
use data_dir::Identity;
use pipeline::SavedSnapshot;

/// Make a data directory from a snapshot that `etcdctl snapshot save` took, of a
/// mem_etcd or of an etcd. Of an etcd, users, roles and members stay behind.
///
/// The revision is raised and all before it marked as compacted, so that caches
/// and controllers which knew the store after the snapshot was taken start anew
/// instead of missing what was undone. Cluster and member get new IDs.
#[derive(Args, Debug)]
pub struct Restore {
    /// The snapshot.
    file: PathBuf,

    /// Path to the data directory to make; it must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// By how much to raise the revision; 0 keeps it, and the history.
    #[arg(long, default_value_t = 1_000_000_000, value_name = "COUNT")]
    bump_revision: u64,

    /// Mark what is before the raised revision as compacted; goes with raising it
    /// [default: whether it is raised]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new())]
    mark_compacted: Option<bool>,

    /// Do not check the hash at the snapshot's end, nor that there is one.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = BoolishValueParser::new())]
    skip_hash_check: bool,
}

impl Restore {
    pub fn run(self) -> Result<ExitCode> {
        let raised = self.bump_revision > 0;
        ensure!(
            self.mark_compacted.is_none_or(|mark| mark == raised),
            "--mark-compacted goes with a --bump-revision above 0, and with no other"
        );
        let mut saved = SavedSnapshot::read(&self.file, self.skip_hash_check)?;
        let keys = saved.status().keys;
        let before = saved.revision();
        saved.bump(self.bump_revision)?;
        let id = || rand::random_range(1..=u64::MAX);
        saved.write(&self.data_dir, Identity { cluster_id: id(), member_id: id() })?;
        let (dir, after) = (self.data_dir.display(), saved.revision());
        println!("restored {keys} keys to {dir}: revision {before} is now {after}");
        Ok(ExitCode::SUCCESS)
    }
}
