//! Events: what the [`Tap`](crate::tap::Tap) of a client connection has observed. The recorder
//! queues events, and the trace writer writes a record for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trace::Outcome;

use crate::messages::Message;
use crate::side::Side;

/// An observation of a tap.
pub enum Event {
    /// A unary call has ended.
    Call(Box<Call>),
    /// A gRPC stream has started.
    Open { time: Instant, conn: u64, stream: u32, method: Arc<str> },
    /// `side` has sent a message on a gRPC stream.
    Message {
        time: Instant,
        conn: u64,
        stream: u32,
        side: Side,
        method: Arc<str>,
        message: Message,
    },
    /// A gRPC stream has ended at `time`. `latency` is the time since the proxy received the
    /// request headers.
    End { time: Instant, latency: Duration, conn: u64, stream: u32, outcome: Outcome },
}

/// A unary call that has ended.
pub struct Call {
    /// When the proxy received the request headers.
    pub time: Instant,
    /// Time from the request headers to the end of the call.
    pub latency: Duration,
    /// ID of the client connection in the trace.
    pub conn: u64,
    /// HTTP/2 stream ID.
    pub stream: u32,
    /// The gRPC method: the HTTP/2 path.
    pub method: Arc<str>,
    /// The first request message. Its `size` is the total size of all request messages.
    pub request: Message,
    /// The first response message. Its `size` is the total size of all response messages.
    pub response: Message,
    /// The gRPC status. If the server sent none: whether the client or the server reset the stream,
    /// or the connection was closed.
    pub outcome: Outcome,
}
