//! Decoded requests in the form in which traces contain them. Most fields with default values
//! are omitted from the JSON.

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
        /// The compaction revision. Reads at older revisions fail afterwards.
        revision: i64,
        /// Whether the server responds only after it has removed the compacted history.
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
    /// A message that could not be decoded as a request of its method.
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
    /// Whether the server may return stale data.
    #[serde(skip_serializing_if = "is_false")]
    pub serializable: bool,
    /// Whether the pairs are returned without values.
    #[serde(skip_serializing_if = "is_false")]
    pub keys_only: bool,
    /// Whether only the count is returned.
    #[serde(skip_serializing_if = "is_false")]
    pub count_only: bool,
    /// The sort order and the sort target as numbers of etcd's enums; `None` if both are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<(i32, i32)>,
    /// `min_mod_revision`, `max_mod_revision`, `min_create_revision` and
    /// `max_create_revision`; `None` if all are 0.
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
    /// Whether the response contains the previous pair.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    /// Whether the put keeps the key's current value.
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_value: bool,
    /// Whether the put keeps the key's current lease.
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
    /// Whether the response contains the deleted pairs.
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
    /// The operations that are executed if all comparisons are true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<Request>,
    /// The operations that are executed if a comparison is false.
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
    /// The field that is compared, and the operand with which it is compared.
    pub with: Operand,
}

/// The field of a pair that is compared, and the operand with which it is compared.
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
    /// The revision of the first event; 0 for the next revision.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_revision: i64,
    /// Whether the server sends progress notifications.
    #[serde(skip_serializing_if = "is_false")]
    pub progress_notify: bool,
    /// Whether events contain the previous pair.
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    /// Whether the server may split a large response into fragments.
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    /// The types of events that are not delivered, as numbers of etcd's enum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<i32>,
    /// The requested watch ID; 0 to let the server choose.
    #[serde(skip_serializing_if = "is_zero")]
    pub watch_id: i64,
}

impl Request {
    /// The key of the request. For a transaction, the key of its first comparison, or of its
    /// first operation if it has no comparisons.
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
