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
    pub time: Instant,
    pub latency: Duration,
    pub conn: u64,
    pub stream: u32,
    pub method: Arc<str>,
    pub request: Message,
    pub response: Message,
    pub outcome: Outcome,
}
