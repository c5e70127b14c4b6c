//! Metadata of objects, and options of requests.

use std::collections::BTreeMap;

use prost::Message;

/// The metadata of an object.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectMeta {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// The UID.
    #[prost(string, tag = "5")]
    pub uid: String,
    /// The version of the object.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// How often the spec was changed.
    #[prost(int64, tag = "7")]
    pub generation: i64,
    /// When the object is deleted at the latest, if that was asked for.
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    /// The time that the object has from the request until then.
    #[prost(int64, optional, tag = "10")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// The labels.
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[prost(btree_map = "string, string", tag = "12")]
    pub annotations: BTreeMap<String, String>,
    /// The objects that this one belongs to.
    #[prost(message, repeated, tag = "13")]
    pub owner_references: Vec<OwnerReference>,
}

/// An object that another one belongs to.
#[derive(Clone, PartialEq, Message)]
pub struct OwnerReference {
    /// The kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The UID.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// The API version.
    #[prost(string, tag = "5")]
    pub api_version: String,
    /// Whether the owner controls the object.
    #[prost(bool, optional, tag = "6")]
    pub controller: Option<bool>,
}

/// A time after 1970.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Time {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds of the second; the server ignores them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A time after 1970 in microseconds, with the same encoding as [`Time`].
pub type MicroTime = Time;

/// How an object is deleted.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteOptions {
    /// The time that the object has.
    #[prost(int64, optional, tag = "1")]
    pub grace_period_seconds: Option<i64>,
    /// What must be true.
    #[prost(message, optional, tag = "2")]
    pub preconditions: Option<Preconditions>,
}

/// What must be true of an object that is deleted.
#[derive(Clone, PartialEq, Message)]
pub struct Preconditions {
    /// Its UID.
    #[prost(string, optional, tag = "1")]
    pub uid: Option<String>,
}
