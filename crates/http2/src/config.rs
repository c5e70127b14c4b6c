//! Limits and policies of a connection.

use crate::liveness::Keepalive;

/// Window of streams and connections in bytes before either side changes it (RFC 9113,
/// 6.9.2).
pub(crate) const DEFAULT_WINDOW: i64 = 65_535;
/// The largest window in bytes that flow control allows (RFC 9113, 6.9.1).
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;

/// Configuration of a [`Connection`](crate::Connection).
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of open streams. Further streams are refused with REFUSED_STREAM.
    pub max_streams: u32,
    /// When to ping silent clients, and how often clients may ping.
    pub keepalive: Keepalive,
    /// What to do with CONNECT requests.
    pub connect_method: ConnectMethod,
    /// Bounds on the memory of a connection.
    pub limits: Limits,
}

/// Which side of the connection this program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Receives requests and sends responses.
    Server,
    /// Sends requests and receives responses.
    Client,
}

/// Bounds on the memory of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Initial window of each stream in bytes: how much of a body the peer may send before
    /// any of it is released.
    pub stream_window: u32,
    /// Window of the connection in bytes: how much the peer may send on all streams together.
    pub connection_window: u32,
    /// When the peer may send more on all streams together.
    pub refill: Refill,
    /// Maximum size of a block of fields in bytes. It limits the decoded fields of a head
    /// (with 32 bytes per field, like SETTINGS_MAX_HEADER_LIST_SIZE), the decoded names and
    /// values of trailers, and the encoded block that CONTINUATION frames complete with their
    /// frame headers.
    pub fields_bytes: usize,
    /// Bytes beyond which the output gets no further frames until it has been written.
    pub output_bytes: usize,
}

/// When the window of the connection is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// When data arrives. A stream whose body is not released does not block other streams.
    OnArrival,
    /// When data is released, as the window of its stream. The window of the connection then
    /// bounds the memory for the bodies of all streams.
    OnRelease,
}

impl Default for Limits {
    /// Limits for a server with few clients that are busy.
    fn default() -> Self {
        Limits {
            stream_window: 1 << 20,
            connection_window: 16 << 20,
            refill: Refill::OnArrival,
            fields_bytes: 64 << 10,
            output_bytes: 128 << 10,
        }
    }
}

impl Limits {
    /// Fields of more than this many bytes are not decoded to their end: the connection is
    /// closed. An encoded byte can stand for a kilobyte of the dynamic table, so decoding
    /// everything would cost the receiver far more than the sender.
    pub(crate) fn decoded_bytes(&self) -> usize {
        2 * self.fields_bytes
    }
}

/// Policy for CONNECT requests, which ask the server to become a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMethod {
    /// Reset the stream with PROTOCOL_ERROR.
    Reject,
    /// Deliver a plain CONNECT like any other request, so that the server can answer it, and reset
    /// the stream of an extended one. The server does not announce it.
    DeliverPlain,
    /// Deliver the request like any other. A plain CONNECT has `:authority` but neither
    /// `:scheme` nor `:path`. An extended CONNECT (RFC 8441) has `:protocol`, `:scheme`
    /// and `:path`. The server announces that it supports extended CONNECT with
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL.
    Deliver,
}
