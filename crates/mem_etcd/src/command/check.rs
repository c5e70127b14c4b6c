//! `mem_etcd check`: verifies a data directory and prints what it contains.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use pipeline::DirectoryReport;

use crate::host;

/// Read and verify a data directory, and print what it contains.
///
/// Changes nothing. The directory must not be in use by a server. The exit code is 0 if
/// there is no damage, and 1 otherwise.
#[derive(Args, Debug)]
pub struct Check {
    /// Path to the data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Directory of the snapshots [default: DATA_DIR/snap]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
}

impl Check {
    pub fn run(self) -> Result<ExitCode> {
        let report = pipeline::check(&self.data_dir, self.snapshot_dir, &host::boot_id())?;
        print!("{}", format_report(&report));
        Ok(ExitCode::SUCCESS)
    }
}

fn format_report(report: &DirectoryReport) -> String {
    let DirectoryReport { log, revision, compacted, stats, .. } = report;
    let mut lines = vec![format!("identity   {}", report.identity)];
    lines.extend(
        report
            .foreign_files
            .iter()
            .map(|file| format!("ignored    {}: {}", file.path.display(), file.reason)),
    );
    lines.extend(format_snapshots(report));
    lines.extend(log.segments.iter().map(|segment| {
        let (file, first, records) = (segment.file.display(), segment.first, segment.records);
        format!("segment    {file}, {records} records from {first} on, {} bytes", segment.bytes)
    }));
    lines.push(format!("log        up to record {}", log.next - 1));
    if let Some(cut) = &log.unfinished_write {
        let (file, offset) = (cut.file.display(), cut.offset);
        lines.push(format!(
            "torn tail  {file} at offset {offset}: an unfinished write, which the server will truncate"
        ));
    }
    lines.push(match compacted {
        ..=0 => format!("revision   {revision}, never compacted"),
        _ => format!("revision   {revision}, compacted at {compacted}"),
    });
    if let Some(restart) = report.restart {
        lines.push(format!(
            "restart    writes that clients have seen may be lost: a server will continue at revision {restart} and mark older revisions as compacted"
        ));
    }
    lines.push(format!(
        "keys       {}, {} bytes with their newest values and the overhead per key",
        stats.live_keys, stats.live_bytes
    ));
    lines.push(format!("leases     {}", stats.leases));
    lines.push("no damage found\n".into());
    lines.join("\n")
}

/// Describes the snapshots, the newest first. The older one is not read.
fn format_snapshots(report: &DirectoryReport) -> Vec<String> {
    let newest_first = report.snapshots.iter().rev();
    let describe = |(number, (file, bytes, covered)): (usize, &(PathBuf, u64, u64))| {
        let note = if number == 0 { "" } else { ", not needed and not read" };
        format!("snapshot   {}, {bytes} bytes, up to record {covered}{note}", file.display())
    };
    match report.snapshots.is_empty() {
        true => vec!["snapshot   none".into()],
        false => newest_first.enumerate().map(describe).collect(),
    }
}
