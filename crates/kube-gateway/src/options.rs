//! Command-line flags.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

const EXAMPLES: &str = "Examples:
  kube-gateway --config gateway.yaml
  kube-gateway --config gateway.yaml --check
  kube-gateway --config gateway.yaml --listen 0.0.0.0:8443 --servers 10.0.0.1:6443,10.0.0.2:6443

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

Files that change are read again within 10 s, and after SIGHUP at once.";

/// A proxy in front of several kube-apiservers that keeps their load even.
#[derive(Parser, Debug)]
#[command(name = "kube-gateway", version, about, after_help = EXAMPLES, args_override_self = true)]
pub struct Options {
    /// Configuration file. Paths in it are relative to its folder.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Host and port for clients, instead of listen.address.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,

    /// Host and port of /healthz, /livez, /readyz and /metrics, instead of listen.metricsAddress.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<String>,

    /// Host and port of each API server, comma-separated, instead of upstream.servers.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub servers: Vec<String>,

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
