//! The records of a trace. Times are nanoseconds since the start of the trace.
//! Sizes are bytes of messages without gRPC's 5-byte prefix.

use serde::{Deserialize, Serialize};

use crate::request::Request;
use crate::response::Response;
use crate::value::Values;

/// The version of the trace format. A [`crate::Reader`] rejects other versions.
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
    #[serde(rename = "sent")]
    ClientMessage(ClientMessage),
    /// A message from the server on a stream.
    #[serde(rename = "received")]
    ServerMessage(ServerMessage),
    /// The end of a stream.
    End(End),
    /// The number of records that were not written.
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
    /// What the trace contains of each value.
    pub values: Values,
}

/// A unary call. It is recorded when it has ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// When the proxy received the request headers.
    pub time: u64,
    /// The time from the request headers to the end of the call.
    pub latency: u64,
    /// The ID of the client connection: 1 for the first connection of the trace.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: String,
    /// The size of the request messages.
    pub request_bytes: u64,
    /// The size of the response messages.
    pub response_bytes: u64,
    /// The Kubernetes kind of the request's key; see [`crate::object_of_key`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the request's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The request shape, if the request is a transaction; see [`crate::shape()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// The decoded request. `None` if the proxy could not buffer the message, or if traces
    /// contain no requests of this method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The decoded response. `None` if the proxy could not buffer the message, or if traces
    /// contain no responses of this method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Response>,
    /// How the call ended.
    pub end: Outcome,
}

/// The start of a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// When the proxy received the request headers.
    pub time: u64,
    /// The ID of the client connection: 1 for the first connection of the trace.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: String,
}

/// A message from the client on a stream.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ClientMessage {
    /// When the proxy received the last byte of the message.
    pub time: u64,
    /// The ID of the client connection: 1 for the first connection of the trace.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The size of the message.
    pub bytes: u64,
    /// The Kubernetes kind of the request's key; see [`crate::object_of_key`].
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
pub struct ServerMessage {
    /// When the proxy received the last byte of the message.
    pub time: u64,
    /// The ID of the client connection: 1 for the first connection of the trace.
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
    /// When the stream ended.
    pub time: u64,
    /// The ID of the client connection: 1 for the first connection of the trace.
    pub conn: u64,
    /// The HTTP/2 stream ID.
    pub stream: u32,
    /// The time from the request headers to the end of the stream.
    pub latency: u64,
    /// How the stream ended.
    pub end: Outcome,
}

/// Marks the position of records that were not written because the recorder could not keep
/// up, or because the bytes of a connection could not be parsed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Missing {
    /// When the recorder wrote this record.
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
    /// Who aborted the call or stream, if the server sent no status.
    #[serde(default, rename = "cut", skip_serializing_if = "Option::is_none")]
    pub aborted_by: Option<AbortedBy>,
}

/// Who aborted a call or stream.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum AbortedBy {
    /// The client reset the stream.
    Client,
    /// The server reset the stream.
    Server,
    /// Nobody reset the stream, but the connection was closed.
    Connection,
}
