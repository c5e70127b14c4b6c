//! Decoded responses, as traces contain them. Fields with default values are
//! omitted.

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::omit::{is_false, is_zero, is_zero_unsigned};

/// A response of any method. Fields that do not apply to the method are unset.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Response {
    /// The revision in the header.
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: i64,
    /// Whether the comparisons of a transaction were true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,
    /// The count of a range, or the sum for all ranges of a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Number of returned key-value pairs.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub kvs: u64,
    /// Bytes of the returned values.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub value_bytes: u64,
    /// Whether there are more keys than were returned.
    #[serde(skip_serializing_if = "is_false")]
    pub more: bool,
    /// The mod revision of the returned pair, if exactly one was returned.
    #[serde(skip_serializing_if = "is_zero")]
    pub mod_revision: i64,
    /// Number of deleted keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted: Option<i64>,
    /// The lease, for lease methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The watch response, for Watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchResponse>,
    /// Whether the message is not a response of its method.
    #[serde(skip_serializing_if = "is_false")]
    pub undecoded: bool,
}

/// A lease in a response.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Lease {
    /// The lease ID.
    pub id: i64,
    /// The TTL in seconds.
    pub ttl: i64,
    /// Number of attached keys, if they were requested.
    #[serde(default, skip_serializing_if = "is_zero_unsigned")]
    pub keys: u64,
}

/// etcd's `WatchResponse`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct WatchResponse {
    /// The watch ID.
    pub watch_id: i64,
    /// Whether the watch was created.
    #[serde(skip_serializing_if = "is_false")]
    pub created: bool,
    /// Whether the watch was cancelled.
    #[serde(skip_serializing_if = "is_false")]
    pub canceled: bool,
    /// Whether more fragments of the response follow.
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    /// The compacted revision, if the watch was cancelled because of it.
    #[serde(skip_serializing_if = "is_zero")]
    pub compact_revision: i64,
    /// The reason for the cancellation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// An event of a watch.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// The revision of the change.
    pub mod_revision: i64,
    /// Whether the key was deleted.
    #[serde(skip_serializing_if = "is_false")]
    pub delete: bool,
    /// Whether the key was created.
    #[serde(skip_serializing_if = "is_false")]
    pub create: bool,
    /// The size of the value.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub value_bytes: u64,
    /// Whether the previous pair is included.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
}
