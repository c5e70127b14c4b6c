//! Kubernetes Lease objects, encoded as the API server stores them.
//!
//! Source: `k8s.io/api/coordination/v1/generated.proto`,
//! `k8s.io/apimachinery/pkg/runtime/generated.proto` (Unknown),
//! `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message;

/// The prefix of the keys of node Leases.
pub const PREFIX: &str = "/registry/leases/kube-node-lease/";
/// The bytes with which a protobuf object starts in the store.
pub const MAGIC: &[u8] = b"k8s\0";
/// The `leaseDurationSeconds` that kubelets set by default.
const LEASE_DURATION_SECONDS: i32 = 40;

#[derive(Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Message)]
struct LeaseObject {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<LeaseSpec>,
}

#[derive(Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(message, optional, tag = "8")]
    creation: Option<Time>,
    #[prost(message, repeated, tag = "13")]
    owners: Vec<OwnerReference>,
}

#[derive(Message)]
struct OwnerReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
}

#[derive(Message)]
struct LeaseSpec {
    #[prost(string, tag = "1")]
    holder: String,
    #[prost(int32, tag = "2")]
    duration_seconds: i32,
    #[prost(message, optional, tag = "4")]
    renewed: Option<Time>,
}

/// A time of Kubernetes.
#[derive(Message, Clone, Copy)]
pub struct Time {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds since the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The Lease object of a node.
pub struct NodeLease {
    name: String,
    created: Time,
}

impl NodeLease {
    /// Creates the Lease of the node with number `node`.
    pub fn new(node: u64) -> Self {
        NodeLease { name: format!("node-{node:07}"), created: Time { nanos: 0, ..Time::now() } }
    }

    /// The key under which the API server stores the Lease.
    pub fn key(&self) -> Bytes {
        format!("{PREFIX}{}", self.name).into()
    }

    /// Encodes the Lease with `now` as `renewTime`.
    pub fn encode_renewed(&self, now: Time) -> Vec<u8> {
        let uid = |kind: &str| format!("00000000-0000-4000-{kind}-{:0>12}", &self.name[5..]);
        let object = LeaseObject {
            metadata: Some(ObjectMeta {
                name: self.name.clone(),
                namespace: "kube-node-lease".into(),
                uid: uid("8000"),
                creation: Some(self.created),
                owners: vec![OwnerReference {
                    kind: "Node".into(),
                    name: self.name.clone(),
                    uid: uid("9000"),
                    api_version: "v1".into(),
                }],
            }),
            spec: Some(LeaseSpec {
                holder: self.name.clone(),
                duration_seconds: LEASE_DURATION_SECONDS,
                renewed: Some(now),
            }),
        };
        let unknown = Unknown {
            type_meta: Some(TypeMeta {
                api_version: "coordination.k8s.io/v1".into(),
                kind: "Lease".into(),
            }),
            raw: object.encode_to_vec(),
            content_encoding: String::new(),
            content_type: String::new(),
        };
        let mut bytes = MAGIC.to_vec();
        unknown.encode(&mut bytes).expect("encoding into a vector cannot fail");
        bytes
    }
}

impl Time {
    /// The current time, as precise as a MicroTime of Kubernetes.
    pub fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time { seconds: now.as_secs() as i64, nanos: now.subsec_micros() as i32 * 1000 }
    }
}
