//! What goes to the client, and in which order.
//!
//! Answers that fit a frame go first, so that a call does not wait behind a
//! busy watch; all others take turns, a frame each. Frames are made as late as
//! possible: what is in the output can no longer be overtaken.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::Payload;
use crate::frame::{Head, PAYLOAD_BYTES, Reason, flag, kind};
use crate::hpack::Encoder;
use crate::output::Output;
use crate::status::Status;
use crate::stream::{End, MAX_WINDOW, Outgoing, Stream};

/// Bytes of frames that may wait for the socket before no more are made.
const OUTPUT_BYTES: usize = 128 << 10;
/// What large answers leave of the connection's window for small ones. A client
/// gives more long before it has so little left.
const RESERVED_WINDOW: i64 = 8 << 10;
const DEFAULT_WINDOW: i64 = 65_535;
/// After so many urgent turns in a row one of the others has its turn.
const URGENT_TURNS: u32 = 8;
/// Streams in a queue beyond those that are open, which were reset meanwhile.
const GONE_STREAMS: usize = 1024;

pub(crate) struct Sender {
    output: Output,
    encoder: Encoder,
    /// What the client takes, over all streams, and on a new stream.
    window: i64,
    initial_window: i64,
    /// Streams with something to send: those with one small answer, and others.
    urgent: VecDeque<u32>,
    waiting: VecDeque<u32>,
    urgent_turns: u32,
    /// Streams that the connection's window stops.
    stopped: Vec<u32>,
    waiting_bytes: usize,
    /// Whether anything but answers to pings was sent.
    wrote: bool,
    block: Vec<u8>,
}

/// What a stream's turn came to.
enum Turn {
    /// It has ended.
    Over,
    /// It has more to send.
    More,
    /// The connection's window stops it.
    Stopped,
    /// It has nothing to send, or its own window stops it.
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
            stopped: Vec::new(),
            waiting_bytes: 0,
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

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether the client was told anything since the last call.
    pub(crate) fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote)
    }

    /// Adds a message to what a stream has to send.
    pub(crate) fn queue(&mut self, id: u32, outgoing: &mut Outgoing, payload: Payload) {
        self.waiting_bytes += payload.len();
        outgoing.push(payload);
        self.schedule(id, outgoing);
    }

    /// Gives a stream its turn, sooner or later.
    pub(crate) fn schedule(&mut self, id: u32, outgoing: &mut Outgoing) {
        let idle = outgoing.queued_bytes() == 0 && outgoing.end.is_none();
        if idle || std::mem::replace(&mut outgoing.scheduled, true) {
            return;
        }
        match outgoing.queued_bytes() <= PAYLOAD_BYTES && !outgoing.head_sent {
            true => self.urgent.push_back(id),
            false => self.waiting.push_back(id),
        }
    }

    /// Queues an answer that is not gRPC.
    pub(crate) fn page(
        &mut self,
        id: u32,
        outgoing: &mut Outgoing,
        response: &http::Response<Bytes>,
        body: bool,
    ) {
        let length = response.body().len().to_string();
        let status = response.status();
        let mut fields: Vec<(&[u8], &[u8])> = vec![(b":status", status.as_str().as_bytes())];
        let headers = response.headers();
        fields.extend(
            headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())),
        );
        if !headers.contains_key(http::header::CONTENT_LENGTH) {
            fields.push((b"content-length", length.as_bytes()));
        }
        let end = !body || response.body().is_empty();
        let mut block = std::mem::take(&mut self.block);
        self.encoder.plain(&fields, &mut block);
        self.headers(id, &mut block, end);
        self.block = block;
        outgoing.head_sent = true;
        outgoing.end = Some(End::Page);
        if !end {
            self.waiting_bytes += response.body().len();
            outgoing.push_bytes(response.body().clone());
        }
        self.schedule(id, outgoing);
    }

    /// Forgets what a stream had to send.
    pub(crate) fn forget(&mut self, stream: &Stream) {
        self.waiting_bytes -= stream.outgoing.queued_bytes();
    }

    /// Makes frames until there is enough, nothing more to send, or a stream has
    /// ended, which is returned.
    pub(crate) fn fill(&mut self, streams: &mut HashMap<u32, Stream>) -> Option<u32> {
        self.forget_gone(streams);
        while self.output.len() < OUTPUT_BYTES {
            let (id, urgent) = self.next()?;
            let Some(stream) = streams.get_mut(&id) else { continue };
            let outgoing = &mut stream.outgoing;
            let reserved = if urgent { 0 } else { RESERVED_WINDOW };
            match self.turn(id, outgoing, reserved) {
                Turn::Over => return Some(id),
                Turn::More => self.waiting.push_back(id),
                Turn::Stopped => self.stopped.push(id),
                Turn::Idle => outgoing.scheduled = false,
            }
        }
        None
    }

    /// Whose turn it is, and whether that is urgent.
    fn next(&mut self) -> Option<(u32, bool)> {
        let others_first = self.urgent_turns == URGENT_TURNS && !self.waiting.is_empty();
        if !others_first && let Some(id) = self.urgent.pop_front() {
            self.urgent_turns = (self.urgent_turns + 1).min(URGENT_TURNS);
            return Some((id, true));
        }
        self.urgent_turns = 0;
        self.waiting.pop_front().map(|id| (id, false))
    }

    /// Streams that were reset stay in their queue; not too many of them.
    fn forget_gone(&mut self, streams: &HashMap<u32, Stream>) {
        let most = 2 * streams.len() + GONE_STREAMS;
        if self.stopped.len() > most {
            self.stopped.retain(|id| streams.contains_key(id));
        }
        for queue in [&mut self.urgent, &mut self.waiting] {
            if queue.len() > most {
                queue.retain(|id| streams.contains_key(id));
            }
        }
    }

    /// Sends a frame of a stream, and what comes before and behind it. Of the
    /// connection's window `reserved` is left.
    fn turn(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Turn {
        if !outgoing.head_sent {
            if let Some(End::Call(Err(status))) = &outgoing.end
                && outgoing.queued_bytes() == 0
            {
                self.failure(id, status, true);
                return Turn::Over;
            }
            outgoing.head_sent = true;
            let mut block = std::mem::take(&mut self.block);
            self.encoder.grpc_head(&mut block);
            self.headers(id, &mut block, false);
            self.block = block;
        }
        if outgoing.queued_bytes() > 0
            && let Some(turn) = self.data(id, outgoing, reserved)
        {
            return turn;
        }
        match &outgoing.end {
            None => return Turn::Idle,
            // The last frame of data said so.
            Some(End::Page) => {}
            Some(End::Call(Ok(()))) => {
                let mut block = std::mem::take(&mut self.block);
                self.encoder.ok(&mut block);
                self.headers(id, &mut block, true);
                self.block = block;
            }
            Some(End::Call(Err(status))) => self.failure(id, status, false),
        }
        Turn::Over
    }

    /// Sends a frame of data; how the turn ends, unless all data have been sent.
    fn data(&mut self, id: u32, outgoing: &mut Outgoing, reserved: i64) -> Option<Turn> {
        let queued = outgoing.queued_bytes();
        let window = outgoing.window.min(self.window - reserved);
        let len = queued.min(PAYLOAD_BYTES).min(window.max(0) as usize);
        if len == 0 {
            return Some(if outgoing.window > 0 { Turn::Stopped } else { Turn::Idle });
        }
        outgoing.window -= len as i64;
        self.window -= len as i64;
        self.waiting_bytes -= len;
        let last = len == queued && matches!(outgoing.end, Some(End::Page));
        let flags = if last { flag::END_STREAM } else { 0 };
        self.put(Head { len, kind: kind::DATA, flags, stream: id }, &[]);
        outgoing.take(len, |piece| self.output.put_shared(piece));
        (len < queued).then_some(Turn::More)
    }

    /// Trailers of a call that failed, alone if it has no head.
    fn failure(&mut self, id: u32, status: &Status, alone: bool) {
        let code = (status.code() as u8).to_string();
        let message = status.encoded_message();
        let head: [(&[u8], &[u8]); 2] =
            [(b":status", b"200"), (b"content-type", b"application/grpc")];
        let tail: [(&[u8], &[u8]); 2] =
            [(b"grpc-status", code.as_bytes()), (b"grpc-message", message.as_bytes())];
        let mut block = std::mem::take(&mut self.block);
        if alone {
            self.encoder.plain(&head, &mut block);
        }
        self.encoder.plain(&tail, &mut block);
        self.headers(id, &mut block, true);
        self.block = block;
    }

    /// Sends a block of fields, in as many frames as it takes, and empties it.
    fn headers(&mut self, stream: u32, block: &mut Vec<u8>, end: bool) {
        let mut flags = if end { flag::END_STREAM } else { 0 };
        let mut kind = kind::HEADERS;
        let mut rest = &block[..];
        loop {
            let (part, behind) = rest.split_at(rest.len().min(PAYLOAD_BYTES));
            if behind.is_empty() {
                flags |= flag::END_HEADERS;
            }
            self.put(Head { len: part.len(), kind, flags, stream }, part);
            if behind.is_empty() {
                break;
            }
            (rest, kind, flags) = (behind, kind::CONTINUATION, 0);
        }
        block.clear();
    }

    fn put(&mut self, head: Head, payload: &[u8]) {
        self.wrote = true;
        self.output.put(&head.encode());
        self.output.put(payload);
    }
}

/// Windows, as the client sets them.
impl Sender {
    /// The client takes `increment` more; whether that is possible.
    pub(crate) fn widen(&mut self, increment: i64) -> bool {
        self.window += increment;
        self.waiting.extend(self.stopped.drain(..));
        self.window <= MAX_WINDOW
    }

    /// Changes what every stream may send; whether that is possible.
    pub(crate) fn set_initial_window(
        &mut self,
        window: i64,
        streams: &mut HashMap<u32, Stream>,
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

/// Frames that belong to no answer.
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

    pub(crate) fn reset(&mut self, stream: u32, reason: Reason) {
        self.control(kind::RST_STREAM, 0, stream, &(reason as u32).to_be_bytes());
    }

    pub(crate) fn ping(&mut self) {
        self.control(kind::PING, 0, 0, b"mem_etcd");
    }

    pub(crate) fn pong(&mut self, opaque: [u8; 8]) {
        self.control(kind::PING, flag::ACK, 0, &opaque);
    }

    pub(crate) fn go_away(&mut self, last_stream: u32, reason: Reason, text: &str) {
        let numbers = [last_stream, reason as u32].map(u32::to_be_bytes).concat();
        self.control(kind::GOAWAY, 0, 0, &[&numbers, text.as_bytes()].concat());
    }

    fn control(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.put(&Head { len: payload.len(), kind, flags, stream }.encode());
        self.output.put(payload);
    }
}
