//! `mem_etcd check`: verifies a data directory and prints what it contains.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use pipeline::DirectoryReport;

use crate::host;

/// Read and verify a data directory, and print what it contains.
///
/// Changes nothing. The directory must not be in use by a server. The exit code is 1 if
/// there is damage. It is 0 if only the older of two snapshots is damaged, which is a
/// warning: a server does not need this snapshot.
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
        Ok(match report.damaged_newest {
            None => ExitCode::SUCCESS,
            Some(_) => ExitCode::FAILURE,
        })
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
    lines.extend(format_missing(report));
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
    lines.extend(format_damage(report));
    lines.join("\n") + "\n"
}

/// Describes the damage of the snapshots, or says that there is none.
fn format_damage(report: &DirectoryReport) -> Vec<String> {
    let newest = report.damaged_newest.iter().map(|damage| {
        format!(
            "damaged    {damage}; a server will start from the snapshot before it and the log, nothing is lost"
        )
    });
    let older = report.damaged_older.iter().map(|damage| {
        format!(
            "warning    {damage}; a server does not need it, but it could not replace the newest snapshot; the next snapshot of the server removes it"
        )
    });
    let lines: Vec<_> = newest.chain(older).collect();
    if lines.is_empty() { vec!["no damage found".into()] } else { lines }
}

/// Describes a missing snapshot, and what a server would do without it.
fn format_missing(report: &DirectoryReport) -> Option<String> {
    let (path, covered) = report.missing_snapshot.as_ref()?;
    let path = path.display();
    Some(match *covered < report.log.next {
        true => format!("missing    {path}; a server does not need it, the log contains all of it"),
        false => format!(
            "missing    {path}, up to record {covered}: a server would start without these writes and never use this snapshot again; is --snapshot-dir the directory that was used before?"
        ),
    })
}

/// Describes the snapshots, the newest first.
fn format_snapshots(report: &DirectoryReport) -> Vec<String> {
    let newest_first = report.snapshots.iter().rev();
    let describe = |(number, (file, bytes, covered)): (usize, &(PathBuf, u64, u64))| {
        let note = match (number, &report.damaged_newest, &report.damaged_older) {
            (0, None, _) | (1, Some(_), _) => "",
            (0, Some(_), _) => ", damaged",
            (1, None, None) => ", intact but not needed",
            _ => ", not needed",
        };
        format!("snapshot   {}, {bytes} bytes, up to record {covered}{note}", file.display())
    };
    match report.snapshots.is_empty() {
        true => vec!["snapshot   none".into()],
        false => newest_first.enumerate().map(describe).collect(),
    }
}
