//! `mem_etcd snapshot`: subcommands like those of `etcdutl snapshot`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use pipeline::{SavedSnapshot, SavedSnapshotStatus};
use serde_json::json;

use super::restore::Restore;
use crate::config::STORAGE_VERSION;

/// Print the status of a snapshot that `etcdctl snapshot save` took, or restore the
/// snapshot.
#[derive(Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Status(Status),
    Restore(Restore),
}

/// Print hash (equal to HashKV), revision, number of keys, size and version of a
/// snapshot.
#[derive(Args, Debug)]
struct Status {
    /// Path of the snapshot file.
    file: PathBuf,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Simple)]
    write_out: OutputFormat,

    /// Do not require or verify the hash at the end of the snapshot.
    #[arg(long)]
    skip_hash_check: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum OutputFormat {
    Simple,
    Json,
    Table,
    Fields,
}

impl Snapshot {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Restore(restore) => restore.run(),
            Command::Status(status) => {
                let saved = SavedSnapshot::read(&status.file, status.skip_hash_check)?;
                println!("{}", format_status(&saved.status(), status.write_out));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Formats the status as etcdutl does.
fn format_status(status: &SavedSnapshotStatus, format: OutputFormat) -> String {
    let SavedSnapshotStatus { hash, revision, keys, bytes } = *status;
    let cells = [
        format!("{hash:x}"),
        revision.to_string(),
        keys.to_string(),
        human_bytes(bytes),
        STORAGE_VERSION.to_owned(),
    ];
    match format {
        OutputFormat::Simple => cells.join(", "),
        OutputFormat::Json => json!({
            "hash": hash, "revision": revision, "totalKey": keys, "totalSize": bytes,
            "version": STORAGE_VERSION,
        })
        .to_string(),
        OutputFormat::Fields => format!(
            "\"Hash\" : {hash}\n\"Revision\" : {revision}\n\"Keys\" : {keys}\n\"Size\" : {bytes}\n\"Version\" : {STORAGE_VERSION}"
        ),
        OutputFormat::Table => {
            format_table(["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"], cells)
        }
    }
}

fn format_table(header: [&str; 5], cells: [String; 5]) -> String {
    let widths: Vec<_> = header.iter().zip(&cells).map(|(h, c)| h.len().max(c.len())).collect();
    let rule = |left: &str, middle: &str, right: &str| {
        let parts: Vec<_> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}", parts.join(middle))
    };
    let row = |parts: Vec<String>| format!("│{}│", parts.join("│"));
    let names = header.iter().zip(&widths).map(|(name, width)| format!(" {name:^width$} "));
    let values = cells.iter().zip(&widths).map(|(value, width)| format!(" {value:>width$} "));
    let lines = [
        rule("┌", "┬", "┐"),
        row(names.collect()),
        rule("├", "┼", "┤"),
        row(values.collect()),
        rule("└", "┴", "┘"),
    ];
    lines.join("\n")
}

/// Formats a number of bytes with a decimal unit. Values below 10 have one decimal place.
fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 9.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_etcdutl() {
        let status =
            SavedSnapshotStatus { hash: 0xfe01cf57, revision: 10, keys: 7, bytes: 2_097_152 };
        assert_eq!(format_status(&status, OutputFormat::Simple), "fe01cf57, 10, 7, 2.1 MB, 3.7.0");
        let lines = format_status(&status, OutputFormat::Table);
        assert!(
            lines.contains("│ fe01cf57 │       10 │          7 │     2.1 MB │   3.7.0 │"),
            "{lines}"
        );
        for (bytes, expected) in [(999, "999 B"), (1000, "1.0 kB"), (20_480, "20 kB")] {
            assert_eq!(human_bytes(bytes), expected);
        }
    }
}
