//! Command-line flags.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{LeaseMode, Size, WatchMode, check_address};
use crate::control::ThrottleCommand;

const EXAMPLES: &str = "Examples:
  kube-gateway --config gateway.yaml
  kube-gateway --config gateway.yaml --check
  kube-gateway --config gateway.yaml --listen 0.0.0.0:8443 --servers 10.0.0.1:6443,10.0.0.2:6443
  kube-gateway throttle add --config gateway.yaml --user-agent 'noisy*' --qps 10 --for 10m
  kube-gateway throttle list --config gateway.yaml

A configuration file:
  apiVersion: gateway.k8s-1m.dev/v1alpha1
  kind: GatewayConfiguration
  listen:
    address: 0.0.0.0:6443
    metricsAddress: 127.0.0.1:9443
    certFile: gateway.crt
    keyFile: gateway.key
    clientCaFile: ca.crt             # kube-apiserver's --client-ca-file
  upstream:
    servers: [10.0.0.1:6443, 10.0.0.2:6443]
    caFile: ca.crt
  requestHeader:                     # kube-apiserver's --requestheader-* flags
    certFile: front-proxy.crt
    keyFile: front-proxy.key
  lists:
    maxBytes: 64Mi                   # LIST answers in progress at one API server; 0: no limit
  throttle:                          # requests per second by User-Agent; * only at the end
  - {userAgent: noisy*, qps: 10}
  control:
    socket: gateway.sock             # for kube-gateway throttle
  nodePath:                          # renewals of node Leases without an API server
    store: {endpoints: ['https://10.0.0.1:2379'], caFile: etcd-ca.crt, certFile: etcd.crt, keyFile: etcd.key}
    leases: {mode: shadow}
    watches: {mode: on}              # watches of kubelets, from a cache of the gateway

Files that change are read again within 2 s, and after SIGHUP at once. upstream.servers, balance, lists,
throttle, buffers, accessLog and drainTimeout then apply; other fields need a restart.";

/// A proxy in front of several kube-apiservers that keeps their load even, and protects them from
/// LISTs and from clients that send too much.
#[derive(Parser, Debug)]
#[command(name = "kube-gateway", version, about, after_help = EXAMPLES, args_override_self = true,
          subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct CommandLine {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// How to serve.
    #[command(flatten)]
    pub options: Option<Options>,
}

/// Commands to a running process.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Limit the requests of clients by their User-Agent, while kube-gateway runs. Leases of nodes,
    /// the status of nodes, and users in system:masters are never limited.
    #[command(subcommand)]
    Throttle(ThrottleCommand),
}

/// Flags for serving.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Configuration file. Paths in it are relative to its folder.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Host and port for clients, instead of listen.address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub listen: Option<String>,

    /// Host and port of /healthz, /livez, /readyz and /metrics, instead of listen.metricsAddress.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub metrics_listen: Option<String>,

    /// Host and port of each API server, comma-separated, instead of upstream.servers.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = address)]
    pub servers: Vec<String>,

    /// Predicted bytes of LIST answers in progress at one API server, such as 64Mi, instead of
    /// lists.maxBytes. 0 turns the limit off.
    #[arg(long, value_name = "SIZE")]
    pub list_max_bytes: Option<Size>,

    /// Bytes of all answers that wait for slow clients, instead of buffers.maxBytes.
    #[arg(long, value_name = "SIZE")]
    pub buffer_max_bytes: Option<Size>,

    /// Unix socket for kube-gateway throttle, instead of control.socket.
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,

    /// What happens to renewals of node Leases, instead of nodePath.leases.mode.
    #[arg(long, value_enum, value_name = "MODE")]
    pub node_path_leases: Option<LeaseMode>,

    /// What happens to watches and lists of kubelets, instead of nodePath.watches.mode.
    #[arg(long, value_enum, value_name = "MODE")]
    pub node_path_watches: Option<WatchMode>,

    /// What happens to watches and lists of all Leases, or of a namespace, instead of
    /// nodePath.leases.watch.
    #[arg(long, value_enum, value_name = "MODE")]
    pub node_path_lease_watch: Option<WatchMode>,

    /// Check the configuration and the files that it names, and exit.
    #[arg(long)]
    pub check: bool,

    /// Format of the log, which goes to standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug or trace.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log_level: tracing::Level,
}

/// Formats of the log.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}

fn address(text: &str) -> Result<String, String> {
    check_address(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn values_of_flags_are_checked_before_the_file_is_read() {
        for arguments in [
            &["--listen", "127.0.0.1"][..],
            &["--metrics-listen", ":1"],
            &["--servers", ""],
            &["--servers", "a:1,b:0x"],
        ] {
            let line = [&["kube-gateway", "--config", "none"][..], arguments].concat();
            let error = CommandLine::try_parse_from(line).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{arguments:?}");
        }
        let add = ["kube-gateway", "throttle", "add", "--socket", "none"];
        for arguments in [
            &["--user-agent", "a*b", "--qps", "1"][..],
            &["--user-agent", "", "--qps", "1"],
            &["--user-agent", "a", "--qps", "0"],
            &["--user-agent", "a", "--qps", "nan"],
            &["--user-agent", "a", "--qps=-1"],
            &["--user-agent", "a", "--qps", "1", "--burst", "0"],
        ] {
            let error = CommandLine::try_parse_from([&add[..], arguments].concat()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{arguments:?}");
        }
        for command in ["delete", "remove"] {
            let line = ["kube-gateway", "throttle", command, "--socket", "s", "--user-agent", "a"];
            assert!(CommandLine::try_parse_from(line).is_ok());
        }
    }
}
