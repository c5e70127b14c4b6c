//! Events: what the tap observes and the recorder writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trace::Outcome;

use crate::messages::Message;
use crate::side::Side;

/// An observation of the tap.
pub enum Event {
    /// A unary call has ended.
    Call(Box<Call>),
    /// A gRPC stream has started.
    Open { time: Instant, conn: u64, stream: u32, method: Arc<str> },
    /// A message was sent on a gRPC stream.
    Message {
        time: Instant,
        conn: u64,
        stream: u32,
        side: Side,
        method: Arc<str>,
        message: Message,
    },
    /// A gRPC stream has ended.
    End { time: Instant, latency: Duration, conn: u64, stream: u32, outcome: Outcome },
}

/// A unary call that has ended.
pub struct Call {
    /// When the request headers were received.
    pub time: Instant,
    /// Time from the request headers to the end of the call.
    pub latency: Duration,
    /// Number of the client connection.
    pub conn: u64,
    /// HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: Arc<str>,
    /// The first request message.
    pub request: Message,
    /// The first response message.
    pub response: Message,
    /// The status, or the side that aborted the call.
    pub outcome: Outcome,
}
