//! Decoded requests, as traces contain them. Fields with default values are
//! omitted.

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::omit::{is_false, is_zero};
use crate::value::Value;

/// A request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// KV/Range or KV/RangeStream.
    Range(Range),
    /// KV/Put.
    Put(Put),
    /// KV/DeleteRange.
    Delete(Delete),
    /// KV/Txn.
    Txn(Txn),
    /// KV/Compact.
    Compact {
        /// The first revision to keep.
        revision: i64,
        /// Whether to wait until the history is removed from disk.
        physical: bool,
    },
    /// Lease/LeaseGrant.
    LeaseGrant {
        /// The requested lease ID; 0 to let the server choose.
        id: i64,
        /// The requested TTL in seconds.
        ttl: i64,
    },
    /// Lease/LeaseRevoke.
    LeaseRevoke {
        /// The lease ID.
        id: i64,
    },
    /// Lease/LeaseKeepAlive.
    LeaseKeepAlive {
        /// The lease ID.
        id: i64,
    },
    /// Lease/LeaseTimeToLive.
    LeaseTimeToLive {
        /// The lease ID.
        id: i64,
        /// Whether to return the attached keys.
        keys: bool,
    },
    /// Watch/Watch: creates a watch.
    WatchCreate(WatchCreate),
    /// Watch/Watch: cancels a watch.
    WatchCancel {
        /// The watch ID.
        watch_id: i64,
    },
    /// Watch/Watch: requests a progress notification.
    WatchProgress,
    /// A message that is not a request of its method.
    Undecoded,
}

/// etcd's `RangeRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Range {
    /// The key.
    pub key: Key,
    /// The end of the range, in etcd's convention.
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    /// The maximum number of keys.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: i64,
    /// The revision to read; 0 for the current one.
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: i64,
    /// Whether a stale read is allowed.
    #[serde(skip_serializing_if = "is_false")]
    pub serializable: bool,
    /// Whether values are omitted.
    #[serde(skip_serializing_if = "is_false")]
    pub keys_only: bool,
    /// Whether only the count is returned.
    #[serde(skip_serializing_if = "is_false")]
    pub count_only: bool,
    /// The sort order and target, unless both are the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<(i32, i32)>,
    /// `min_mod`, `max_mod`, `min_create`, `max_create`, if any of them is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[i64; 4]>,
}

/// etcd's `PutRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// The lease to attach; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub lease: i64,
    /// Whether the previous pair is returned.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    /// Whether the current value is kept.
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_value: bool,
    /// Whether the current lease is kept.
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_lease: bool,
}

/// etcd's `DeleteRangeRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Delete {
    /// The key.
    pub key: Key,
    /// The end of the range, in etcd's convention.
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    /// Whether the deleted pairs are returned.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
}

/// etcd's `TxnRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Txn {
    /// The comparisons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Compare>,
    /// The operations if all comparisons are true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<Request>,
    /// The operations otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure: Vec<Request>,
}

/// etcd's `Compare`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Compare {
    /// The key.
    pub key: Key,
    /// The end of the range, in etcd's convention.
    #[serde(default, skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    /// `=`, `!=`, `<` or `>`.
    pub result: String,
    /// The field and the value to compare it with.
    pub with: Operand,
}

/// The field of a key that is compared, and the value to compare it with.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// The version.
    Version(i64),
    /// The create revision.
    Create(i64),
    /// The mod revision.
    Mod(i64),
    /// The lease ID.
    Lease(i64),
    /// The value.
    Value(Value),
}

/// etcd's `WatchCreateRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct WatchCreate {
    /// The key.
    pub key: Key,
    /// The end of the range, in etcd's convention.
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    /// The first revision to deliver; 0 for the next revision.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_revision: i64,
    /// Whether progress notifications are sent.
    #[serde(skip_serializing_if = "is_false")]
    pub progress_notify: bool,
    /// Whether events include the previous pair.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    /// Whether large responses may be split.
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    /// The kinds of events to leave out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<i32>,
    /// The requested watch ID; 0 to let the server choose.
    #[serde(skip_serializing_if = "is_zero")]
    pub watch_id: i64,
}

impl Request {
    /// The key of the request. For a transaction, its first key.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Request::Range(range) => Some(&range.key),
            Request::Put(put) => Some(&put.key),
            Request::Delete(delete) => Some(&delete.key),
            Request::WatchCreate(create) => Some(&create.key),
            Request::Txn(txn) => match txn.compare.first() {
                Some(compare) => Some(&compare.key),
                None => txn.success.first().or(txn.failure.first()).and_then(Request::key),
            },
            _ => None,
        }
    }
}
