//! Nodes.

use std::collections::BTreeMap;

use prost::Message;

use super::meta::{ObjectMeta, Time};

/// A node.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The specification, of which the simulation needs nothing.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<NodeSpec>,
    /// The status.
    #[prost(message, optional, tag = "3")]
    pub status: Option<NodeStatus>,
}

/// The specification of a node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeSpec {}

/// The status of a node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeStatus {
    /// What the node has.
    #[prost(btree_map = "string, message", tag = "1")]
    pub capacity: BTreeMap<String, Quantity>,
    /// What pods may use.
    #[prost(btree_map = "string, message", tag = "2")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// The conditions.
    #[prost(message, repeated, tag = "4")]
    pub conditions: Vec<NodeCondition>,
    /// The addresses.
    #[prost(message, repeated, tag = "5")]
    pub addresses: Vec<NodeAddress>,
    /// The ports of the programs of the node.
    #[prost(message, optional, tag = "6")]
    pub daemon_endpoints: Option<NodeDaemonEndpoints>,
    /// Versions and names of the machine.
    #[prost(message, optional, tag = "7")]
    pub node_info: Option<NodeSystemInfo>,
}

/// A quantity, such as `32` or `256Gi`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Quantity {
    /// The text.
    #[prost(string, tag = "1")]
    pub string: String,
}

/// A condition of a node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeCondition {
    /// The type.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    #[prost(string, tag = "2")]
    pub status: String,
    /// When the condition was last reported.
    #[prost(message, optional, tag = "3")]
    pub last_heartbeat_time: Option<Time>,
    /// When the status last changed.
    #[prost(message, optional, tag = "4")]
    pub last_transition_time: Option<Time>,
    /// The reason.
    #[prost(string, tag = "5")]
    pub reason: String,
    /// The message.
    #[prost(string, tag = "6")]
    pub message: String,
}

/// An address of a node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeAddress {
    /// The type.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// The address.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// The ports of the programs of a node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeDaemonEndpoints {
    /// That of kubelet.
    #[prost(message, optional, tag = "1")]
    pub kubelet_endpoint: Option<DaemonEndpoint>,
}

/// The port of a program.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DaemonEndpoint {
    /// The port.
    #[prost(int32, tag = "1")]
    pub port: i32,
}

/// Versions and names of a machine.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeSystemInfo {
    /// The ID of the machine.
    #[prost(string, tag = "1")]
    pub machine_id: String,
    /// The UUID of the machine.
    #[prost(string, tag = "2")]
    pub system_uuid: String,
    /// The ID of the boot.
    #[prost(string, tag = "3")]
    pub boot_id: String,
    /// The version of the kernel.
    #[prost(string, tag = "4")]
    pub kernel_version: String,
    /// The operating system.
    #[prost(string, tag = "5")]
    pub os_image: String,
    /// The container runtime.
    #[prost(string, tag = "6")]
    pub container_runtime_version: String,
    /// The version of kubelet.
    #[prost(string, tag = "7")]
    pub kubelet_version: String,
    /// The kind of the operating system.
    #[prost(string, tag = "9")]
    pub operating_system: String,
    /// The architecture.
    #[prost(string, tag = "10")]
    pub architecture: String,
}

impl Node {
    /// Whether the condition `Ready` is true.
    pub fn is_ready(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|it| it.r#type == "Ready" && it.status == "True")
    }
}
