//! What the simulation is told at its start.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::Duration;

use crate::rules::Rules;

use super::addresses::Network;
use super::names::NameFormat;
use super::shard::Shard;

/// The settings of a simulation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of nodes that are registered if they do not exist.
    pub nodes: u32,
    /// The names of these nodes.
    pub names: NameFormat,
    /// Nodes with this annotation are adopted.
    pub manage: Option<Annotation>,
    /// Which of all these nodes this process simulates.
    pub shard: Shard,
    /// Which nodes have a connection of their own.
    pub wire: WireNodes,
    /// `leaseDurationSeconds` of Leases.
    pub lease_duration_seconds: u32,
    /// The time between two renewals of a Lease.
    pub lease_interval: Duration,
    /// The time between two reports of the status of a node that has not changed: kubelet's
    /// `nodeStatusReportFrequency`.
    pub status_frequency: Duration,
    /// Nodes that may register at the same time.
    pub start_concurrency: usize,
    /// What a node has that is registered, or that has no capacity.
    pub capacity: Capacity,
    /// The number of zones of registered nodes; 0 for none.
    pub zones: u32,
    /// The address of all nodes.
    pub node_ip: Ipv4Addr,
    /// The addresses of pods.
    pub pod_network: Network,
    /// Whether Events about pods are written.
    pub pod_events: bool,
    /// Whether Events about nodes are written.
    pub node_events: bool,
    /// How containers behave.
    pub rules: Rules,
}

/// An annotation with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Which nodes have a connection and watches of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireNodes {
    /// No node.
    None,
    /// The first ones.
    First(u32),
    /// All nodes.
    All,
}

/// What a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// CPU cores, as a quantity.
    pub cpu: String,
    /// Memory, as a quantity.
    pub memory: String,
    /// The number of pods.
    pub pods: u32,
}

impl FromStr for Annotation {
    type Err = String;

    fn from_str(text: &str) -> Result<Annotation, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Annotation { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("{text:?} is not KEY=VALUE")),
        }
    }
}
