//! The objects of Kubernetes that a kubelet reads and writes, in protobuf.
//!
//! The messages have the fields that the simulation needs. Other fields are skipped when an object is
//! read. No object that was read is written again, except Leases, whose bytes are kept (see the crate
//! `node-lease`).
//!
//! Sources: the `generated.proto` of `k8s.io/api/core/v1`, `coordination/v1`, `storage/v1`, and of
//! `k8s.io/apimachinery/pkg/apis/meta/v1` and `pkg/runtime`.

mod envelope;
mod event;
mod meta;
mod nested;
mod node;
mod node_objects;
mod pod;
mod status;
mod token;
mod uid;
mod volumes;
mod watch;

pub use envelope::{decode, decode_uid, encode};
pub use event::{Event, EventSource, ObjectReference};
pub use meta::{DeleteOptions, ObjectMeta, OwnerReference, Preconditions, Time};
pub use node::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus,
    NodeSystemInfo, Quantity,
};
pub use node_objects::{CsiNode, CsiNodeSpec, Lease, LeaseSpec};
#[cfg(test)]
pub use pod::PodCondition;
pub use pod::{Container, Pod, PodList, PodSpec, PodStatus};
pub use status::status_message;
#[cfg(test)]
pub use token::TokenRequestStatus;
pub use token::{BoundObjectReference, TokenRequest, TokenRequestSpec};
pub use uid::Uid;
pub use volumes::{ConfigMap, LocalReference, Referrer, Secret, VolumeSource};
#[cfg(test)]
pub use volumes::{
    EnvFromSource, EnvVar, EnvVarSource, FifthSecret, NamedSecret, Projected, Projection,
    TokenProjection, Volume,
};
pub use watch::{Change, EventSplitter, Malformed, WatchedEvent};
