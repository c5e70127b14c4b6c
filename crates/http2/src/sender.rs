//! Schedules responses and frames them.
//!
//! A stream is urgent if its response has not begun and its queued data fits in one
//! frame. So the response to a small call does not wait behind a busy watch. All other
//! streams take turns of one frame each. A response is framed as late as possible,
//! because no other response can overtake a frame in the output.

use std::collections::VecDeque;

use crate::config::{DEFAULT_WINDOW, MAX_WINDOW};
use crate::frame::{ErrorCode, FrameHeader, MAX_PAYLOAD_BYTES, PREFACE, flag, kind};
use crate::hpack::Encoder;
use crate::output::Output;
use crate::response::{Data, Headers};
use crate::stream::{End, Head, Outgoing, STREAM_QUEUE_BYTES, Stream, StreamMap};

/// Bytes of the connection's window that are reserved for urgent streams. Clients usually
/// send WINDOW_UPDATE long before the window gets this small. A client need not: it may read
/// a body only when it is complete. Therefore the reservation ends when the client has
/// acknowledged a ping that was sent after the last byte, and has not enlarged the window.
const RESERVED_WINDOW: i64 = 8 << 10;
/// After this many turns of urgent streams in a row, a waiting stream has a turn.
const MAX_URGENT_TURNS: u32 = 8;
/// Entries of closed streams are removed from a queue when it has more entries than this
/// number plus twice the number of open streams.
const MAX_STALE_ENTRIES: usize = 1024;
/// Payload of keepalive pings.
pub(crate) const LIVENESS_PING: &[u8; 8] = b"liveness";
/// Payload of the ping between the two GOAWAY frames of a shutdown.
pub(crate) const DRAIN_PING: &[u8; 8] = b"shutdown";
/// Payload of the ping that ends the reservation of [`RESERVED_WINDOW`].
const WINDOW_PING: &[u8; 8] = b"window??";

/// The sending side of a connection: the output, and the queues of streams that have
/// something to send.
pub(crate) struct Sender {
    output: Output,
    /// Responses are framed only while the output has fewer bytes than this.
    max_output_bytes: usize,
    encoder: Encoder,
    /// Bytes that the client accepts on all streams together.
    window: i64,
    /// Bytes that the client accepts on a new stream.
    initial_window: i64,
    /// Streams that were urgent when they were scheduled.
    urgent: VecDeque<u32>,
    /// Other streams that have something to send.
    waiting: VecDeque<u32>,
    /// Number of turns of urgent streams since the last turn of a waiting stream.
    urgent_turns: u32,
    /// Streams that wait until the client enlarges the connection's window, or until the
    /// reservation ends.
    blocked: VecDeque<u32>,
    /// Bytes of the connection's window that are reserved now: [`RESERVED_WINDOW`] or 0.
    reserved: i64,
    /// Whether a ping that ends the reservation has been sent since it began.
    window_ping_sent: bool,
    /// Number of pings that the client has not acknowledged.
    unacknowledged_pings: u32,
    /// Streams whose queue was full and is not any more.
    writable: Vec<u32>,
    /// Body bytes of all streams that have not been framed.
    queued_bytes: usize,
    /// Memory in bytes of all that has not been framed: heads, bodies and trailers.
    held_bytes: usize,
    /// The part of `held_bytes` that heads have.
    head_bytes: usize,
    /// Whether HEADERS or DATA has been framed since the last
    /// [`take_responded`](Self::take_responded).
    responded: bool,
    /// Reused memory for blocks of fields.
    block_buffer: Vec<u8>,
}

/// A stream whose response has ended.
pub(crate) enum Ended {
    /// The response is complete.
    Complete(u32),
    /// The rest of the response is not available.
    Failed(u32),
}

/// Result of a stream's turn.
enum Turn {
    /// The response is complete.
    Complete,
    /// An iterator of the response has ended too early.
    Failed,
    /// The stream has more to send.
    More,
    /// The connection's window is exhausted, apart from the part reserved for urgent
    /// streams.
    Blocked,
    /// The stream has nothing to send, or its own window is exhausted.
    Idle,
}

impl Sender {
    pub(crate) fn new(max_output_bytes: usize) -> Self {
        Sender {
            output: Output::default(),
            max_output_bytes,
            encoder: Encoder::new(),
            window: DEFAULT_WINDOW,
            initial_window: DEFAULT_WINDOW,
            urgent: VecDeque::new(),
            waiting: VecDeque::new(),
            urgent_turns: 0,
            blocked: VecDeque::new(),
            reserved: RESERVED_WINDOW,
            window_ping_sent: false,
            unacknowledged_pings: 0,
            writable: Vec::new(),
            queued_bytes: 0,
            held_bytes: 0,
            head_bytes: 0,
            responded: false,
            block_buffer: Vec::new(),
        }
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    pub(crate) fn initial_window(&self) -> i64 {
        self.initial_window
    }

    /// The number of body bytes of all streams that have not been framed.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Memory in bytes of all that has not been framed.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Memory in bytes of the heads that have not been framed. They do not wait for a window,
    /// only for room in the output.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Frees reused memory.
    pub(crate) fn release_memory(&mut self) {
        self.block_buffer = Vec::new();
        self.output.release_memory();
    }

    /// Removes and returns the streams whose queue was full and is not any more.
    pub(crate) fn take_writable(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.writable)
    }

    /// Returns whether HEADERS or DATA has been framed since the last call.
    pub(crate) fn take_responded(&mut self) -> bool {
        std::mem::take(&mut self.responded)
    }

    /// Appends data to a stream's body. The caller must schedule the stream after it.
    pub(crate) fn queue_data(&mut self, outgoing: &mut Outgoing, data: Data) {
        self.queued_bytes += data.len();
        self.held_bytes += data.held_bytes();
        outgoing.push(data);
    }

    /// Sets a stream's head. The caller must schedule the stream after it.
    pub(crate) fn queue_head(&mut self, outgoing: &mut Outgoing, head: Head) {
        let before = outgoing.head_bytes();
        outgoing.set_head(head);
        let added = outgoing.head_bytes();
        self.held_bytes = self.held_bytes + added - before;
        self.head_bytes = self.head_bytes + added - before;
    }

    /// Completes a stream's response. The caller must schedule the stream after it.
    pub(crate) fn queue_end(&mut self, outgoing: &mut Outgoing, trailers: Option<Headers>) {
        let before = outgoing.held_bytes();
        outgoing.set_end(trailers.map_or(End::Body, End::Trailers));
        self.held_bytes = self.held_bytes + outgoing.held_bytes() - before;
    }

    /// Puts a stream into a queue if it has something to send.
    pub(crate) fn schedule(&mut self, id: u32, outgoing: &mut Outgoing) {
        if outgoing.is_idle() || std::mem::replace(&mut outgoing.scheduled, true) {
            return;
        }
        match outgoing.has_head() && outgoing.queued_bytes() <= MAX_PAYLOAD_BYTES {
            true => self.urgent.push_back(id),
            false => self.waiting.push_back(id),
        }
    }

    /// Discards the unsent data of a removed stream.
    pub(crate) fn discard_unsent(&mut self, stream: &Stream) {
        self.queued_bytes -= stream.outgoing.queued_bytes();
        self.held_bytes -= stream.outgoing.held_bytes();
        self.head_bytes -= stream.outgoing.head_bytes();
    }

    /// Frames responses until the output is full, no stream can send, or a response ends.
    /// Returns the stream whose response has ended.
    pub(crate) fn fill_output(&mut self, streams: &mut StreamMap<Stream>) -> Option<Ended> {
        if self.urgent.is_empty() && self.waiting.is_empty() && self.blocked.is_empty() {
            return None;
        }
        self.remove_stale_entries(streams);
        while self.output.len() < self.max_output_bytes {
            let (id, urgent) = self.next_stream()?;
            let Some(stream) = streams.get_mut(&id) else { continue };
            let outgoing = &mut stream.outgoing;
            let reserved = if urgent { 0 } else { self.reserved };
            let held_before = outgoing.held_bytes();
            let turn = self.take_turn(id, outgoing, reserved);
            let held = if matches!(turn, Turn::Complete) { 0 } else { outgoing.held_bytes() };
            self.held_bytes = self.held_bytes + held - held_before;
            match turn {
                Turn::Complete => return Some(Ended::Complete(id)),
                Turn::Failed => return Some(Ended::Failed(id)),
                Turn::More => self.waiting.push_back(id),
                Turn::Blocked => self.block(id),
                Turn::Idle => outgoing.scheduled = false,
            }
        }
        None
    }

    /// Lets a stream wait for the connection's window.
    fn block(&mut self, id: u32) {
        self.blocked.push_back(id);
        self.question_reservation();
    }

    /// Sends a ping if only the reservation blocks streams.
    fn question_reservation(&mut self) {
        let reserved = 1..=self.reserved;
        if reserved.contains(&self.window) && !self.window_ping_sent {
            self.window_ping_sent = true;
            self.ping(WINDOW_PING);
        }
    }

    /// Gives turns to as many blocked streams as the window has bytes for them, the first
    /// ones first. If all got a turn, a client that enlarges the window by one byte at a time
    /// would make each of its many streams take a turn each time.
    fn unblock(&mut self) {
        let bytes = usize::try_from(self.window - self.reserved).unwrap_or(0);
        let count = bytes.min(self.blocked.len());
        self.waiting.extend(self.blocked.drain(..count));
        if !self.blocked.is_empty() {
            self.question_reservation();
        }
    }

    /// Removes and returns the stream that has the next turn, and whether it is urgent.
    fn next_stream(&mut self) -> Option<(u32, bool)> {
        let waiting_first = self.urgent_turns == MAX_URGENT_TURNS && !self.waiting.is_empty();
        if !waiting_first && let Some(id) = self.urgent.pop_front() {
            self.urgent_turns = (self.urgent_turns + 1).min(MAX_URGENT_TURNS);
            return Some((id, true));
        }
        self.urgent_turns = 0;
        if self.waiting.is_empty() && !self.blocked.is_empty() {
            // The streams that were unblocked before may be closed by now.
            self.unblock();
        }
        self.waiting.pop_front().map(|id| (id, false))
    }

    /// Bounds the queues: the entry of a stream that is reset stays in its queue.
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

    /// Frames the head, one frame of data, and the trailers, as far as they are
    /// available. Leaves `reserved` bytes of the connection's window unused.
    fn take_turn(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Turn {
        self.head_bytes -= outgoing.head_bytes();
        if let Some(head) = outgoing.take_head() {
            let end = outgoing.queued_bytes() == 0 && matches!(outgoing.end(), Some(End::Body));
            self.frame_head(id, &head, end);
            if end {
                return Turn::Complete;
            }
        }
        if outgoing.queued_bytes() > 0
            && let Some(turn) = self.frame_data(id, outgoing, reserved)
        {
            return turn;
        }
        match outgoing.end() {
            None => return Turn::Idle,
            // All data was framed before the end of the body was known.
            Some(End::Body) => self.put_frame(
                FrameHeader { len: 0, kind: kind::DATA, flags: flag::END_STREAM, stream: id },
                &[],
            ),
            Some(End::Trailers(trailers)) => self.frame_trailers(id, trailers),
        }
        Turn::Complete
    }

    /// Frames one DATA frame. Returns `None` if all data is framed and the turn may go on
    /// with the end of the response.
    fn frame_data(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Option<Turn> {
        let queued = outgoing.queued_bytes();
        let window = outgoing.window.min(self.window - reserved);
        let len = queued.min(MAX_PAYLOAD_BYTES).min(window.max(0) as usize);
        if len == 0 {
            return Some(if outgoing.window > 0 { Turn::Blocked } else { Turn::Idle });
        }
        if !outgoing.produce_body(len) {
            return Some(Turn::Failed);
        }
        outgoing.window -= len as i64;
        self.window -= len as i64;
        self.queued_bytes -= len;
        if queued >= STREAM_QUEUE_BYTES && queued - len < STREAM_QUEUE_BYTES {
            self.writable.push(id);
        }
        let last = len == queued && matches!(outgoing.end(), Some(End::Body));
        let flags = if last { flag::END_STREAM } else { 0 };
        self.put_frame(FrameHeader { len, kind: kind::DATA, flags, stream: id }, &[]);
        outgoing.take_body(len, |chunk| self.output.put_shared(chunk));
        match () {
            () if last => Some(Turn::Complete),
            () if len < queued => Some(Turn::More),
            () => None,
        }
    }

    fn frame_head(&mut self, id: u32, head: &Head, end: bool) {
        let mut block = std::mem::take(&mut self.block_buffer);
        self.encoder.start_block(&mut block);
        match head {
            Head::Request(fields) => self.encoder.encode_request(fields, &mut block),
            Head::Repeated(fields) => self.encoder.encode_repeated(fields, &mut block),
            Head::Response(head) => {
                self.encoder.encode_status(head.status, &mut block);
                self.encoder.encode_fields(&head.headers, &mut block);
            }
        }
        self.frame_block(id, &mut block, end);
        self.block_buffer = block;
    }

    fn frame_trailers(&mut self, id: u32, trailers: &Headers) {
        let mut block = std::mem::take(&mut self.block_buffer);
        self.encoder.start_block(&mut block);
        self.encoder.encode_fields(trailers, &mut block);
        self.frame_block(id, &mut block, true);
        self.block_buffer = block;
    }

    /// Frames a block of fields as HEADERS and CONTINUATION, and empties it.
    fn frame_block(&mut self, stream: u32, block: &mut Vec<u8>, end: bool) {
        let mut flags = if end { flag::END_STREAM } else { 0 };
        let mut kind = kind::HEADERS;
        let mut rest = &block[..];
        loop {
            let (part, behind) = rest.split_at(rest.len().min(MAX_PAYLOAD_BYTES));
            if behind.is_empty() {
                flags |= flag::END_HEADERS;
            }
            self.put_frame(FrameHeader { len: part.len(), kind, flags, stream }, part);
            if behind.is_empty() {
                break;
            }
            (rest, kind, flags) = (behind, kind::CONTINUATION, 0);
        }
        block.clear();
    }

    fn put_frame(&mut self, header: FrameHeader, payload: &[u8]) {
        self.responded = true;
        self.output.put(&header.encode());
        self.output.put(payload);
    }
}

/// Parameters that the client changes.
impl Sender {
    /// Enlarges the connection's window. Returns false if it then exceeds the maximum.
    pub(crate) fn enlarge_window(&mut self, increment: i64) -> bool {
        self.window += increment;
        // A client that enlarges the window in small steps would get a ping at each step.
        if self.window >= 2 * RESERVED_WINDOW {
            (self.reserved, self.window_ping_sent) = (RESERVED_WINDOW, false);
        }
        self.unblock();
        self.window <= MAX_WINDOW
    }

    /// Handles the acknowledgement of a ping. Returns whether the server had sent one.
    pub(crate) fn ping_acknowledged(&mut self, opaque: &[u8; 8]) -> bool {
        let Some(rest) = self.unacknowledged_pings.checked_sub(1) else { return false };
        self.unacknowledged_pings = rest;
        if opaque == WINDOW_PING && self.window_ping_sent {
            self.reserved = 0;
            self.unblock();
        }
        true
    }

    /// Sets the initial window of new streams, and changes the windows of open streams by
    /// the difference. Returns false if one of them then exceeds the maximum.
    pub(crate) fn set_initial_window(
        &mut self,
        window: i64,
        streams: &mut StreamMap<Stream>,
    ) -> bool {
        let change = window - std::mem::replace(&mut self.initial_window, window);
        let mut within_limit = true;
        for (id, stream) in streams {
            stream.outgoing.window += change;
            within_limit &= stream.outgoing.window <= MAX_WINDOW;
            self.schedule(*id, &mut stream.outgoing);
        }
        within_limit
    }

    pub(crate) fn set_table_bytes(&mut self, bytes: u32) {
        self.encoder.set_table_bytes(bytes);
    }
}

/// Control frames. They are appended to the output immediately, before queued responses.
impl Sender {
    /// Begins the connection of a client.
    pub(crate) fn preface(&mut self) {
        self.output.put(PREFACE);
    }

    pub(crate) fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::with_capacity(settings.len() * 6);
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        self.put_control_frame(kind::SETTINGS, 0, 0, &payload);
    }

    pub(crate) fn settings_ack(&mut self) {
        self.put_control_frame(kind::SETTINGS, flag::ACK, 0, &[]);
    }

    pub(crate) fn window_update(&mut self, stream: u32, increment: i64) {
        self.put_control_frame(kind::WINDOW_UPDATE, 0, stream, &(increment as u32).to_be_bytes());
    }

    pub(crate) fn rst_stream(&mut self, stream: u32, code: ErrorCode) {
        self.put_control_frame(kind::RST_STREAM, 0, stream, &(code as u32).to_be_bytes());
    }

    pub(crate) fn ping(&mut self, payload: &[u8; 8]) {
        self.unacknowledged_pings += 1;
        self.put_control_frame(kind::PING, 0, 0, payload);
    }

    pub(crate) fn ping_ack(&mut self, opaque: [u8; 8]) {
        self.put_control_frame(kind::PING, flag::ACK, 0, &opaque);
    }

    pub(crate) fn go_away(&mut self, last_stream: u32, code: ErrorCode, text: &str) {
        let numbers = [last_stream, code as u32].map(u32::to_be_bytes).concat();
        self.put_control_frame(kind::GOAWAY, 0, 0, &[&numbers, text.as_bytes()].concat());
    }

    fn put_control_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.put(&FrameHeader { len: payload.len(), kind, flags, stream }.encode());
        self.output.put(payload);
    }
}
