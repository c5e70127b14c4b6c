//! `mem_etcd repair`: makes a damaged data directory usable, with the data that can be
//! kept.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use pipeline::Repair as RepairPlan;

use crate::host;

/// Print what is damaged in a data directory and what can be kept; with --yes, repair it.
///
/// Damaged files are kept with the suffix .damaged. The repaired store continues at a
/// revision above every revision that it ever had. Older revisions are marked as
/// compacted, so that every client lists again. An undamaged directory is not changed.
/// The directory must not be in use by a server.
#[derive(Args, Debug)]
pub struct Repair {
    /// Path to the data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Directory of the snapshots [default: DATA_DIR/snap]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,

    /// Repair the directory; without this flag, nothing is changed.
    #[arg(long)]
    yes: bool,
}

impl Repair {
    pub fn run(self) -> Result<ExitCode> {
        let plan = RepairPlan::plan(&self.data_dir, self.snapshot_dir, &host::boot_id())?;
        let Some(plan) = plan else {
            println!("no damage found, nothing to do");
            return Ok(ExitCode::SUCCESS);
        };
        plan.damage.iter().for_each(|line| println!("damaged    {line}"));
        println!("kept       {} keys, up to revision {}", plan.keys, plan.revision);
        println!(
            "restart    at revision {}; older revisions are marked as compacted",
            plan.restart
        );
        if !self.yes {
            println!("nothing was changed: repeat with --yes to repair the directory");
            return Ok(ExitCode::FAILURE);
        }
        for path in plan.carry_out()? {
            println!("set aside  {}", path.display());
        }
        println!("repaired");
        Ok(ExitCode::SUCCESS)
    }
}
