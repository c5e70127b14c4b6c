//! Decoded responses in the form in which traces contain them. Most fields with default values
//! are omitted from the JSON.

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
    /// The `count` of a range, or the sum over the ranges of a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Number of key-value pairs in the response, apart from previous and deleted pairs.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub kvs: u64,
    /// Total size of the values of these pairs in bytes.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub value_bytes: u64,
    /// Whether the range contains more keys than the response.
    #[serde(skip_serializing_if = "is_false")]
    pub more: bool,
    /// The mod revision of the pair that a range returned; 0 unless the response has exactly
    /// one range and this range returned exactly one pair.
    #[serde(skip_serializing_if = "is_zero")]
    pub mod_revision: i64,
    /// Number of keys that the deletions deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted: Option<i64>,
    /// The lease, in responses of LeaseGrant, LeaseKeepAlive and LeaseTimeToLive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The watch response, in responses of Watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchResponse>,
    /// Whether the message could not be decoded as a response of its method.
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
    /// Whether the response confirms the creation of the watch.
    #[serde(skip_serializing_if = "is_false")]
    pub created: bool,
    /// Whether the server has cancelled the watch.
    #[serde(skip_serializing_if = "is_false")]
    pub canceled: bool,
    /// Whether more fragments of the response follow.
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    /// The compaction revision, if the watch was cancelled because its start revision is
    /// compacted.
    #[serde(skip_serializing_if = "is_zero")]
    pub compact_revision: i64,
    /// The reason why the watch was cancelled.
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
    /// The size of the value in bytes.
    #[serde(skip_serializing_if = "is_zero_unsigned")]
    pub value_bytes: u64,
    /// Whether the event contains the previous pair.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
}
