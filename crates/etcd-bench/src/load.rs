//! The flags that are valid for all workloads.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use etcd_client::{Connection, TlsFiles};

/// Flags for the amount of load, and for the connections.
#[derive(Args, Debug)]
pub struct Load {
    /// gRPC endpoints, comma-separated. Connections are distributed evenly over them. The
    /// default scheme is http.
    #[arg(long, global = true, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
    pub endpoints: Vec<String>,

    /// Number of HTTP/2 connections. The clients share them.
    #[arg(long, global = true, default_value_t = 1)]
    pub connections: usize,

    /// Number of concurrent clients. Each client executes its operations one after the other.
    #[arg(long, global = true, default_value_t = 1)]
    pub clients: usize,

    /// Number of operations [default: 10000, unless --duration is set]
    #[arg(long, global = true)]
    pub total: Option<u64>,

    /// Duration of the run. Cannot be combined with --total.
    #[arg(long, global = true, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// Operations per second of all clients together; 0 for as many as possible.
    #[arg(long, global = true, default_value_t = 0)]
    pub rate: u64,

    /// Key size in bytes.
    #[arg(long, global = true, default_value_t = 48)]
    pub key_size: usize,

    /// Value size in bytes.
    #[arg(long, global = true, default_value_t = 1024)]
    pub val_size: usize,

    /// Number of different keys.
    #[arg(long, global = true, default_value_t = 10_000)]
    pub key_space_size: u64,

    /// Process ID of the server, if it runs on this machine. The report then contains the CPU
    /// time that the server used during the measurement, per operation.
    #[arg(long, global = true, value_name = "PID")]
    pub server_pid: Option<i32>,

    /// CA certificate that verifies the server's certificate; required for https.
    #[arg(long, global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Client certificate.
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,

    /// Private key of the client certificate.
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl Load {
    /// Whether all flags except those for endpoints and TLS have their default values.
    pub fn is_default(&self) -> bool {
        let numbers = (self.connections, self.clients, self.rate, self.key_size, self.val_size);
        numbers == (1, 1, 0, 48, 1024)
            && self.key_space_size == 10_000
            && self.total.is_none()
            && self.duration.is_none()
            && self.server_pid.is_none()
    }

    /// Opens `count` connections, distributed evenly over the endpoints.
    pub async fn open(&self, count: usize) -> Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for endpoint in self.endpoints.iter().cycle().take(count) {
            connections.push(self.connect(endpoint).await?);
        }
        Ok(connections)
    }

    /// Opens a connection to the endpoint with the index `index`.
    pub async fn open_to_endpoint(&self, index: usize) -> Result<Connection> {
        self.connect(&self.endpoints[index]).await
    }

    async fn connect(&self, endpoint: &str) -> Result<Connection> {
        let files =
            TlsFiles { ca: self.cacert.clone(), cert: self.cert.clone(), key: self.key.clone() };
        anyhow::ensure!(
            files.ca.is_some() || !endpoint.starts_with("https:"),
            "https requires --cacert"
        );
        let connected = etcd_client::connect(endpoint, &files).await;
        let (connection, driver) = connected.with_context(|| format!("connect to {endpoint}"))?;
        tokio::task::spawn_local(driver);
        Ok(connection)
    }
}
