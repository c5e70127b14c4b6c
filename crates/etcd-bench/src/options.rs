//! Flags. Where etcd's own benchmark has a flag, it has the same name here.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use output::Output;

use crate::group::Group;
use crate::replay::ReplayOptions;

const EXAMPLES: &str = "Examples:
  etcd-bench put --connections 10 --clients 500 --total 500000 --val-size 1024
  etcd-bench lease-flood --clients 100 --duration 30s --rate 10000
  etcd-bench watch --watchers 100 --clients 10 --duration 10s
  etcd-bench range --key-space-size 100000 --val-size 1536 --page 10000 --total 10
  etcd-bench replay trace.jsonl.zst --endpoints http://127.0.0.1:2379 --speed max
  etcd-bench fill --clients 64 --keys /registry/minions/node-=1000x1229 --key-size 8";

/// Load for anything that speaks etcd's v3 API.
#[derive(Parser, Debug)]
#[command(name = "etcd-bench", version, about, after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    pub workload: Workload,

    #[command(flatten)]
    pub load: Load,

    /// How the result is printed.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// How much, over what.
#[derive(Args, Debug)]
pub struct Load {
    /// gRPC endpoints, comma-separated; connections are spread over them. Without
    /// a scheme it is http.
    #[arg(long, global = true, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
    pub endpoints: Vec<String>,

    /// HTTP/2 connections, shared by the clients.
    #[arg(long, global = true, default_value_t = 1)]
    pub connections: usize,

    /// Clients; each has one operation under way at a time.
    #[arg(long, global = true, default_value_t = 1)]
    pub clients: usize,

    /// Operations to do [default: 10000, if there is no --duration]
    #[arg(long, global = true)]
    pub total: Option<u64>,

    /// Time to run, instead of a number of operations.
    #[arg(long, global = true, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// Operations a second, over all clients; 0 is as fast as it goes.
    #[arg(long, global = true, default_value_t = 0)]
    pub rate: u64,

    /// Bytes of a key.
    #[arg(long, global = true, default_value_t = 48)]
    pub key_size: usize,

    /// Bytes of a value.
    #[arg(long, global = true, default_value_t = 1024)]
    pub val_size: usize,

    /// Different keys.
    #[arg(long, global = true, default_value_t = 10_000)]
    pub key_space_size: u64,

    /// Process ID of the server, if it runs on this machine: its CPU while
    /// operations are measured is then reported as well.
    #[arg(long, global = true, value_name = "PID")]
    pub server_pid: Option<i32>,

    /// CA that signed the server's certificate.
    #[arg(long, global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Certificate to show to the server.
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,

    /// Its key.
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// What each operation is.
#[derive(Subcommand, Debug)]
pub enum Workload {
    /// Write random keys.
    Put,
    /// Write random keys in transactions of one write, without a comparison.
    TxnPut,
    /// Read the whole key space, which is written first, or what is there already.
    Range {
        /// Keys of a page; 0 reads everything at once.
        #[arg(long, default_value_t = 0)]
        page: i64,
        /// Read by RangeStream.
        #[arg(long, conflicts_with = "page")]
        stream: bool,
        /// Read the keys below this prefix, which are there already.
        #[arg(long)]
        prefix: Option<String>,
    },
    /// Write each key of a population once.
    Fill {
        /// So many keys below a prefix, with values of so many bytes:
        /// PREFIX=COUNTxBYTES or PREFIX=COUNTxMIN-MAX; can be repeated. A key is
        /// the prefix and a number of at least seven digits, filled up with zeros
        /// to --key-size.
        #[arg(long = "keys", value_name = "KEYS", required = true)]
        groups: Vec<Group>,
    },
    /// Write keys that many watch; counts and times the events.
    Watch {
        /// Watchers of the whole key space.
        #[arg(long, default_value_t = 100)]
        watchers: usize,
        /// Connections for the watchers, apart from those that write.
        #[arg(long, default_value_t = 1)]
        watch_connections: usize,
        /// Let the watchers share the connections of the writers.
        #[arg(long)]
        shared: bool,
    },
    /// Read and write single keys.
    Mixed {
        /// Share of reads, in percent.
        #[arg(long, default_value_t = 50)]
        read_percent: u32,
    },
    /// Create Kubernetes Leases and renew them, as nodes do.
    LeaseFlood {
        /// Leases of each client.
        #[arg(long, default_value_t = 100)]
        leases: u64,
    },
    /// Ask what was recorded by etcd-proxy, in its order, and compare the answers.
    Replay(ReplayOptions),
}

impl Load {
    /// Whether nothing was said of how much, over what.
    fn is_default(&self) -> bool {
        let numbers = (self.connections, self.clients, self.rate, self.key_size, self.val_size);
        numbers == (1, 1, 0, 48, 1024)
            && self.key_space_size == 10_000
            && self.total.is_none()
            && self.duration.is_none()
            && self.server_pid.is_none()
    }
}

impl Options {
    /// Says in one line what does not fit.
    pub fn validate(&self) -> Result<(), String> {
        let load = &self.load;
        match &self.workload {
            Workload::Mixed { read_percent } if *read_percent > 100 => {
                return Err("--read-percent is at most 100".into());
            }
            Workload::Watch { watch_connections: 0, .. } => {
                return Err("--watch-connections must be at least 1".into());
            }
            Workload::Fill { .. } if load.total.is_some() || load.duration.is_some() => {
                return Err("fill writes all of --keys: no --total, no --duration".into());
            }
            Workload::Replay(_) if !load.is_default() => {
                return Err("replay does what was recorded: of the load only --endpoints".into());
            }
            Workload::LeaseFlood { leases: 0 } => return Err("--leases must be at least 1".into()),
            _ => {}
        }
        match () {
            () if load.connections == 0 => Err("--connections must be at least 1".into()),
            () if load.clients == 0 => Err("--clients must be at least 1".into()),
            () if load.key_space_size == 0 => Err("--key-space-size must be at least 1".into()),
            () if load.total == Some(0) => Err("--total must be at least 1".into()),
            () if load.key_size < 8 => Err("--key-size must be at least 8".into()),
            () if load.total.is_some() && load.duration.is_some() => {
                Err("--total and --duration exclude each other".into())
            }
            () if load.cert.is_some() != load.key.is_some() => {
                Err("--cert and --key go together".into())
            }
            () => Ok(()),
        }
    }

    /// The workload's name on the command line.
    pub fn name(&self) -> &'static str {
        match self.workload {
            Workload::Put => "put",
            Workload::TxnPut => "txn-put",
            Workload::Range { .. } => "range",
            Workload::Fill { .. } => "fill",
            Workload::Watch { .. } => "watch",
            Workload::Mixed { .. } => "mixed",
            Workload::LeaseFlood { .. } => "lease-flood",
            Workload::Replay(_) => "replay",
        }
    }
}
