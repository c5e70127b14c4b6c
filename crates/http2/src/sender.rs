//! Schedules responses and frames them.
//!
//! A response that fits in one frame is urgent, so that a small call does not wait
//! behind a busy watch. All other streams take turns of one frame each. Frames are made
//! as late as possible, because frames in the output can no longer be overtaken.

use std::collections::VecDeque;

use crate::config::{DEFAULT_WINDOW, MAX_WINDOW};
use crate::frame::{ErrorCode, FrameHeader, MAX_PAYLOAD_BYTES, flag, kind};
use crate::hpack::Encoder;
use crate::output::Output;
use crate::response::{Data, Headers, ResponseHead};
use crate::stream::{End, Outgoing, Stream, StreamMap};

/// No more frames are made while the output has this many bytes.
const OUTPUT_BYTES: usize = 128 << 10;
/// Part of the connection's window that is reserved for urgent streams. A client sends
/// WINDOW_UPDATE long before the window gets this small.
const RESERVED_WINDOW: i64 = 8 << 10;
/// After this many urgent turns in a row, another stream has a turn.
const MAX_URGENT_TURNS: u32 = 8;
/// A queue is cleaned when it has this many more entries than twice the open streams;
/// the surplus are streams that have been reset.
const MAX_STALE_ENTRIES: usize = 1024;
/// Payload of the server's pings.
const PING_PAYLOAD: &[u8; 8] = b"liveness";

pub(crate) struct Sender {
    output: Output,
    encoder: Encoder,
    /// Bytes that the client accepts over all streams.
    window: i64,
    /// Bytes that the client accepts on a new stream.
    initial_window: i64,
    /// Streams whose whole response fits in a frame.
    urgent: VecDeque<u32>,
    /// All other streams that have something to send.
    waiting: VecDeque<u32>,
    urgent_turns: u32,
    /// Streams that wait for the connection's window.
    blocked: Vec<u32>,
    queued_bytes: usize,
    /// Whether anything but control frames has been sent since the last check.
    wrote: bool,
    /// Reused memory for blocks of fields.
    block: Vec<u8>,
}

/// Result of a stream's turn.
enum Turn {
    /// The response is complete.
    Complete,
    /// The stream has more to send.
    More,
    /// The connection's window is exhausted.
    Blocked,
    /// The stream has nothing to send, or its own window is exhausted.
    Idle,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Sender {
            output: Output::default(),
            encoder: Encoder::new(),
            window: DEFAULT_WINDOW,
            initial_window: DEFAULT_WINDOW,
            urgent: VecDeque::new(),
            waiting: VecDeque::new(),
            urgent_turns: 0,
            blocked: Vec::new(),
            queued_bytes: 0,
            wrote: false,
            block: Vec::new(),
        }
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    pub(crate) fn initial_window(&self) -> i64 {
        self.initial_window
    }

    /// Bytes of bodies that have not been framed, over all streams.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether responses have been framed since the last call.
    pub(crate) fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote)
    }

    /// Appends data to a stream's body. The caller schedules the stream.
    pub(crate) fn queue(&mut self, outgoing: &mut Outgoing, data: Data) {
        self.queued_bytes += data.len();
        outgoing.push(data);
    }

    /// Puts a stream into a queue if it has something to send.
    pub(crate) fn schedule(&mut self, id: u32, outgoing: &mut Outgoing) {
        if outgoing.is_idle() || std::mem::replace(&mut outgoing.scheduled, true) {
            return;
        }
        match outgoing.head.is_some() && outgoing.queued_bytes() <= MAX_PAYLOAD_BYTES {
            true => self.urgent.push_back(id),
            false => self.waiting.push_back(id),
        }
    }

    /// Discards the unsent data of a removed stream.
    pub(crate) fn discard(&mut self, stream: &Stream) {
        self.queued_bytes -= stream.outgoing.queued_bytes();
    }

    /// Makes frames until the output is full, no stream can send, or a response is
    /// complete. Returns the stream of the complete response.
    pub(crate) fn fill(&mut self, streams: &mut StreamMap<Stream>) -> Option<u32> {
        self.remove_stale_entries(streams);
        while self.output.len() < OUTPUT_BYTES {
            let (id, urgent) = self.next()?;
            let Some(stream) = streams.get_mut(&id) else { continue };
            let outgoing = &mut stream.outgoing;
            let reserved = if urgent { 0 } else { RESERVED_WINDOW };
            match self.turn(id, outgoing, reserved) {
                Turn::Complete => return Some(id),
                Turn::More => self.waiting.push_back(id),
                Turn::Blocked => self.blocked.push(id),
                Turn::Idle => outgoing.scheduled = false,
            }
        }
        None
    }

    /// The stream that has the next turn, and whether it is urgent.
    fn next(&mut self) -> Option<(u32, bool)> {
        let waiting_first = self.urgent_turns == MAX_URGENT_TURNS && !self.waiting.is_empty();
        if !waiting_first && let Some(id) = self.urgent.pop_front() {
            self.urgent_turns = (self.urgent_turns + 1).min(MAX_URGENT_TURNS);
            return Some((id, true));
        }
        self.urgent_turns = 0;
        self.waiting.pop_front().map(|id| (id, false))
    }

    /// Bounds the queues: a stream that is reset stays in its queue.
    fn remove_stale_entries(&mut self, streams: &StreamMap<Stream>) {
        let limit = 2 * streams.len() + MAX_STALE_ENTRIES;
        if self.blocked.len() > limit {
            self.blocked.retain(|id| streams.contains_key(id));
        }
        for queue in [&mut self.urgent, &mut self.waiting] {
            if queue.len() > limit {
                queue.retain(|id| streams.contains_key(id));
            }
        }
    }

    /// Sends the head, one frame of data, and the trailers, as far as they are available.
    /// Leaves `reserved` bytes of the connection's window.
    fn turn(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Turn {
        if let Some(head) = outgoing.head.take() {
            let end = outgoing.queued_bytes() == 0 && matches!(outgoing.end, Some(End::Body));
            self.head(id, &head, end);
            if end {
                return Turn::Complete;
            }
        }
        if outgoing.queued_bytes() > 0
            && let Some(turn) = self.data(id, outgoing, reserved)
        {
            return turn;
        }
        match &outgoing.end {
            None => return Turn::Idle,
            // All data were sent before the end of the body was known.
            Some(End::Body) => self.put(
                FrameHeader { len: 0, kind: kind::DATA, flags: flag::END_STREAM, stream: id },
                &[],
            ),
            Some(End::Trailers(trailers)) => self.trailers(id, trailers),
        }
        Turn::Complete
    }

    /// Sends a frame of data. Returns `None` if trailers may follow in the same turn.
    fn data(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Option<Turn> {
        let queued = outgoing.queued_bytes();
        let window = outgoing.window.min(self.window - reserved);
        let len = queued.min(MAX_PAYLOAD_BYTES).min(window.max(0) as usize);
        if len == 0 {
            return Some(if outgoing.window > 0 { Turn::Blocked } else { Turn::Idle });
        }
        outgoing.window -= len as i64;
        self.window -= len as i64;
        self.queued_bytes -= len;
        let last = len == queued && matches!(outgoing.end, Some(End::Body));
        let flags = if last { flag::END_STREAM } else { 0 };
        self.put(FrameHeader { len, kind: kind::DATA, flags, stream: id }, &[]);
        outgoing.take(len, |chunk| self.output.put_shared(chunk));
        match () {
            () if last => Some(Turn::Complete),
            () if len < queued => Some(Turn::More),
            () => None,
        }
    }

    fn head(&mut self, id: u32, head: &ResponseHead, end: bool) {
        let mut block = std::mem::take(&mut self.block);
        self.encoder.start_block(&mut block);
        self.encoder.status(head.status, &mut block);
        self.encoder.headers(&head.headers, &mut block);
        self.headers(id, &mut block, end);
        self.block = block;
    }

    fn trailers(&mut self, id: u32, trailers: &Headers) {
        let mut block = std::mem::take(&mut self.block);
        self.encoder.start_block(&mut block);
        self.encoder.headers(trailers, &mut block);
        self.headers(id, &mut block, true);
        self.block = block;
    }

    /// Sends a block of fields in as many frames as necessary, and empties it.
    fn headers(&mut self, stream: u32, block: &mut Vec<u8>, end: bool) {
        let mut flags = if end { flag::END_STREAM } else { 0 };
        let mut kind = kind::HEADERS;
        let mut rest = &block[..];
        loop {
            let (part, behind) = rest.split_at(rest.len().min(MAX_PAYLOAD_BYTES));
            if behind.is_empty() {
                flags |= flag::END_HEADERS;
            }
            self.put(FrameHeader { len: part.len(), kind, flags, stream }, part);
            if behind.is_empty() {
                break;
            }
            (rest, kind, flags) = (behind, kind::CONTINUATION, 0);
        }
        block.clear();
    }

    fn put(&mut self, header: FrameHeader, payload: &[u8]) {
        self.wrote = true;
        self.output.put(&header.encode());
        self.output.put(payload);
    }
}

/// Parameters that the client sets.
impl Sender {
    /// Enlarges the connection's window; false if it exceeds the maximum.
    pub(crate) fn widen(&mut self, increment: i64) -> bool {
        self.window += increment;
        self.waiting.extend(self.blocked.drain(..));
        self.window <= MAX_WINDOW
    }

    /// Changes the window of all streams; false if one exceeds the maximum.
    pub(crate) fn set_initial_window(
        &mut self,
        window: i64,
        streams: &mut StreamMap<Stream>,
    ) -> bool {
        let change = window - std::mem::replace(&mut self.initial_window, window);
        let mut possible = true;
        for (id, stream) in streams {
            stream.outgoing.window += change;
            possible &= stream.outgoing.window <= MAX_WINDOW;
            self.schedule(*id, &mut stream.outgoing);
        }
        possible
    }

    pub(crate) fn set_table_bytes(&mut self, bytes: u32) {
        self.encoder.set_table_bytes(bytes);
    }
}

/// Control frames. They are put into the output at once.
impl Sender {
    pub(crate) fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::with_capacity(settings.len() * 6);
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        self.control(kind::SETTINGS, 0, 0, &payload);
    }

    pub(crate) fn settings_ack(&mut self) {
        self.control(kind::SETTINGS, flag::ACK, 0, &[]);
    }

    pub(crate) fn window_update(&mut self, stream: u32, increment: i64) {
        self.control(kind::WINDOW_UPDATE, 0, stream, &(increment as u32).to_be_bytes());
    }

    pub(crate) fn rst_stream(&mut self, stream: u32, code: ErrorCode) {
        self.control(kind::RST_STREAM, 0, stream, &(code as u32).to_be_bytes());
    }

    pub(crate) fn ping(&mut self) {
        self.control(kind::PING, 0, 0, PING_PAYLOAD);
    }

    pub(crate) fn ping_ack(&mut self, opaque: [u8; 8]) {
        self.control(kind::PING, flag::ACK, 0, &opaque);
    }

    pub(crate) fn go_away(&mut self, last_stream: u32, code: ErrorCode, text: &str) {
        let numbers = [last_stream, code as u32].map(u32::to_be_bytes).concat();
        self.control(kind::GOAWAY, 0, 0, &[&numbers, text.as_bytes()].concat());
    }

    fn control(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.put(&FrameHeader { len: payload.len(), kind, flags, stream }.encode());
        self.output.put(payload);
    }
}
