//! Command-line flags. Flags that etcd's own benchmark tool also has, have the same names.

use clap::{Parser, Subcommand};
use output::Output;

use crate::key_group::KeyGroup;
use crate::load::Load;
use crate::replay::ReplayOptions;

const EXAMPLES: &str = "Examples:
  etcd-bench put --connections 10 --clients 500 --total 500000 --val-size 1024
  etcd-bench lease-flood --clients 100 --duration 30s --rate 10000
  etcd-bench lease-flood --existing --clients 64 --duration 30s --rate 1000
  etcd-bench watch --watchers 100 --clients 10 --duration 10s
  etcd-bench range --key-space-size 100000 --val-size 1536 --page 10000 --total 10
  etcd-bench range --prefix /registry/pods/ --page 500 --pages 1 --clients 10 --total 1000
  etcd-bench replay trace.jsonl.zst --endpoints http://127.0.0.1:2379 --speed max
  etcd-bench fill --clients 64 --keys /registry/minions/node-=1000x1229 --key-size 8";

/// A load generator for servers with etcd's v3 API.
#[derive(Parser, Debug)]
#[command(name = "etcd-bench", version, about, after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    pub workload: Workload,

    #[command(flatten)]
    pub load: Load,

    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Workloads.
#[derive(Subcommand, Debug)]
pub enum Workload {
    /// Put random keys of the key space.
    Put,
    /// Put random keys of the key space, each in a transaction without comparisons.
    TxnPut,
    /// Write the key space and then read all of it repeatedly, or read existing keys (--prefix).
    Range {
        /// Maximum number of keys per request; 0 for all keys in one request.
        #[arg(long, default_value_t = 0)]
        page: i64,
        /// Number of pages of a read; 0 for all.
        #[arg(long, default_value_t = 0, requires = "page")]
        pages: u64,
        /// Only count the keys.
        #[arg(long, conflicts_with_all = ["page", "stream"])]
        count_only: bool,
        /// Read with RangeStream instead of Range.
        #[arg(long, conflicts_with = "page")]
        stream: bool,
        /// Read the existing keys with this prefix, and do not write the key space.
        #[arg(long)]
        prefix: Option<String>,
    },
    /// Put each key of the given groups once.
    Fill {
        /// Keys to write: PREFIX=COUNTxBYTES or PREFIX=COUNTxMIN-MAX, where BYTES, MIN
        /// and MAX are value sizes; can be repeated. A key consists of the prefix and a
        /// number of at least seven digits, padded with zeros to --key-size.
        #[arg(long = "keys", value_name = "KEYS", required = true)]
        groups: Vec<KeyGroup>,
    },
    /// Put random keys of the key space, and count the events that watchers of it receive.
    Watch {
        /// Number of watchers. Each watches the whole key space.
        #[arg(long, default_value_t = 100)]
        watchers: usize,
        /// Number of connections for the watchers, in addition to those of the clients.
        #[arg(long, default_value_t = 1)]
        watch_connections: usize,
        /// Use the clients' connections for the watchers.
        #[arg(long)]
        shared: bool,
    },
    /// Write the key space, and then get and put random keys of it.
    Mixed {
        /// Share of reads, in percent.
        #[arg(long, default_value_t = 50)]
        read_percent: u32,
    },
    /// Create and renew Kubernetes Lease objects, as kubelets do, or renew those of a cluster.
    LeaseFlood {
        /// Number of Leases per client.
        #[arg(long, default_value_t = 100)]
        leases: u64,
        /// Create no Leases. Renew those of the nodes in /registry/leases/kube-node-lease/ in turn, each
        /// client its share. Of an object only the renewTime changes. A Lease that another client has
        /// changed is read again.
        #[arg(long, conflicts_with = "leases")]
        existing: bool,
    },
    /// Replay an etcd-proxy trace in the recorded order and compare the responses.
    Replay(ReplayOptions),
}

impl Options {
    /// Checks the flags.
    ///
    /// # Errors
    /// Returns a one-line message for the first invalid combination.
    pub fn validate(&self) -> Result<(), String> {
        let load = &self.load;
        match &self.workload {
            Workload::Mixed { read_percent } if *read_percent > 100 => {
                return Err("--read-percent must be at most 100".into());
            }
            Workload::Watch { watch_connections: 0, .. } => {
                return Err("--watch-connections must be at least 1".into());
            }
            Workload::Fill { .. } if load.total.is_some() || load.duration.is_some() => {
                return Err("fill writes all --keys; remove --total and --duration".into());
            }
            Workload::Replay(_) if !load.is_default() => {
                return Err("replay determines the load from the trace; remove all other flags except --speed, --output, --endpoints and those for TLS".into());
            }
            Workload::LeaseFlood { leases: 0, .. } => {
                return Err("--leases must be at least 1".into());
            }
            _ => {}
        }
        match () {
            () if load.connections == 0 => Err("--connections must be at least 1".into()),
            () if load.clients == 0 => Err("--clients must be at least 1".into()),
            () if load.key_space_size == 0 => Err("--key-space-size must be at least 1".into()),
            () if load.total == Some(0) => Err("--total must be at least 1".into()),
            () if load.key_size < 8 => Err("--key-size must be at least 8".into()),
            () if load.total.is_some() && load.duration.is_some() => {
                Err("--total and --duration are mutually exclusive".into())
            }
            () if load.cert.is_some() != load.key.is_some() => {
                Err("--cert and --key must be set together".into())
            }
            () => Ok(()),
        }
    }

    /// The name of the workload on the command line.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses and checks a command line.
    fn check(line: &str) -> Result<(), String> {
        let words = std::iter::once("etcd-bench").chain(line.split(' '));
        Options::try_parse_from(words).map_err(|error| error.to_string())?.validate()
    }

    #[test]
    fn a_number_of_pages_needs_pages() {
        assert_eq!(check("range --page 500 --pages 1"), Ok(()));
        assert_eq!(check("range --count-only --prefix /registry/"), Ok(()));
        for line in
            ["range --pages 1", "range --count-only --page 500", "range --count-only --stream"]
        {
            assert!(check(line).is_err(), "{line}");
        }
    }

    #[test]
    fn existing_leases_have_no_number() {
        assert_eq!(check("lease-flood"), Ok(()));
        assert_eq!(check("lease-flood --leases 7"), Ok(()));
        assert_eq!(check("lease-flood --existing --rate 1000 --duration 1s"), Ok(()));
        assert!(check("lease-flood --leases 0").unwrap_err().contains("--leases must be"));
        let both = check("lease-flood --existing --leases 100").unwrap_err();
        assert!(both.contains("'--existing' cannot be used with '--leases"), "{both}");
    }
}
