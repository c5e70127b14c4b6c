//! `mem_etcd repair`: goes on with what is left of a damaged data directory.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use pipeline::Repair as Plan;

use crate::host;

/// Say what is damaged in a data directory and what can be kept, and with --yes
/// keep that.
///
/// What is removed is kept beside, with the ending .damaged. The store then goes on
/// at a revision behind all that it ever had, compacted there, so that every client
/// lists again. An undamaged directory is left as it is. No server may be using the
/// directory.
#[derive(Args, Debug)]
pub struct Repair {
    /// Path to the data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Where its snapshots lie [default: DATA_DIR/snap]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,

    /// Do it, instead of only saying what would be done.
    #[arg(long)]
    yes: bool,
}

impl Repair {
    pub fn run(self) -> Result<ExitCode> {
        let plan = Plan::plan(&self.data_dir, self.snapshot_dir, &host::boot_id())?;
        let Some(plan) = plan else {
            println!("no damage found, nothing to do");
            return Ok(ExitCode::SUCCESS);
        };
        plan.damage.iter().for_each(|line| println!("damaged    {line}"));
        println!("kept       {} keys, up to revision {}", plan.keys, plan.revision);
        println!("restart    at revision {}, compacted there", plan.restart);
        if !self.yes {
            println!("nothing was changed: repeat with --yes to do it");
            return Ok(ExitCode::FAILURE);
        }
        for path in plan.carry_out()? {
            println!("set aside  {}", path.display());
        }
        println!("repaired");
        Ok(ExitCode::SUCCESS)
    }
}
