//! One stream: a request that is received and a response that is sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::fields::Fields;
use crate::response::{Data, Headers, ResponseHead};

/// A map by stream ID. A request looks its stream up about ten times, so hashing must be fast.
/// Clients choose the IDs, so the hash has a random seed.
pub type StreamMap<T> = HashMap<u32, T, foldhash::fast::RandomState>;

/// Number of queued body bytes of one stream at which
/// [`Connection::send_capacity`](crate::Connection::send_capacity) is 0.
pub(crate) const STREAM_QUEUE_BYTES: usize = 64 << 10;

/// A stream whose response is not complete. Its request may be complete.
pub(crate) struct Stream {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
}

/// The receiving side of a stream: the request.
pub(crate) struct Incoming {
    /// Bytes that the client may still send.
    pub(crate) window: i64,
    /// Bytes released since the last WINDOW_UPDATE for this stream.
    pub(crate) released: i64,
    /// Bytes that were received and are not released.
    pub(crate) held: i64,
    /// Bytes of the body that have not arrived, if the request has a content-length.
    pub(crate) content_bytes_left: Option<u64>,
    /// Whether the peer has ended the body.
    pub(crate) ended: bool,
    /// Of a client: whether the head of the response has arrived.
    pub(crate) head_received: bool,
    /// Of a client: whether the response has no body, whatever its content-length says.
    pub(crate) answers_head: bool,
}

/// The sending side of a stream: the response.
pub(crate) struct Outgoing {
    /// Body bytes that the stream's window allows. Negative if the client has lowered
    /// SETTINGS_INITIAL_WINDOW_SIZE below what has been sent.
    pub(crate) window: i64,
    /// The head, if it is not framed yet.
    head: Option<Head>,
    /// Data that is not framed yet.
    queue: VecDeque<Data>,
    queued_bytes: usize,
    /// Memory of the data in the queue in bytes.
    held_data_bytes: usize,
    /// How the response ends, if the caller has finished it.
    end: Option<End>,
    /// Whether a queue of the sender contains the stream.
    pub(crate) scheduled: bool,
    /// Of a client: whether the request has been framed completely.
    pub(crate) complete: bool,
}

/// The first block of fields that is sent on a stream.
pub(crate) enum Head {
    /// Of a client: all fields, pseudo-header fields first.
    Request(Fields),
    /// The same, shared by many requests.
    Repeated(Arc<Fields>),
    Response(ResponseHead),
}

impl Head {
    /// Memory in bytes.
    fn held_bytes(&self) -> usize {
        match self {
            Head::Request(fields) => fields.held_bytes(),
            Head::Repeated(_) => 0,
            Head::Response(head) => head.headers.held_bytes(),
        }
    }
}

/// How a response ends.
pub(crate) enum End {
    /// With END_STREAM on the last frame of the body.
    Body,
    /// With a block of fields after the body.
    Trailers(Headers),
}

impl Stream {
    pub(crate) fn new(incoming_window: i64, outgoing_window: i64, content: Option<u64>) -> Self {
        Stream {
            incoming: Incoming {
                window: incoming_window,
                released: 0,
                held: 0,
                content_bytes_left: content,
                ended: false,
                head_received: false,
                answers_head: false,
            },
            outgoing: Outgoing {
                window: outgoing_window,
                head: None,
                queue: VecDeque::new(),
                queued_bytes: 0,
                held_data_bytes: 0,
                end: None,
                scheduled: false,
                complete: false,
            },
        }
    }
}

impl Outgoing {
    pub(crate) fn set_head(&mut self, head: Head) {
        self.head = Some(head);
    }

    pub(crate) fn take_head(&mut self) -> Option<Head> {
        self.head.take()
    }

    pub(crate) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    pub(crate) fn set_end(&mut self, end: End) {
        self.end = Some(end);
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Memory of the head in bytes.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head.as_ref().map_or(0, Head::held_bytes)
    }

    /// Memory in bytes of all that has not been framed.
    pub(crate) fn held_bytes(&self) -> usize {
        let trailers = match &self.end {
            Some(End::Trailers(trailers)) => trailers.held_bytes(),
            Some(End::Body) | None => 0,
        };
        self.head_bytes() + self.held_data_bytes + trailers
    }

    pub(crate) fn push(&mut self, data: Data) {
        if !data.is_empty() {
            self.queued_bytes += data.len();
            self.held_data_bytes += data.held_bytes();
            self.queue.push_back(data);
        }
    }

    /// The number of body bytes that have not been framed.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued_bytes == 0 && self.head.is_none() && self.end.is_none()
    }

    /// Produces the first `len` bytes of the body, for [`Outgoing::take_body`]. Returns false
    /// if an iterator has ended before it has yielded all its bytes.
    pub(crate) fn produce_body(&mut self, len: usize) -> bool {
        let (mut produced, mut next) = (0, 0);
        while produced < len {
            match &mut self.queue[next] {
                Data::Bytes(bytes) => {
                    produced += bytes.len();
                    next += 1;
                }
                Data::Lazy { len: left, held_bytes, chunks } => {
                    let Some(chunk) = chunks.next().filter(|chunk| !chunk.is_empty()) else {
                        return false;
                    };
                    self.held_data_bytes += chunk.len();
                    *left = left.saturating_sub(chunk.len());
                    // The last chunk releases the iterator.
                    match *left {
                        0 => {
                            self.held_data_bytes -= *held_bytes;
                            self.queue[next] = Data::Bytes(chunk);
                        }
                        _ => self.queue.insert(next, Data::Bytes(chunk)),
                    }
                }
            }
        }
        true
    }

    /// Removes the first `len` bytes of the body, which were produced, and passes them to
    /// `sink` in chunks.
    pub(crate) fn take_body(&mut self, mut len: usize, mut sink: impl FnMut(Bytes)) {
        self.queued_bytes -= len;
        while len > 0 {
            let Some(Data::Bytes(mut first)) = self.queue.pop_front() else {
                unreachable!("at least `len` bytes were produced");
            };
            let taken = first.split_to(len.min(first.len()));
            len -= taken.len();
            self.held_data_bytes -= taken.len();
            sink(taken);
            if !first.is_empty() {
                self.queue.push_front(Data::Bytes(first));
            }
        }
    }
}
