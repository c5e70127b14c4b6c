//! The objects that a kubelet has beside its Node: its Lease and its CSINode.

use prost::Message;

use super::meta::{MicroTime, ObjectMeta};

/// A Lease.
#[derive(Clone, PartialEq, Message)]
pub struct Lease {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The specification.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<LeaseSpec>,
}

/// The specification of a Lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseSpec {
    /// Who holds the Lease.
    #[prost(string, optional, tag = "1")]
    pub holder_identity: Option<String>,
    /// For how long the Lease is valid after a renewal.
    #[prost(int32, optional, tag = "2")]
    pub lease_duration_seconds: Option<i32>,
    /// When the Lease was last renewed.
    #[prost(message, optional, tag = "4")]
    pub renew_time: Option<MicroTime>,
}

/// A CSINode.
#[derive(Clone, PartialEq, Message)]
pub struct CsiNode {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The specification: the drivers of the node.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<CsiNodeSpec>,
}

/// The specification of a CSINode of a node without drivers.
#[derive(Clone, PartialEq, Message)]
pub struct CsiNodeSpec {}
