//! The state of one HTTP/2 stream: its messages and its outcome.

use std::sync::Arc;
use std::time::Instant;

use trace::Outcome;

use crate::event::{Call, Event};
use crate::messages::{Assembler, Budget, Message};
use crate::side::Side;

/// An HTTP/2 stream in progress: a unary call or a gRPC stream.
pub struct TrackedStream {
    opened: Instant,
    /// The gRPC method; `None` until the request headers are decoded.
    pub method: Option<Arc<str>>,
    /// Whether the method streams messages.
    pub is_stream: bool,
    /// Assembles the client's messages.
    requests: Assembler,
    /// Assembles the server's messages.
    responses: Assembler,
    /// For a unary call: the first request message, with the total size of all.
    request: Message,
    /// For a unary call: the first response message, with the total size of all.
    response: Message,
    /// The status, or the side that aborted the stream.
    pub outcome: Outcome,
}

impl TrackedStream {
    /// Creates a stream whose request headers arrived at `opened`.
    pub fn new(opened: Instant) -> Self {
        TrackedStream {
            opened,
            method: None,
            is_stream: false,
            requests: Assembler::default(),
            responses: Assembler::default(),
            request: Message::default(),
            response: Message::default(),
            outcome: Outcome::default(),
        }
    }

    /// Processes data that `side` has sent. For a gRPC stream, calls `emit` for every message
    /// that is now complete. For a unary call, keeps the first message of each side until the
    /// end of the call, and adds up the sizes of further messages.
    pub fn push(
        &mut self,
        side: Side,
        bytes: &[u8],
        budget: &Budget,
        mut emit: impl FnMut(Arc<str>, Message),
    ) {
        let (assembler, first) = match side {
            Side::Client => (&mut self.requests, &mut self.request),
            Side::Server => (&mut self.responses, &mut self.response),
        };
        let (method, is_stream) = (&self.method, self.is_stream);
        assembler.push(bytes, budget, |message| match method {
            Some(method) if is_stream => emit(method.clone(), message),
            _ if first.size == 0 && first.content.is_none() => *first = message,
            _ => first.size += message.size,
        });
    }

    /// Converts to the event for the end of the call or gRPC stream.
    pub fn into_event(self, conn: u64, stream: u32, method: Arc<str>, now: Instant) -> Event {
        let latency = now - self.opened;
        if self.is_stream {
            return Event::End { time: now, latency, conn, stream, outcome: self.outcome };
        }
        Event::Call(Box::new(Call {
            time: self.opened,
            latency,
            conn,
            stream,
            method,
            request: self.request,
            response: self.response,
            outcome: self.outcome,
        }))
    }
}
