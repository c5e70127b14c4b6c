//! `etcd-bench`: a load generator for servers with etcd's v3 API.
//!
//! One thread runs all clients, so the load generator uses at most about one CPU core. It has
//! its own gRPC client, which decodes only the response fields that it needs. Latencies are
//! collected in an HDR histogram. With `--rate`, the latency of an operation is measured from
//! the time at which it was due, and therefore includes the time that it waited for earlier
//! operations (this avoids coordinated omission).
//!
//! # Reading order
//! `run` executes a workload: `worker` is one client, `keys`, `fill_keys` and `node_lease`
//! create the data, `pace` issues operations at a constant rate, `watch` counts events.
//! `lease_flood` renews Leases: those of `node_lease`, or with `stored_lease` those of a cluster.
//! `connection` is the gRPC client. `replay` replays a trace of etcd-proxy.

mod fill_keys;
mod key_group;
mod keys;
mod latency;
mod lease_flood;
mod load;
mod node_lease;
mod options;
mod pace;
mod partial_response;
mod progress;
mod replay;
mod report;
mod run;
mod stored_lease;
mod watch;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use options::{Options, Workload};

fn main() -> ExitCode {
    abort_on_panic::install();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() => {
            // The first paragraph of clap's text is the error message; the rest is usage.
            let text = error.to_string();
            let message =
                text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            eprintln!("etcd-bench: {}; see etcd-bench --help", message.replace('\n', " "));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    if let Err(message) = options.validate() {
        eprintln!("etcd-bench: {message}; see etcd-bench --help");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let has_failed = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        tokio::task::LocalSet::new().block_on(&runtime, run_and_report(&options))
    });
    match has_failed {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("etcd-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the workload and prints the report. Returns whether the run has failed: too many
/// errors, missing events, or too many differences to the trace.
async fn run_and_report(options: &Options) -> anyhow::Result<bool> {
    if let Workload::Replay(replay) = &options.workload {
        let report = replay::run(replay, &options.load).await?;
        report.print(options.output).context("print the report")?;
        return Ok(report.failed());
    }
    let report = run::run(options).await?;
    report.print(options.output).context("print the report")?;
    Ok(report.failed())
}
