//! The lines of a recording. Times are nanoseconds since it began, sizes are bytes of
//! messages without gRPC's five in front.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::key::{self, Key};

/// Of the format; readers refuse others.
pub const VERSION: u32 = 1;

/// What is kept of values.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    None,
    #[default]
    Sizes,
    Full,
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Values::None),
            "sizes" => Ok(Values::Sizes),
            "full" => Ok(Values::Full),
            _ => Err("is not none, sizes or full".into()),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Values::None => "none",
            Values::Sizes => "sizes",
            Values::Full => "full",
        })
    }
}

/// One line.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    Head(Head),
    Call(Box<Call>),
    Open(Open),
    Sent(Sent),
    Received(Received),
    End(End),
    Missing(Missing),
}

/// The first line.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub version: u32,
    /// Who wrote it.
    pub program: String,
    /// Time 0, on the clock on the wall.
    pub started_unix_ns: u64,
    pub endpoints: Vec<String>,
    pub values: Values,
}

/// A call of one request and one response; written when it is over.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// When its header came.
    pub time: u64,
    pub latency: u64,
    pub conn: u64,
    pub stream: u32,
    /// HTTP/2's path.
    pub method: String,
    pub request_bytes: u64,
    pub response_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Of a transaction, normalised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Missing where it could not be decoded, or has no fields that matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
    pub end: Outcome,
}

/// A stream begins.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Open {
    pub time: u64,
    pub conn: u64,
    pub stream: u32,
    pub method: String,
}

/// A message of the client on a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Sent {
    pub time: u64,
    pub conn: u64,
    pub stream: u32,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
}

/// A message of the server on a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Received {
    pub time: u64,
    pub conn: u64,
    pub stream: u32,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
}

/// A stream is over.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct End {
    pub time: u64,
    pub conn: u64,
    pub stream: u32,
    /// Since it was opened.
    pub latency: u64,
    pub end: Outcome,
}

/// So many lines would stand here, and were not written: the recorder could not
/// keep up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Missing {
    pub time: u64,
    pub lines: u64,
}

/// How a call or stream ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// gRPC's code, if the server gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Who cut it off, if somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
}

/// Why a call or stream ended without a status.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    Client,
    Server,
    Connection,
}

/// A value, as far as it is kept.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "size")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// What a value of a recording has at most, in bytes: a replay makes one of that size, and
/// etcd takes 1.5 MiB unless it is told otherwise.
pub const LARGEST_VALUE: u64 = 64 << 20;

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match Option::<u64>::deserialize(from)? {
        Some(bytes) if bytes > LARGEST_VALUE => Err(D::Error::custom(format_args!(
            "a value of {bytes} bytes, where {LARGEST_VALUE} is the most"
        ))),
        size => Ok(size),
    }
}

impl Value {
    /// Keeps of `value` what is wished for.
    pub fn keep(value: &[u8], values: Values) -> Value {
        Value {
            bytes: (values != Values::None).then_some(value.len() as u64),
            base64: (values == Values::Full).then(|| key::encode(value)),
        }
    }

    /// The value again; one of its size, or an empty one, where it was not kept.
    pub fn restore(&self) -> Bytes {
        match (&self.base64, self.bytes) {
            (Some(text), _) => key::decode(text).unwrap_or_default(),
            (None, Some(bytes)) => vec![b'.'; bytes as usize].into(),
            (None, None) => Bytes::new(),
        }
    }
}

/// What was asked.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Range(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
    Compact {
        revision: i64,
        physical: bool,
    },
    LeaseGrant {
        id: i64,
        ttl: i64,
    },
    LeaseRevoke {
        id: i64,
    },
    LeaseKeepAlive {
        id: i64,
    },
    LeaseTimeToLive {
        id: i64,
        keys: bool,
    },
    WatchCreate(WatchCreate),
    WatchCancel {
        watch_id: i64,
    },
    WatchProgress,
    /// It is not what its method takes.
    Undecoded,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_nought(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// etcd's `RangeRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Range {
    pub key: Key,
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub serializable: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub keys_only: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub count_only: bool,
    /// Order and target, if they are not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<(i32, i32)>,
    /// `min_mod`, `max_mod`, `min_create`, `max_create`, if one is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[i64; 4]>,
}

/// etcd's `PutRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Put {
    pub key: Key,
    pub value: Value,
    #[serde(skip_serializing_if = "is_zero")]
    pub lease: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_value: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_lease: bool,
}

/// etcd's `DeleteRangeRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Delete {
    pub key: Key,
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
}

/// etcd's `TxnRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Txn {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Compare>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<Request>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure: Vec<Request>,
}

/// etcd's `Compare`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Compare {
    pub key: Key,
    #[serde(default, skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    /// `=`, `!=`, `<` or `>`.
    pub result: String,
    pub with: With,
}

/// What a key is compared with.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum With {
    Version(i64),
    Create(i64),
    Mod(i64),
    Lease(i64),
    Value(Value),
}

/// etcd's `WatchCreateRequest`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct WatchCreate {
    pub key: Key,
    #[serde(skip_serializing_if = "Key::is_empty")]
    pub range_end: Key,
    #[serde(skip_serializing_if = "is_zero")]
    pub start_revision: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub progress_notify: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<i32>,
    #[serde(skip_serializing_if = "is_zero")]
    pub watch_id: i64,
}

/// What was answered, of all methods: what is not set does not apply.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Response {
    /// In the header.
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,
    /// Of a range, or of all ranges of a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Pairs that came along.
    #[serde(skip_serializing_if = "is_nought")]
    pub kvs: u64,
    /// Bytes of their values.
    #[serde(skip_serializing_if = "is_nought")]
    pub value_bytes: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub more: bool,
    /// Of the pair, if it is one: when it was changed last.
    #[serde(skip_serializing_if = "is_zero")]
    pub mod_revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchAnswer>,
    #[serde(skip_serializing_if = "is_false")]
    pub undecoded: bool,
}

/// What an answer says of a lease.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Lease {
    pub id: i64,
    pub ttl: i64,
    /// Keys that are attached, if that was asked.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub keys: u64,
}

/// etcd's `WatchResponse`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct WatchAnswer {
    pub watch_id: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub created: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub canceled: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub fragment: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub compact_revision: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// A change that a watcher is told.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Event {
    pub key: Key,
    pub mod_revision: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub delete: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub create: bool,
    #[serde(skip_serializing_if = "is_nought")]
    pub value_bytes: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub prev_kv: bool,
}

impl Request {
    /// The key that it is about, or the first of them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_store_takes_are_refused() {
        let read = |bytes: u64| serde_json::from_str::<Value>(&format!(r#"{{"bytes":{bytes}}}"#));
        assert_eq!(read(3).unwrap().restore(), "...");
        assert_eq!(serde_json::from_str::<Value>("{}").unwrap().restore(), "");
        assert!(read(LARGEST_VALUE).is_ok());
        let refused = read(LARGEST_VALUE + 1).unwrap_err().to_string();
        assert!(
            refused.starts_with("a value of 67108865 bytes, where 67108864 is the most"),
            "{refused}"
        );
    }
}
