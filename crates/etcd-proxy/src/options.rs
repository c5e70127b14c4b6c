//! Flags. Those of TLS have etcd's names towards clients and etcdctl's towards etcd.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use output::Output;
use sockets::{Listen, TlsFiles};
use trace::{Compression, Values};

const EXAMPLES: &str = "Examples:
  etcd-proxy --listen http://127.0.0.1:2378 --endpoints http://127.0.0.1:2379 \\
      --record trace.jsonl.zst
  etcd-proxy report trace.jsonl.zst --html report.html
  etcd-bench replay trace.jsonl.zst --endpoints http://127.0.0.1:2379 --speed max";

/// Stands before an etcd, hands every byte on, and records what is said.
#[derive(Parser, Debug)]
#[command(name = "etcd-proxy", version, about, after_help = EXAMPLES, args_override_self = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub serve: Serve,
}

/// What else there is to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say what is in recordings: request shapes, kinds, watches, leases, ranges.
    Report(ReportOptions),
}

/// How to stand between.
#[derive(Args, Debug)]
pub struct Serve {
    /// URLs to listen on: http, https, unix or unixs, comma-separated.
    #[arg(
        long,
        default_value = "http://127.0.0.1:2378",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub listen: Vec<Listen>,

    /// The etcd to stand before. Of several, comma-separated, the next is tried when
    /// one cannot be connected to.
    #[arg(
        long,
        default_value = "http://127.0.0.1:2379",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub endpoints: Vec<Listen>,

    /// URLs for /health, /metrics and /version of the proxy itself, http only; what a
    /// client asks for on the other ports is forwarded.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub listen_metrics_urls: Vec<Listen>,

    /// Record to this file. One that exists is kept: the next free of NAME-2, NAME-3,
    /// … is taken.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// How the recording is packed: zstd, gzip or none [default: as its name ends,
    /// .zst or .gz]
    #[arg(long, value_name = "HOW", requires = "record")]
    pub compress: Option<Compression>,

    /// What is kept of values: none; their sizes; or full, as a replay that writes the
    /// same ones needs. Beware of secrets.
    #[arg(long, default_value_t, value_name = "WHAT", requires = "record")]
    pub values: Values,

    /// Calls and messages that may wait for the recorder; more are not recorded, and
    /// counted.
    #[arg(long, default_value_t = 65_536, value_name = "COUNT", requires = "record")]
    pub record_queue: usize,

    #[command(flatten)]
    pub tls: TlsFiles,

    /// CA that signed the certificates of the endpoints.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Certificate to show to the endpoints.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,

    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// What of recordings is said, and where.
#[derive(Args, Debug)]
pub struct ReportOptions {
    /// Recordings, in their order.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// How it is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Write a page to this file as well.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Serve {
    /// Says in one line what does not fit.
    pub fn validate(&self) -> Result<(), String> {
        self.tls.validate(&self.listen)?;
        if let Some(listen) = self.listen_metrics_urls.iter().find(|listen| listen.tls()) {
            return Err(format!("{listen}: metrics are served by http only"));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("--cert and --key go together".into());
        }
        match (self.endpoints.iter().find(|endpoint| endpoint.tls()), &self.cacert) {
            (Some(endpoint), None) => return Err(format!("{endpoint} needs --cacert")),
            (None, Some(_)) => return Err("--cacert is for endpoints with https".into()),
            _ => {}
        }
        if self.record_queue == 0 {
            return Err("--record-queue must be at least 1".into());
        }
        if let Some(both) = self.listen.iter().find(|listen| self.endpoints.contains(listen)) {
            return Err(format!("{both} is where to listen and what to stand before"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &str) -> Result<Serve, String> {
        let args = ["etcd-proxy"].into_iter().chain(args.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        options.serve.validate().map(|()| options.serve)
    }

    #[test]
    fn flags_are_checked() {
        let serve = read("--listen unix:///a --endpoints http://a:1,http://b:2").unwrap();
        assert_eq!(serve.endpoints.len(), 2);
        for (args, expected) in [
            ("--listen https://a:1", "https://a:1 needs --cert-file"),
            ("--endpoints https://a:1", "https://a:1 needs --cacert"),
            ("--cacert x", "for endpoints with https"),
            ("--cert x", "--cert and --key go together"),
            ("--endpoints a", "is not a URL"),
            ("--values all --record x", "is not none, sizes or full"),
            ("--values full", "--record"),
            ("--compress zip --record x", "is not zstd, gzip or none"),
            ("--record x --record-queue 0", "at least 1"),
            ("--listen http://a:1 --endpoints http://a:1", "what to stand before"),
            ("--listen-metrics-urls https://a:1", "http only"),
            ("report", "FILE"),
        ] {
            let line = read(args).unwrap_err();
            assert!(line.contains(expected), "{args}: {line}");
        }
    }
}
