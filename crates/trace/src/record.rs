//! The records of a trace. Times are nanoseconds since the start of the trace.
//! Sizes are bytes of messages without gRPC's 5-byte prefix.

use serde::{Deserialize, Serialize};

use crate::request::Request;
use crate::response::Response;
use crate::value::Values;

/// The version of the format. Readers reject other versions.
pub const VERSION: u32 = 1;

/// A record: one line of a trace file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// The first record of a file.
    Head(Head),
    /// A unary call.
    Call(Box<Call>),
    /// The start of a stream.
    Open(Open),
    /// A message from the client on a stream.
    Sent(Sent),
    /// A message from the server on a stream.
    Received(Received),
    /// The end of a stream.
    End(End),
    /// Records that were not written.
    Missing(Missing),
}

/// The first record of a file.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Head {
    /// The version of the format.
    pub version: u32,
    /// The program that wrote the trace, with its version.
    pub program: String,
    /// The wall-clock time of the start of the trace, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The endpoints of the proxy.
    pub endpoints: Vec<String>,
    /// How much of each value the trace contains.
    pub values: Values,
}

/// A call with one request and one response. The record is written when the call has
/// ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// When the proxy received the request headers.
    pub time: u64,
    /// The time from the request headers to the end.
    pub latency: u64,
    /// The number of the client connection.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: String,
    /// The size of the request.
    pub request_bytes: u64,
    /// The size of the response.
    pub response_bytes: u64,
    /// The Kubernetes kind of the request's key; see [`crate::object()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the request's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The normalised shape, for a transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Unset if the proxy could not keep the message or the method is not recorded in
    /// detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The decoded response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
    /// How it ended.
    pub end: Outcome,
}

/// The start of a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// The time of the event.
    pub time: u64,
    /// The number of the client connection.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: String,
}

/// A message from the client on a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Sent {
    /// The time of the event.
    pub time: u64,
    /// The number of the client connection.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The size of the message.
    pub bytes: u64,
    /// The Kubernetes kind of the request's key; see [`crate::object()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the request's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The decoded request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
}

/// A message from the server on a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// The time of the event.
    pub time: u64,
    /// The number of the client connection.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The size of the message.
    pub bytes: u64,
    /// The decoded response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
}

/// The end of a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct End {
    /// The time of the event.
    pub time: u64,
    /// The number of the client connection.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The time since the stream was opened.
    pub latency: u64,
    /// How it ended.
    pub end: Outcome,
}

/// Marks the position of records that were not written because the recorder could not
/// keep up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Missing {
    /// The time of the event.
    pub time: u64,
    /// Number of missing records.
    #[serde(rename = "lines")]
    pub records: u64,
}

/// How a call or stream ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The gRPC status code, if the server sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The gRPC status message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The side that aborted the call or stream, if there was no status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
}

/// The side that aborted a call or stream.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The client reset the stream.
    Client,
    /// The server reset the stream.
    Server,
    /// The connection was closed.
    Connection,
}
