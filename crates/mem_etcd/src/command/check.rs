//! `mem_etcd check`: reads all of a data directory and says what is there.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use pipeline::DirectoryReport;

use crate::host;

/// Read everything in a data directory, verify it, and say what is there.
///
/// Nothing is changed, and no server may be using the directory. The exit code is
/// 0 if all is well and 1 if something is damaged.
#[derive(Args, Debug)]
pub struct Check {
    /// Path to the data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Where its snapshots lie [default: DATA_DIR/snap]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
}

impl Check {
    pub fn run(self) -> Result<ExitCode> {
        let report = pipeline::check(&self.data_dir, self.snapshot_dir, &host::boot_id())?;
        print!("{}", text(&report));
        Ok(ExitCode::SUCCESS)
    }
}

fn text(report: &DirectoryReport) -> String {
    let DirectoryReport { identity, snapshot, log, revision, compacted, stats, restart } = report;
    let mut lines = vec![format!(
        "identity   cluster {:016x}, member {:016x}",
        identity.cluster_id, identity.member_id
    )];
    lines.push(match snapshot {
        None => "snapshot   none".into(),
        Some((file, bytes, covered)) => {
            format!("snapshot   {}, {bytes} bytes, up to record {covered}", file.display())
        }
    });
    lines.extend(log.segments.iter().map(|segment| {
        let (file, first, records) = (segment.file.display(), segment.first, segment.records);
        format!("segment    {file}, {records} records from {first} on, {} bytes", segment.bytes)
    }));
    lines.push(format!("log        up to record {}", log.next - 1));
    if let Some(cut) = &log.cut {
        let (file, offset) = (cut.file.display(), cut.offset);
        lines.push(format!(
            "torn tail  {file} at offset {offset}: an unfinished write, which a start cuts off"
        ));
    }
    lines.push(match compacted {
        ..=0 => format!("revision   {revision}, never compacted"),
        _ => format!("revision   {revision}, compacted at {compacted}"),
    });
    if let Some(restart) = restart {
        lines.push(format!(
            "restart    at revision {restart}, compacted there: writes may be missing that were shown"
        ));
    }
    lines.push(format!("keys       {} in {} bytes", stats.live_keys, stats.live_bytes));
    lines.push(format!("leases     {}", stats.leases));
    lines.push("no damage found\n".into());
    lines.join("\n")
}
