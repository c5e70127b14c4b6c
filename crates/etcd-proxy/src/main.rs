//! `etcd-proxy`: stands between clients and an etcd, hands every byte on as it came,
//! and writes down what was said.
//!
//! ```text
//! client ─▶ tunnel ─▶ etcd        bytes, unchanged
//!             │ tap: frames, messages
//!             ▼
//!          recorder: a queue, a thread, a file
//! ```
//!
//! # Invariants
//! - What one side sends reaches the other byte by byte; the one frame of our own is
//!   a GOAWAY when the proxy is told to end.
//! - A client's connection has a connection of its own to an endpoint, so that windows,
//!   pings, settings and resets are between the two of them.
//! - The recorder never holds up or changes what is forwarded: what does not fit into
//!   its queue is missing, and counted, and the recording says so.

mod endpoints;
mod frames;
mod messages;
mod metrics;
mod options;
mod pages;
mod recorder;
mod refusal;
mod report;
mod server;
mod tap;
mod tunnel;

use std::process::ExitCode;

use clap::Parser;
use options::{Command, Options};

fn main() -> ExitCode {
    // As in Go programs, a flag may have one dash or two.
    let args = std::env::args().map(|arg| match arg.strip_prefix('-') {
        Some(name) if name.len() > 1 && !name.starts_with('-') => format!("--{name}"),
        _ => arg,
    });
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(error) if error.use_stderr() => {
            // The first paragraph says it; the rest is usage.
            let text = error.to_string();
            let line = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            return misused(&line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        Err(help) => help.exit(),
    };
    let result = match options.command {
        Some(Command::Report(options)) => report::run(&options),
        None => match options.serve.validate() {
            Ok(()) => server::run(options.serve),
            Err(line) => return misused(&line),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("etcd-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn misused(line: &str) -> ExitCode {
    eprintln!("etcd-proxy: {line}; see etcd-proxy --help");
    ExitCode::from(2)
}
