//! Command-line flags.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Parser, ValueEnum};

use crate::rules::Rules;
use crate::sim::{Annotation, Capacity, NameFormat, Network, Settings, Shard, WireNodes};

const EXAMPLES: &str = "Examples:
  # 10,000 nodes that are registered if they are missing
  node-sim --kubeconfig admin.conf --nodes 10000

  # all nodes with the annotation that kwok's nodes have, also those that are created later
  node-sim --kubeconfig admin.conf --manage-annotation kwok.x-k8s.io/node=fake

  # 5,000 nodes, each with a connection, a client certificate and the six watches of a kubelet
  node-sim --kubeconfig admin.conf --nodes 5000 --mode wire --client-ca-cert ca.crt --client-ca-key ca.key

Which mode:
  shared  costs least. Nodes send what kubelets send, but over a few connections, as the user of the
          kubeconfig, and all nodes together watch nodes and pods once.
  wire    loads connections, TLS, authentication and the watch cache as real kubelets do. It needs
          one file descriptor for each node.
  mixed   is wire for the first --wire-nodes nodes, and shared for the others.

Rules (--rules FILE) say how containers behave. The first rule that selects a pod decides:
  rules:
  - namespace: default            # optional
    selector: {app: flaky}        # labels that the pod has
    startDelay: 2s                # before each container starts
    initTime: 1s                  # for which each init container runs
    readinessDelay: 3s            # from the start until the containers are ready
    runTime: 30s                  # after which the containers end; without it, they run for ever
    exitCode: 1                   # of containers that fail
    failureProbability: 0.2       # with which they fail; the default is 1 if exitCode is set
    terminationDelay: 5s          # from the deletion until the containers end; at most the grace period

Faults are injected over HTTP at --control-address. Nodes are selected by names, zone, selector, count
(at random among those that match) or all:
  curl -d '{\"count\": 100}' http://127.0.0.1:9480/nodes/stop         # no heartbeats, no status, no pod changes
  curl -d '{\"all\": true}' http://127.0.0.1:9480/nodes/start        # ends all faults
  curl -d '{\"zone\": \"zone-1\", \"down\": \"60s\", \"up\": \"2m\"}' http://127.0.0.1:9480/nodes/flap
  curl -d '{\"selector\": \"a=b\", \"delay\": \"15s\"}' http://127.0.0.1:9480/nodes/slow
The same port has /healthz, /readyz (all nodes have been started) and /metrics.";

/// Simulates the kubelets of many nodes against a real kube-apiserver, or a kube-gateway in front of it.
#[derive(Parser, Clone, Debug)]
#[command(name = "node-sim", version, about, after_help = EXAMPLES, args_override_self = true)]
pub struct Options {
    /// Kubeconfig file with the API server. In mode shared, nodes act as its user, who needs the rights
    /// of all nodes, such as an administrator has.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,

    /// Host and port of the API server or of kube-gateway, instead of that of the kubeconfig.
    #[arg(long, value_name = "ADDRESS")]
    pub server: Option<String>,

    /// How nodes are connected.
    #[arg(long, value_enum, default_value_t = Mode::Shared)]
    pub mode: Mode,

    /// In mode mixed, the number of nodes with a connection of their own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub wire_nodes: u32,

    /// CA that the API server trusts for client certificates, for modes wire and mixed.
    #[arg(long, value_name = "FILE")]
    pub client_ca_cert: Option<PathBuf>,

    /// Private key of this CA.
    #[arg(long, value_name = "FILE")]
    pub client_ca_key: Option<PathBuf>,

    /// The number of connections that nodes share for heartbeats in modes shared and mixed. They share as
    /// many for other requests.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub connections: usize,

    /// The number of nodes that are registered if they do not exist, and simulated.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub nodes: u32,

    /// Names of these nodes, made from their number.
    #[arg(long, value_name = "FORMAT", default_value = "node-%06d")]
    pub node_name_format: NameFormat,

    /// Simulate all nodes with this annotation too, and set it on nodes that are registered.
    #[arg(long, value_name = "KEY=VALUE")]
    pub manage_annotation: Option<Annotation>,

    /// Simulate only a part of these nodes: the processes 0/N to N-1/N together simulate all of them.
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    pub shard: Shard,

    /// CPU of nodes that are registered or have no capacity.
    #[arg(long, value_name = "QUANTITY", default_value = "32")]
    pub node_cpu: String,

    /// Memory of these nodes.
    #[arg(long, value_name = "QUANTITY", default_value = "256Gi")]
    pub node_memory: String,

    /// Pods on each of these nodes.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub node_pods: u32,

    /// The number of zones over which registered nodes are spread: zone-0, zone-1, …; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub zones: u32,

    /// IP address of all nodes.
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::LOCALHOST)]
    pub node_ip: Ipv4Addr,

    /// Network of the IP addresses of pods.
    #[arg(long, value_name = "CIDR", default_value = "10.64.0.0/10")]
    pub pod_cidr: Network,

    /// Validity of a Lease after a renewal. Leases are renewed after a quarter of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 40)]
    pub node_lease_duration_seconds: u32,

    /// Time between two renewals, instead of a quarter of the validity. Up to 4 % are added at random.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub lease_interval: Option<Duration>,

    /// Time between two reports of the status of a node that has not changed. The first one comes after 50
    /// to 150 % of it.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    pub node_status_report_frequency: Duration,

    /// The number of nodes that may register at the same time.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub start_concurrency: usize,

    /// Time before each container starts, unless a rule says something else.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    pub pod_start_delay: Duration,

    /// Time for which pods of Jobs run before they succeed, unless a rule says something else.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pub job_run_time: Duration,

    /// Whether Events about pods are written, as kubelet does.
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    pub pod_events: Switch,

    /// Whether Events about nodes are written when they start, as kubelet does: about six for each node.
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    pub node_events: Switch,

    /// File with rules about the behaviour of containers.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,

    /// Loopback address of the pages for faults, health and metrics. There is no authentication.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9480")]
    pub control_address: SocketAddr,

    /// Seed of random delays and failures, to repeat a run [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Format of the log, which goes to standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug or trace.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log_level: tracing::Level,
}

/// How nodes are connected.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each node has a connection, a client certificate and watches.
    Wire,
    /// Nodes share connections and watches.
    Shared,
    /// The first nodes are as in mode wire, the others as in mode shared.
    Mixed,
}

/// On or off.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// Formats of the log.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}

impl Options {
    /// Checks that the flags are consistent with each other.
    ///
    /// # Errors
    /// Returns a one-line message for the first one that is not.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.nodes > 0 || self.manage_annotation.is_some(),
            "no node is simulated; set --nodes or --manage-annotation"
        );
        let has_ca = self.client_ca_cert.is_some() && self.client_ca_key.is_some();
        match self.mode {
            Mode::Wire | Mode::Mixed if !has_ca => bail!(
                "--mode wire and mixed need --client-ca-cert and --client-ca-key for the certificates of nodes"
            ),
            Mode::Mixed if self.wire_nodes == 0 => bail!("--mode mixed needs --wire-nodes"),
            Mode::Wire | Mode::Shared if self.wire_nodes > 0 => {
                bail!("--wire-nodes is only for --mode mixed")
            }
            Mode::Shared if self.client_ca_cert.is_some() || self.client_ca_key.is_some() => {
                bail!("--client-ca-cert and --client-ca-key are only for --mode wire and mixed")
            }
            _ => {}
        }
        ensure!((1..=64).contains(&self.connections), "--connections must be from 1 to 64");
        ensure!(self.start_concurrency > 0, "--start-concurrency must be at least 1");
        ensure!(
            (1..=86_400).contains(&self.node_lease_duration_seconds),
            "--node-lease-duration-seconds must be from 1 to 86400"
        );
        ensure!(
            self.interval() >= Duration::from_millis(100),
            "--lease-interval must be at least 100ms"
        );
        ensure!(
            self.node_status_report_frequency >= Duration::from_secs(1),
            "--node-status-report-frequency must be at least 1s"
        );
        ensure!(
            self.control_address.ip().is_loopback(),
            "--control-address {}: must be a loopback address, because there is no authentication",
            self.control_address
        );
        Ok(())
    }

    fn interval(&self) -> Duration {
        let quarter = Duration::from_secs(self.node_lease_duration_seconds.into()) / 4;
        self.lease_interval.unwrap_or(quarter)
    }

    /// The settings of the simulation.
    ///
    /// # Errors
    /// If the rules cannot be read.
    pub fn settings(&self) -> Result<Settings> {
        let mut rules = Rules::new(self.pod_start_delay, self.job_run_time);
        if let Some(file) = &self.rules {
            rules.read(file)?;
        }
        Ok(Settings {
            nodes: self.nodes,
            names: self.node_name_format.clone(),
            manage: self.manage_annotation.clone(),
            shard: self.shard,
            wire: match self.mode {
                Mode::Shared => WireNodes::None,
                Mode::Wire => WireNodes::All,
                Mode::Mixed => WireNodes::First(self.wire_nodes),
            },
            lease_duration_seconds: self.node_lease_duration_seconds,
            lease_interval: self.interval(),
            status_frequency: self.node_status_report_frequency,
            start_concurrency: self.start_concurrency,
            capacity: Capacity {
                cpu: self.node_cpu.clone(),
                memory: self.node_memory.clone(),
                pods: self.node_pods,
            },
            zones: self.zones,
            node_ip: self.node_ip,
            pod_network: self.pod_cidr,
            pod_events: self.pod_events == Switch::On,
            node_events: self.node_events == Switch::On,
            rules,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Result<Options> {
        let line = [&["node-sim", "--kubeconfig", "k"][..], arguments].concat();
        let options = Options::try_parse_from(line)?;
        options.check().map(|()| options)
    }

    #[test]
    fn leases_are_renewed_after_a_quarter_of_their_validity() {
        let settings = options(&["--nodes", "1"]).unwrap().settings().unwrap();
        assert_eq!(settings.lease_interval, Duration::from_secs(10));
        let longer = ["--nodes", "1", "--node-lease-duration-seconds", "100"];
        assert_eq!(options(&longer).unwrap().interval(), Duration::from_secs(25));
        let given = [&longer[..], &["--lease-interval", "7s"]].concat();
        assert_eq!(options(&given).unwrap().interval(), Duration::from_secs(7));
    }

    #[test]
    fn flags_that_contradict_each_other_are_rejected() {
        let ca = ["--client-ca-cert", "c", "--client-ca-key", "k"];
        assert!(options(&[&["--nodes", "1", "--mode", "wire"][..], &ca].concat()).is_ok());
        for arguments in [
            &[][..],
            &["--nodes", "1", "--mode", "wire"],
            &[&["--nodes", "1", "--mode", "mixed"][..], &ca].concat(),
            &[&["--nodes", "1"][..], &ca].concat(),
            &["--nodes", "1", "--wire-nodes", "1"],
            &["--nodes", "1", "--connections", "0"],
            &["--nodes", "1", "--control-address", "0.0.0.0:1"],
            &["--nodes", "1", "--lease-interval", "1ms"],
            &["--nodes", "1", "--node-status-report-frequency", "10ms"],
            &["--nodes", "1", "--node-name-format", "x"],
            &["--manage-annotation", "x"],
            &["--nodes", "1", "--shard", "1/1"],
            &["--nodes", "1", "--shard", "1"],
        ] {
            assert!(options(arguments).is_err(), "{arguments:?}");
        }
    }
}
