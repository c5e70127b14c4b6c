//! Pods.

use prost::Message;

use super::meta::{ObjectMeta, Time};
use super::volumes::{EnvFromSource, EnvVar, LocalReference, Volume};

/// A pod.
#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The specification.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<PodSpec>,
    /// The status.
    #[prost(message, optional, tag = "3")]
    pub status: Option<PodStatus>,
}

/// A list of pods.
#[derive(Clone, PartialEq, Message)]
pub struct PodList {
    /// The pods.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<Pod>,
}

/// The specification of a pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodSpec {
    /// The volumes.
    #[prost(message, repeated, tag = "1")]
    pub volumes: Vec<Volume>,
    /// The containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// `Always`, `OnFailure` or `Never`.
    #[prost(string, tag = "3")]
    pub restart_policy: String,
    /// The service account.
    #[prost(string, tag = "8")]
    pub service_account_name: String,
    /// The node.
    #[prost(string, tag = "10")]
    pub node_name: String,
    /// Whether the pod uses the network of its node.
    #[prost(bool, tag = "11")]
    pub host_network: bool,
    /// Secrets with which images are pulled.
    #[prost(message, repeated, tag = "15")]
    pub image_pull_secrets: Vec<LocalReference>,
    /// The containers that run before the others, one after the other.
    #[prost(message, repeated, tag = "20")]
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Container {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The image.
    #[prost(string, tag = "2")]
    pub image: String,
    /// Variables.
    #[prost(message, repeated, tag = "7")]
    pub env: Vec<EnvVar>,
    /// Objects whose keys are variables.
    #[prost(message, repeated, tag = "19")]
    pub env_from: Vec<EnvFromSource>,
    /// `Always` for an init container that runs as long as the pod, otherwise empty.
    #[prost(string, tag = "24")]
    pub restart_policy: String,
}

/// The status of a pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodStatus {
    /// The phase.
    #[prost(string, tag = "1")]
    pub phase: String,
    /// The conditions.
    #[prost(message, repeated, tag = "2")]
    pub conditions: Vec<PodCondition>,
    /// The IP address.
    #[prost(string, tag = "6")]
    pub pod_ip: String,
    /// When kubelet saw the pod.
    #[prost(message, optional, tag = "7")]
    pub start_time: Option<Time>,
}

/// A condition of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodCondition {
    /// The type.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    #[prost(string, tag = "2")]
    pub status: String,
}

impl PodStatus {
    /// Whether the condition `Ready` is true.
    pub fn is_ready(&self) -> bool {
        self.conditions.iter().any(|it| it.r#type == "Ready" && it.status == "True")
    }
}
