//! `etcd-bench`: a load generator for servers with etcd's v3 API. One CPU core is enough
//! to saturate a server.
//!
//! One thread runs all clients. It encodes and decodes gRPC itself and decodes only the
//! response fields that it needs. Latencies are collected in an HDR histogram. With
//! `--rate`, the latency of an operation is measured from its due time, so that a slow
//! server cannot hide queueing (coordinated omission).
//!
//! # Reading order
//! `run` executes a workload: `worker` is one client, `keys`, `population` and
//! `node_lease` create the data, `pace` paces an open loop, `watch` counts events.
//! `connection` is the gRPC client. `replay` replays a trace of etcd-proxy.

mod connection;
mod key_group;
mod keys;
mod latency;
mod load;
mod node_lease;
mod options;
mod pace;
mod partial_response;
mod population;
mod progress;
mod replay;
mod report;
mod run;
mod watch;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use options::{Options, Workload};

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() => {
            // The first paragraph is the error; the rest is usage.
            let text = error.to_string();
            let line = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            eprintln!("etcd-bench: {}; see etcd-bench --help", line.replace('\n', " "));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    if let Err(line) = options.validate() {
        eprintln!("etcd-bench: {line}; see etcd-bench --help");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        tokio::task::LocalSet::new().block_on(&runtime, run_and_report(&options))
    });
    match failed {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("etcd-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the workload and prints the report. Returns whether the run failed.
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
