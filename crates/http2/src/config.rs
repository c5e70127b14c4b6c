//! Limits and policies of a connection.

use crate::liveness::Keepalive;

/// Initial window of each stream in bytes: how much of a request body a client may send
/// before the server releases any of it.
pub(crate) const STREAM_WINDOW: i64 = 1 << 20;
/// Window of the connection in bytes: how much a client may send on all streams together.
pub(crate) const CONNECTION_WINDOW: i64 = 16 << 20;
/// Window of streams and connections in bytes before either side changes it (RFC 9113,
/// 6.9.2).
pub(crate) const DEFAULT_WINDOW: i64 = 65_535;
/// The largest window in bytes that flow control allows (RFC 9113, 6.9.1).
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;
/// Maximum size of a block of fields in bytes. It limits the decoded fields of a request
/// (with 32 bytes per field, like SETTINGS_MAX_HEADER_LIST_SIZE), the decoded names and
/// values of trailers, and the encoded block that CONTINUATION frames complete with their
/// frame headers.
pub(crate) const MAX_FIELDS_BYTES: usize = 64 << 10;
/// Fields of more than this many bytes are not decoded to their end: the connection is
/// closed. An encoded byte can stand for a kilobyte of the dynamic table, so decoding
/// everything would cost the server far more than the client.
pub(crate) const MAX_DECODED_BYTES: usize = 2 * MAX_FIELDS_BYTES;

/// Configuration of a [`Connection`](crate::Connection).
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of open streams. Further streams are refused with REFUSED_STREAM.
    pub max_streams: u32,
    /// When to ping silent clients, and how often clients may ping.
    pub keepalive: Keepalive,
    /// What to do with CONNECT requests.
    pub connect_method: ConnectMethod,
}

/// Policy for CONNECT requests, which ask the server to become a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMethod {
    /// Reset the stream with PROTOCOL_ERROR.
    Reject,
    /// Deliver the request like any other. A plain CONNECT has `:authority` but neither
    /// `:scheme` nor `:path`. An extended CONNECT (RFC 8441) has `:protocol`, `:scheme`
    /// and `:path`. The server announces that it supports extended CONNECT with
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL.
    Deliver,
}
