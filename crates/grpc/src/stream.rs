//! One exchange on a connection: a request coming in, an answer going out.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::message::{Assembler, Payload, Unread};
use crate::routes::MethodRef;
use crate::status::Status;

/// The most that either side may let the other send ahead.
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;

/// A stream that is open in at least one direction.
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
}

/// What the request is.
pub(crate) enum Kind {
    Call(MethodRef),
    Page { verb: http::Method, path: String },
}

/// The client's half.
pub(crate) struct Incoming {
    pub(crate) messages: Assembler,
    /// The one message of a call that has one, once it is complete.
    pub(crate) message: Option<Unread>,
    /// Bytes that the client may still send.
    pub(crate) window: i64,
    /// Bytes taken since the client was last given more; below zero while messages
    /// that came in parts, and gave credit then, are yet to be read.
    pub(crate) consumed: i64,
    /// Bytes of the body that are still to come, if the client said how many.
    pub(crate) announced: Option<u64>,
    /// The client has said everything.
    pub(crate) ended: bool,
}

/// Our half.
pub(crate) struct Outgoing {
    /// Bytes that the client takes.
    pub(crate) window: i64,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    pub(crate) head_sent: bool,
    pub(crate) end: Option<End>,
    /// Stands in a queue of those that have something to send.
    pub(crate) scheduled: bool,
}

/// How an answer ends.
pub(crate) enum End {
    /// A call, with its status.
    Call(Result<(), Status>),
    /// A page: with its last byte.
    Page,
}

impl Stream {
    pub(crate) fn new(kind: Kind, incoming_window: i64, outgoing_window: i64) -> Self {
        Stream {
            kind,
            incoming: Incoming {
                messages: Assembler::default(),
                message: None,
                window: incoming_window,
                consumed: 0,
                announced: None,
                ended: false,
            },
            outgoing: Outgoing {
                window: outgoing_window,
                queue: VecDeque::new(),
                queued_bytes: 0,
                head_sent: false,
                end: None,
                scheduled: false,
            },
        }
    }

    /// Whether the client sends many messages.
    pub(crate) fn many(&self) -> bool {
        matches!(self.kind, Kind::Call(method) if method.many)
    }
}

impl Outgoing {
    pub(crate) fn push(&mut self, payload: Payload) {
        let Payload { head, shared, rest } = payload;
        [head, shared].into_iter().chain(rest).for_each(|bytes| self.push_bytes(bytes));
    }

    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queued_bytes += bytes.len();
            self.queue.push_back(bytes);
        }
    }

    /// Bytes that wait.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Takes the first `len` bytes out, in pieces.
    pub(crate) fn take(&mut self, mut len: usize, mut piece: impl FnMut(Bytes)) {
        self.queued_bytes -= len;
        while let Some(first) = self.queue.front_mut().filter(|_| len > 0) {
            if len < first.len() {
                piece(first.slice(..len));
                return first.advance(len);
            }
            len -= first.len();
            self.queue.pop_front().into_iter().for_each(&mut piece);
        }
    }
}
