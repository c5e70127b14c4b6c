//! Command-line flags. The TLS flags for clients have the names of etcd's flags, and the TLS
//! flags for endpoints those of etcdctl's flags.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use output::Output;
use sockets::{SocketUrl, TlsFiles};
use trace::{Compression, Values};

const EXAMPLES: &str = "Examples:
  etcd-proxy --listen http://127.0.0.1:2378 --endpoints http://127.0.0.1:2379 \\
      --record trace.jsonl.zst
  etcd-proxy report trace.jsonl.zst --html report.html
  etcd-bench replay trace.jsonl.zst --endpoints http://127.0.0.1:2379 --speed max";

/// A transparent proxy for etcd that records requests and responses.
#[derive(Parser, Debug)]
#[command(name = "etcd-proxy", version, about, after_help = EXAMPLES, args_override_self = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub serve: Serve,
}

/// Subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Analyse traces: request shapes, kinds, watches, leases, ranges.
    Report(ReportOptions),
}

/// Flags of the proxy.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// URLs to listen on: http, https, unix or unixs, comma-separated.
    #[arg(
        long,
        default_value = "http://127.0.0.1:2378",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub listen: Vec<SocketUrl>,

    /// URLs of the etcd endpoints, comma-separated. If an endpoint cannot be reached, the next
    /// one is tried.
    #[arg(
        long,
        default_value = "http://127.0.0.1:2379",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub endpoints: Vec<SocketUrl>,

    /// URLs for the proxy's own /health, /readyz, /livez, /metrics and /version, comma-separated,
    /// http and unix only. At the URLs of --listen, these paths are forwarded.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub listen_metrics_urls: Vec<SocketUrl>,

    /// Record a trace to this file. An existing file is kept: for trace.jsonl.zst the next free
    /// name of trace-2.jsonl.zst, trace-3.jsonl.zst, … is used.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Compression of the trace: zstd, gzip or none [default: zstd for the file extension .zst,
    /// gzip for .gz, otherwise none]
    #[arg(long, value_name = "FORMAT", requires = "record")]
    pub compress: Option<Compression>,

    /// What to record of the values in requests: none, sizes (the size), or full (the size and
    /// the content). A replay with the original values requires full. A full trace contains the
    /// content of Secrets.
    #[arg(long, default_value_t, value_name = "AMOUNT", requires = "record")]
    pub values: Values,

    /// Maximum number of events (the end of a call, the start or the end of a stream, or a
    /// message on a stream) that wait to be recorded. Further ones are dropped and counted as
    /// missing.
    #[arg(long, default_value_t = 65_536, value_name = "COUNT", requires = "record")]
    pub record_queue: usize,

    #[command(flatten)]
    pub tls: TlsFiles,

    /// Common names of the clients that are served, comma-separated [default: every client whose
    /// certificate the CA in --trusted-ca-file has signed].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub client_cert_allowed_cn: Vec<String>,

    /// CA certificate for the endpoints.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Client certificate for the endpoints.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,

    /// Private key of the client certificate.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Flags of the report.
#[derive(Args, Debug)]
pub struct ReportOptions {
    /// Traces, in chronological order.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Also write the report as an HTML page to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Serve {
    /// Checks the flags.
    ///
    /// # Errors
    /// Returns a one-line message for the first invalid combination.
    pub fn validate(&self) -> Result<(), String> {
        self.tls.validate(&self.listen)?;
        if let Some(listen) = self.listen_metrics_urls.iter().find(|listen| listen.uses_tls()) {
            return Err(format!("{listen}: --listen-metrics-urls does not support TLS"));
        }
        if !self.client_cert_allowed_cn.is_empty() && self.tls.trusted_ca_file.is_none() {
            return Err("--client-cert-allowed-cn needs --trusted-ca-file".into());
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("--cert and --key must be set together".into());
        }
        match (self.endpoints.iter().find(|endpoint| endpoint.uses_tls()), &self.cacert) {
            (Some(endpoint), None) => return Err(format!("{endpoint} requires --cacert")),
            (None, Some(_)) => return Err("--cacert requires an https endpoint".into()),
            _ => {}
        }
        if self.record_queue == 0 {
            return Err("--record-queue must be at least 1".into());
        }
        if let Some(url) = self.listen.iter().find(|url| self.endpoints.contains(url)) {
            return Err(format!("{url} is in both --listen and --endpoints"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Serve, String> {
        let args = ["etcd-proxy"].into_iter().chain(args.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        options.serve.validate().map(|()| options.serve)
    }

    #[test]
    fn flags_are_checked() {
        let serve = parse("--listen unix:///a --endpoints http://a:1,http://b:2").unwrap();
        assert_eq!(serve.endpoints.len(), 2);
        for (args, expected) in [
            ("--listen https://a:1", "https://a:1 needs --cert-file"),
            ("--endpoints https://a:1", "https://a:1 requires --cacert"),
            ("--cacert x", "requires an https endpoint"),
            ("--cert x", "--cert and --key must be set together"),
            ("--endpoints a", "is not a URL"),
            ("--values all --record x", "must be none, sizes or full"),
            ("--values full", "--record"),
            ("--compress zip --record x", "must be zstd, gzip or none"),
            ("--record x --record-queue 0", "at least 1"),
            ("--listen http://a:1 --endpoints http://a:1", "in both --listen and --endpoints"),
            ("--client-cert-allowed-cn x", "needs --trusted-ca-file"),
            ("--listen-metrics-urls https://a:1", "does not support TLS"),
            ("report", "FILE"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.contains(expected), "{args}: {error}");
        }
    }
}
