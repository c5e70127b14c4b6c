//! `mem_etcd snapshot`: what etcdutl's command of that name does.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use pipeline::{SavedSnapshot, SavedSnapshotStatus};
use serde_json::json;

use super::restore::Restore;
use crate::config::STORAGE_VERSION;

/// Look at a snapshot, or restore it. (`etcdctl snapshot save` takes one.)
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

/// Say what a snapshot holds: hash (that of HashKV), revision, keys, size, version.
#[derive(Args, Debug)]
struct Status {
    /// The snapshot.
    file: PathBuf,

    /// How to print it.
    #[arg(long, short, value_enum, default_value_t = Form::Simple)]
    write_out: Form,

    /// Do not check the hash at the snapshot's end, nor that there is one.
    #[arg(long)]
    skip_hash_check: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Form {
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
                println!("{}", text(&saved.status(), status.write_out));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// As etcdutl prints it.
fn text(status: &SavedSnapshotStatus, form: Form) -> String {
    let SavedSnapshotStatus { hash, revision, keys, bytes } = *status;
    let cells = [
        format!("{hash:x}"),
        revision.to_string(),
        keys.to_string(),
        human(bytes),
        STORAGE_VERSION.to_owned(),
    ];
    match form {
        Form::Simple => cells.join(", "),
        Form::Json => json!({
            "hash": hash, "revision": revision, "totalKey": keys, "totalSize": bytes,
            "version": STORAGE_VERSION,
        })
        .to_string(),
        Form::Fields => format!(
            "\"Hash\" : {hash}\n\"Revision\" : {revision}\n\"Keys\" : {keys}\n\"Size\" : {bytes}\n\"Version\" : {STORAGE_VERSION}"
        ),
        Form::Table => table(["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"], cells),
    }
}

fn table(header: [&str; 5], cells: [String; 5]) -> String {
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

/// Powers of a thousand, one digit behind the point below ten.
fn human(bytes: u64) -> String {
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
    fn prints_as_etcdutl() {
        let status =
            SavedSnapshotStatus { hash: 0xfe01cf57, revision: 10, keys: 7, bytes: 2_097_152 };
        assert_eq!(text(&status, Form::Simple), "fe01cf57, 10, 7, 2.1 MB, 3.7.0");
        let lines = text(&status, Form::Table);
        assert!(
            lines.contains("│ fe01cf57 │       10 │          7 │     2.1 MB │   3.7.0 │"),
            "{lines}"
        );
        for (bytes, expected) in [(999, "999 B"), (1000, "1.0 kB"), (20_480, "20 kB")] {
            assert_eq!(human(bytes), expected);
        }
    }
}
