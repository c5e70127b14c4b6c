//! `etcd-bench`: load for anything that speaks etcd's v3 API, cheap enough to
//! saturate a server from one core.
//!
//! One thread drives all clients over HTTP/2 connections that it frames itself.
//! Latencies go into an HDR histogram; with `--rate` they count from the moment
//! at which an operation was due, not from when the client got round to it.

mod connection;
mod glance;
mod group;
mod lease;
mod options;
mod pace;
mod population;
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
            // The first paragraph says it; the rest is usage.
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
    let failed = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| tokio::task::LocalSet::new().block_on(&runtime, work(&options)));
    match failed {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("etcd-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs, prints the report, and says whether too much went wrong.
async fn work(options: &Options) -> anyhow::Result<bool> {
    if let Workload::Replay(replay) = &options.workload {
        let report = replay::run(replay, &options.load).await?;
        report.print(options.output).context("print the report")?;
        return Ok(report.failed());
    }
    let report = run::run(options).await?;
    report.print(options.output).context("print the report")?;
    Ok(report.failed())
}
