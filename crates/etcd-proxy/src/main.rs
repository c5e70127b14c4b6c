//! `etcd-proxy`: a transparent proxy between clients and etcd endpoints that records requests
//! and responses in a trace.
//!
//! ```text
//! client ◀─▶ tunnel ◀─▶ etcd                  bytes, unchanged
//!              │ tap: HTTP/2 frames, gRPC messages
//!              ▼
//!           recorder (queue) ─▶ trace_writer (thread) ─▶ trace file
//! ```
//!
//! # Invariants
//! - All bytes are forwarded unchanged. The only frame that the proxy inserts is a GOAWAY
//!   at shutdown.
//! - Each client connection has its own connection to an endpoint. Flow-control windows,
//!   pings, settings and resets therefore apply end to end.
//! - Forwarding never waits for the trace file. Events that do not fit into the recorder's
//!   queue are dropped, and the trace contains the count of the missing records.
//!
//! # Reading order
//! `server` starts the listeners and the recorder. `tunnel` forwards a connection. `tap`
//! observes the connection with `frames` (HTTP/2), `header_fields`, `messages` (gRPC) and
//! `tracked_stream` (one call), and creates `event`s. `recorder` queues the events, and
//! `trace_writer` writes them. `report` is the subcommand that analyses traces.

mod endpoints;
mod event;
mod frames;
mod header_fields;
mod messages;
mod metrics;
mod options;
mod pages;
mod recorder;
mod refusal;
mod report;
mod server;
mod side;
mod tap;
mod trace_file;
mod trace_writer;
mod tracked_stream;
mod tunnel;

use std::process::ExitCode;

use clap::Parser;
use options::{Command, Options};

fn main() -> ExitCode {
    abort_on_panic::install();
    // Accept flags with one dash as well as with two, as Go's package flag does.
    let args = std::env::args().map(|arg| match arg.strip_prefix('-') {
        Some(name) if name.len() > 1 && !name.starts_with('-') => format!("--{name}"),
        _ => arg,
    });
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(error) if error.use_stderr() => {
            // The first paragraph of clap's text is the error message; the rest is usage.
            let text = error.to_string();
            let message =
                text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            return exit_with_usage_error(
                &message.split_whitespace().collect::<Vec<_>>().join(" "),
            );
        }
        Err(help) => help.exit(),
    };
    let result = match options.command {
        Some(Command::Report(options)) => report::run(&options),
        None => match options.serve.validate() {
            Ok(()) => server::run(options.serve),
            Err(message) => return exit_with_usage_error(&message),
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

/// Prints a one-line error message and returns the exit code for invalid flags.
fn exit_with_usage_error(message: &str) -> ExitCode {
    eprintln!("etcd-proxy: {message}; see etcd-proxy --help");
    ExitCode::from(2)
}
