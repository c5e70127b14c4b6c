//! The configuration file: a versioned YAML document, checked as a whole before it is used.

mod duration;
mod limits;
mod load;
mod node_path;
mod size;

use std::path::PathBuf;

use serde::Deserialize;

pub use duration::Span;
pub use limits::{Buffers, Control, Lists, ThrottleRule};
#[cfg(test)]
pub use load::example;
pub use load::{check, check_address, load};
pub use node_path::{LeaseMode, NodePath, Store, WatchMode};
pub use size::Size;

/// The only version so far.
pub const API_VERSION: &str = "gateway.k8s-1m.dev/v1alpha1";
/// The kind of the document.
pub const KIND: &str = "GatewayConfiguration";

/// The content of the configuration file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Configuration {
    /// Must be [`API_VERSION`].
    pub api_version: String,
    /// Must be [`KIND`].
    pub kind: String,
    /// Where clients connect.
    pub listen: Listen,
    /// How API servers are reached.
    pub upstream: Upstream,
    /// How a user is passed to an API server.
    pub request_header: RequestHeader,
    /// When connections move to another API server.
    #[serde(default)]
    pub balance: Balance,
    /// The access log.
    #[serde(default)]
    pub access_log: AccessLog,
    /// The limit for LISTs.
    #[serde(default)]
    pub lists: Lists,
    /// The throttle for clients by their User-Agent. The first rule that matches applies.
    #[serde(default)]
    pub throttle: Vec<ThrottleRule>,
    /// Bounds of the gateway's own memory.
    #[serde(default)]
    pub buffers: Buffers,
    /// The commands to the running process.
    #[serde(default)]
    pub control: Control,
    /// Serving requests of nodes without an API server.
    #[serde(default)]
    pub node_path: NodePath,
    /// How long running requests may take after SIGTERM.
    #[serde(default = "default_drain")]
    pub drain_timeout: Span,
}

/// Where clients connect.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Listen {
    /// Host and port for clients, for example `0.0.0.0:6443`.
    pub address: String,
    /// Host and port of /healthz, /livez, /readyz and /metrics, without TLS.
    pub metrics_address: String,
    /// Serving certificate and its chain, PEM.
    pub cert_file: PathBuf,
    /// Private key of the certificate, PEM.
    pub key_file: PathBuf,
    /// The CA that signs the certificates of clients, as kube-apiserver's `--client-ca-file`.
    pub client_ca_file: PathBuf,
    /// TLS handshakes per second; further clients wait.
    #[serde(default = "default_handshakes")]
    pub handshakes_per_second: u32,
    /// Streams of one HTTP/2 connection. kube-apiserver's limit is 100 too.
    #[serde(default = "default_streams")]
    pub max_streams: u32,
}

/// How API servers are reached.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Upstream {
    /// Host and port of each API server.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Finds the API servers by the EndpointSlices of the Service `kubernetes`. `servers` are then
    /// only asked for these EndpointSlices.
    #[serde(default)]
    pub discover: bool,
    /// The CA of the API servers' serving certificates.
    pub ca_file: PathBuf,
    /// The name in the API servers' certificates, if it is not the host in `servers`.
    #[serde(default)]
    pub server_name: Option<String>,
    /// Timeout for connecting to an API server, with the TLS handshake.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout: Span,
    /// Time between two reads of /readyz.
    #[serde(default = "default_probe_period")]
    pub probe_period: Span,
}

/// How a user is passed to an API server. The names must be those of kube-apiserver's flags
/// `--requestheader-*`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RequestHeader {
    /// The front-proxy certificate, PEM.
    pub cert_file: PathBuf,
    /// Private key of the front-proxy certificate, PEM.
    pub key_file: PathBuf,
    /// Field of the user's name.
    #[serde(default = "default_username_field")]
    pub username_header: String,
    /// Field of the user's UID.
    #[serde(default = "default_uid_field")]
    pub uid_header: String,
    /// Field of each group.
    #[serde(default = "default_group_field")]
    pub group_header: String,
    /// Prefix of the fields of extra values.
    #[serde(default = "default_extra_prefix")]
    pub extra_header_prefix: String,
}

/// When connections move to another API server.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Balance {
    /// Connections are moved from an API server whose load is above the mean by this share.
    pub imbalance: f64,
    /// Connections moved per second and API server, at most.
    pub moves_per_second: f64,
    /// Number of answers 429 in a row after which an API server loses connections.
    pub too_many_requests: u32,
}

/// The access log.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AccessLog {
    /// Share of the requests that are logged, from 0 to 1. Failed requests (5xx) are always logged
    /// if it is above 0.
    pub sample: f64,
}

impl Default for Balance {
    fn default() -> Self {
        Balance { imbalance: 0.2, moves_per_second: 20.0, too_many_requests: 50 }
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        AccessLog { sample: 0.0 }
    }
}

fn default_drain() -> Span {
    Span::from_secs(30)
}

fn default_handshakes() -> u32 {
    1000
}

fn default_streams() -> u32 {
    100
}

fn default_connect_timeout() -> Span {
    Span::from_secs(5)
}

fn default_probe_period() -> Span {
    Span::from_secs(1)
}

fn default_username_field() -> String {
    "X-Remote-User".into()
}

fn default_uid_field() -> String {
    "X-Remote-Uid".into()
}

fn default_group_field() -> String {
    "X-Remote-Group".into()
}

fn default_extra_prefix() -> String {
    "X-Remote-Extra-".into()
}
