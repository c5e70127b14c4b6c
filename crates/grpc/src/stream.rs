//! One exchange on a connection: a request coming in, an answer going out.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::message::{Assembler, Payload, Pieces, Unread};
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
    queue: VecDeque<Part>,
    queued_bytes: usize,
    pub(crate) head_sent: bool,
    pub(crate) end: Option<End>,
    /// Stands in a queue of those that have something to send.
    pub(crate) scheduled: bool,
}

/// Bytes that wait to be sent.
enum Part {
    Made(Bytes),
    ToMake(Pieces),
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
        [head, shared].into_iter().for_each(|bytes| self.push_bytes(bytes));
        if let Some(rest) = rest {
            self.queued_bytes += rest.len;
            self.queue.push_back(Part::ToMake(rest));
        }
    }

    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queued_bytes += bytes.len();
            self.queue.push_back(Part::Made(bytes));
        }
    }

    /// Bytes that wait.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Takes the first `len` bytes out, in pieces.
    pub(crate) fn take(&mut self, mut len: usize, mut piece: impl FnMut(Bytes)) {
        self.queued_bytes -= len;
        while len > 0 {
            match self.queue.pop_front() {
                Some(Part::Made(mut first)) => {
                    let taken = first.split_to(len.min(first.len()));
                    len -= taken.len();
                    piece(taken);
                    if !first.is_empty() {
                        self.queue.push_front(Part::Made(first));
                    }
                }
                Some(Part::ToMake(mut rest)) => {
                    let Some(made) = rest.pieces.next() else { continue };
                    self.queue.push_front(Part::ToMake(rest));
                    self.queue.push_front(Part::Made(made));
                }
                None => unreachable!("so many bytes were queued"),
            }
        }
    }
}
