//! HTTP/2 from the server's side (RFC 9113), without I/O and without a clock.
//!
//! What the client sent goes in by [`Connection::receive`] and comes out as
//! [`Event`]s; answers go in by [`Connection::send`] and its like, and come out
//! as bytes in [`Connection::output`], as fast as the client's windows allow.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use crate::frame::{self, HEAD_BYTES, Head, PAYLOAD_BYTES, PREFACE, Reason, flag, kind, setting};
use crate::hpack::Decoder;
use crate::liveness::{Liveness, Ping};
use crate::message::{Limits, Unread};
use crate::outgoing::Sender;
use crate::request::{Asked, MAX_FIELDS_BYTES, Request, is_trailer};
use crate::routes::{MethodRef, Methods};
use crate::serve::Options;
use crate::status::Status;
use crate::stream::{End, Kind, MAX_WINDOW, Stream};

/// What a client may send on one stream before it has been read, and in all before
/// it has been looked at.
const STREAM_WINDOW: i64 = 1 << 20;
const CONNECTION_WINDOW: i64 = 16 << 20;
/// How often a client may change the window of its streams, all of which that
/// concerns. Clients that measure their bandwidth do it a few dozen times.
const WINDOW_CHANGES: usize = 1000;
/// Streams that we ended while the client was still sending, and that are
/// remembered so that what is on its way is passed over.
const ABANDONED_STREAMS: usize = 1024;

/// What the client wants.
#[derive(Debug)]
pub(crate) enum Event {
    /// A call with the only message that it has.
    Call { stream: u32, method: MethodRef, message: Unread },
    /// A call whose messages follow.
    Opened { stream: u32, method: MethodRef },
    /// The next message of such a call.
    Message { stream: u32, message: Unread },
    /// It has no more messages.
    Ended { stream: u32 },
    /// A request that is not gRPC; its body has been passed over.
    Page { stream: u32, verb: http::Method, path: String },
    /// Nobody waits for the answer any more.
    Reset { stream: u32 },
}

impl Event {
    /// Whether it is about a stream.
    pub(crate) fn is_of(&self, id: u32) -> bool {
        match self {
            Event::Call { stream, .. }
            | Event::Opened { stream, .. }
            | Event::Message { stream, .. }
            | Event::Ended { stream }
            | Event::Page { stream, .. }
            | Event::Reset { stream } => *stream == id,
        }
    }
}

/// The connection is lost: the client broke the rules. It has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({reason:?})")]
pub(crate) struct Broken {
    reason: Reason,
    text: &'static str,
}

/// Why a frame is not accepted.
enum Fault {
    Connection(Broken),
    Stream(u32, Reason),
}

type Checked<T = ()> = Result<T, Fault>;

fn broken<T>(reason: Reason, text: &'static str) -> Checked<T> {
    Err(Fault::Connection(Broken { reason, text }))
}

/// One connection.
pub(crate) struct Connection {
    max_streams: usize,
    limits: Limits,
    /// Bytes of a frame that is not complete.
    rest: Vec<u8>,
    stage: Stage,
    decoder: Decoder,
    /// A block of fields that is not complete.
    block: Option<Block>,
    last_stream: u32,
    window: i64,
    consumed: i64,
    streams: HashMap<u32, Stream>,
    abandoned: HashSet<u32>,
    /// Not all that were abandoned are remembered.
    abandoned_more: bool,
    window_changes: usize,
    /// No new streams are taken.
    leaving: bool,
    sender: Sender,
    liveness: Liveness,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preface,
    FirstSettings,
    Open,
}

struct Block {
    stream: u32,
    end_stream: bool,
    depends_on_itself: bool,
    bytes: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(options: &Options, now: Instant) -> Self {
        let limits =
            Limits { message_bytes: options.message_bytes, budget: options.budget.clone() };
        let mut sender = Sender::new();
        sender.settings(&[
            (setting::MAX_CONCURRENT_STREAMS, options.max_streams),
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32),
            (setting::MAX_HEADER_LIST_SIZE, MAX_FIELDS_BYTES as u32),
        ]);
        let default_window = 65_535;
        sender.window_update(0, CONNECTION_WINDOW - default_window);
        Connection {
            max_streams: options.max_streams as usize,
            limits,
            rest: Vec::new(),
            stage: Stage::Preface,
            decoder: Decoder::new(),
            block: None,
            last_stream: 0,
            window: CONNECTION_WINDOW,
            consumed: 0,
            streams: HashMap::new(),
            abandoned: HashSet::new(),
            abandoned_more: false,
            window_changes: 0,
            leaving: false,
            sender,
            liveness: Liveness::new(options.keepalive.clone(), now),
            events: VecDeque::new(),
        }
    }

    /// Takes bytes that the client sent.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        methods: &Methods,
        now: Instant,
    ) -> Result<(), Broken> {
        self.liveness.heard(now);
        let received = if self.rest.is_empty() {
            self.frames(input, methods, now).map(|used| self.rest.extend_from_slice(&input[used..]))
        } else {
            self.rest.extend_from_slice(input);
            let mut rest = std::mem::take(&mut self.rest);
            let used = self.frames(&rest, methods, now);
            used.map(|used| {
                rest.drain(..used);
                if !rest.is_empty() {
                    self.rest = rest;
                }
            })
        };
        received.inspect_err(|broken| self.go_away(broken.reason, broken.text))
    }

    /// The next thing that the client wants.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Tells the client that nothing new is taken, and why.
    pub(crate) fn go_away(&mut self, reason: Reason, text: &str) {
        self.leaving = true;
        self.sender.go_away(self.last_stream, reason, text);
    }

    /// Whether the client has nothing more to expect from us.
    pub(crate) fn is_done(&self) -> bool {
        self.leaving && self.streams.is_empty()
    }

    /// Handles all complete frames of `input`; how many bytes they were.
    fn frames(&mut self, input: &[u8], methods: &Methods, now: Instant) -> Result<usize, Broken> {
        let mut used = 0;
        if self.stage == Stage::Preface {
            let len = input.len().min(PREFACE.len());
            if input[..len] != PREFACE[..len] {
                return Err(Broken { reason: Reason::Protocol, text: "not HTTP/2" });
            }
            if len < PREFACE.len() {
                return Ok(0);
            }
            (self.stage, used) = (Stage::FirstSettings, len);
        }
        while let Some(head) = Head::peek(&input[used..]) {
            if head.len > PAYLOAD_BYTES {
                return Err(Broken { reason: Reason::FrameSize, text: "a frame is too large" });
            }
            let start = used + HEAD_BYTES;
            let Some(payload) = input.get(start..start + head.len) else { break };
            used = start + head.len;
            match self.frame(head, payload, methods, now) {
                Ok(()) => {}
                Err(Fault::Stream(stream, reason)) => self.reset(stream, reason),
                Err(Fault::Connection(broken)) => return Err(broken),
            }
        }
        Ok(used)
    }

    fn frame(&mut self, head: Head, payload: &[u8], methods: &Methods, now: Instant) -> Checked {
        if self.stage == Stage::FirstSettings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return broken(Reason::Protocol, "the first frame is not the settings");
            }
            self.stage = Stage::Open;
        }
        if let Some(block) = &self.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return broken(Reason::Protocol, "a block of fields is interrupted");
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => self.headers(head, payload, methods),
            kind::CONTINUATION => self.continuation(head, payload, methods),
            kind::PRIORITY => priority(head, payload),
            kind::RST_STREAM => self.client_reset(head, payload),
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => self.ping(head, payload, now),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::GOAWAY if head.stream != 0 => broken(Reason::Protocol, "GOAWAY on a stream"),
            kind::GOAWAY => {
                self.leaving = true;
                Ok(())
            }
            kind::PUSH_PROMISE => broken(Reason::Protocol, "a client cannot push"),
            _ => Ok(()),
        }
    }

    fn data(&mut self, head: Head, payload: &[u8]) -> Checked {
        if head.stream == 0 {
            return broken(Reason::Protocol, "DATA on stream 0");
        }
        let data = unpadded(head, payload)?;
        let len = head.len as i64;
        self.window -= len;
        if self.window < 0 {
            return broken(Reason::FlowControl, "more DATA than the connection's window");
        }
        self.consumed += len;
        if self.consumed >= CONNECTION_WINDOW / 2 {
            self.sender.window_update(0, self.consumed);
            self.window += std::mem::take(&mut self.consumed);
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return self.closed(head.stream);
        };
        let incoming = &mut stream.incoming;
        if incoming.ended {
            return Err(Fault::Stream(head.stream, Reason::StreamClosed));
        }
        incoming.window -= len;
        if incoming.window < 0 {
            return Err(Fault::Stream(head.stream, Reason::FlowControl));
        }
        if let Some(announced) = &mut incoming.announced {
            let left = announced.checked_sub(data.len() as u64);
            *announced = left.ok_or(Fault::Stream(head.stream, Reason::Protocol))?;
        }
        self.body(head, data);
        if head.has(flag::END_STREAM) { self.ended(head.stream) } else { Ok(()) }
    }

    /// Takes bytes of a request's body.
    fn body(&mut self, head: Head, data: &[u8]) {
        let id = head.stream;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let many = stream.many();
        // Messages in a row give credit as they are read, not as they come.
        let mut credit = head.len as i64;
        let wait = many || !head.has(flag::END_STREAM);
        if matches!(stream.kind, Kind::Call(_)) {
            let (incoming, events) = (&mut stream.incoming, &mut self.events);
            let (first, mut more) = (&mut incoming.message, false);
            let pushed = incoming.messages.push(data, &self.limits, wait, |message| match many {
                true => {
                    credit -= message.framed_len() as i64;
                    events.push_back(Event::Message { stream: id, message });
                }
                false => more |= first.replace(message).is_some(),
            });
            let too_many = || Status::internal("grpc: a unary call with more than one message");
            let failed = pushed.err().or_else(|| more.then(too_many));
            if let Some(status) = failed {
                return self.refuse(id, status);
            }
        }
        self.credit(id, credit);
    }

    /// Lets the client send `bytes` more on a stream.
    pub(crate) fn credit(&mut self, id: u32, bytes: i64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let incoming = &mut stream.incoming;
        incoming.consumed += bytes;
        if incoming.consumed >= STREAM_WINDOW / 2 && !incoming.ended {
            self.sender.window_update(id, incoming.consumed);
            incoming.window += std::mem::take(&mut incoming.consumed);
        }
    }

    /// Ends a call with a status that we, and no handler, found.
    fn refuse(&mut self, id: u32, status: Status) {
        self.events.push_back(Event::Reset { stream: id });
        self.finish(id, Err(status));
    }

    /// The client has said everything on a stream.
    fn ended(&mut self, id: u32) -> Checked {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let incoming = &mut stream.incoming;
        incoming.ended = true;
        if incoming.announced.is_some_and(|left| left > 0) {
            return Err(Fault::Stream(id, Reason::Protocol));
        }
        // Answered before it was complete.
        if stream.outgoing.end.is_some() {
            return Ok(());
        }
        let event = match &mut stream.kind {
            Kind::Page { verb, path } => {
                Event::Page { stream: id, verb: verb.clone(), path: std::mem::take(path) }
            }
            Kind::Call(_) if !incoming.messages.is_between_messages() => {
                self.refuse(id, Status::internal("grpc: the request ends within a message"));
                return Ok(());
            }
            Kind::Call(method) if method.many => Event::Ended { stream: id },
            Kind::Call(method) => match incoming.message.take() {
                Some(message) => Event::Call { stream: id, method: *method, message },
                None => {
                    self.refuse(id, Status::internal("grpc: a unary call without a message"));
                    return Ok(());
                }
            },
        };
        self.events.push_back(event);
        Ok(())
    }

    /// Judges a frame on a stream that is not open.
    fn closed(&mut self, id: u32) -> Checked {
        match () {
            () if id > self.last_stream || id.is_multiple_of(2) => {
                broken(Reason::Protocol, "a frame on a stream that was never opened")
            }
            () if self.abandoned.contains(&id) => Ok(()),
            () => Err(Fault::Stream(id, Reason::StreamClosed)),
        }
    }

    fn headers(&mut self, head: Head, payload: &[u8], methods: &Methods) -> Checked {
        if head.stream.is_multiple_of(2) {
            return broken(Reason::Protocol, "HEADERS on a stream that no client may open");
        }
        let mut fields = unpadded(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = fields.split_at_checked(5) else {
                return broken(Reason::FrameSize, "HEADERS too short for a priority");
            };
            fields = rest;
            depends_on_itself = depends_on(priority) == head.stream;
        }
        let end_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.fields(head.stream, end_stream, depends_on_itself, fields, methods);
        }
        let bytes = fields.to_vec();
        self.block = Some(Block { stream: head.stream, end_stream, depends_on_itself, bytes });
        Ok(())
    }

    fn continuation(&mut self, head: Head, payload: &[u8], methods: &Methods) -> Checked {
        let Some(mut block) = self.block.take() else {
            return broken(Reason::Protocol, "CONTINUATION of nothing");
        };
        // A frame counts even if it is empty.
        if block.bytes.len() + payload.len() + HEAD_BYTES > MAX_FIELDS_BYTES {
            return broken(Reason::EnhanceYourCalm, "a block of fields is too large");
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            let Block { stream, end_stream, depends_on_itself, bytes } = block;
            return self.fields(stream, end_stream, depends_on_itself, &bytes, methods);
        }
        if payload.is_empty() {
            return broken(Reason::EnhanceYourCalm, "an empty CONTINUATION");
        }
        self.block = Some(block);
        Ok(())
    }

    /// A complete block of fields: a request, or what comes behind its body. It
    /// is decoded in any case, or the next one could not be.
    fn fields(
        &mut self,
        id: u32,
        end_stream: bool,
        depends_on_itself: bool,
        block: &[u8],
        methods: &Methods,
    ) -> Checked {
        const GARBLED: Broken =
            Broken { reason: Reason::Compression, text: "a block of fields cannot be decoded" };
        let garbled = |_| Fault::Connection(GARBLED);
        if id <= self.last_stream {
            let (mut valid, mut bytes) = (end_stream, 0);
            let trailer = |name: &[u8], value: &[u8]| {
                bytes += name.len() + value.len();
                valid = valid && bytes <= MAX_FIELDS_BYTES && is_trailer(name);
            };
            self.decoder.decode(block, trailer).map_err(garbled)?;
            return self.trailers(id, valid);
        }
        let mut request = Request::new(methods);
        self.decoder.decode(block, |name, value| request.field(name, value)).map_err(garbled)?;
        self.last_stream = id;
        if depends_on_itself {
            return Err(Fault::Stream(id, Reason::Protocol));
        }
        if self.leaving || self.streams.len() >= self.max_streams {
            return Err(Fault::Stream(id, Reason::RefusedStream));
        }
        let announced = request.content_length();
        let asked = request.finish().ok_or(Fault::Stream(id, Reason::Protocol))?;
        self.open(id, asked, announced, end_stream)
    }

    fn trailers(&mut self, id: u32, valid: bool) -> Checked {
        match self.streams.get(&id) {
            None if self.abandoned.contains(&id) || self.abandoned_more => Ok(()),
            None => broken(Reason::StreamClosed, "HEADERS on a stream that is closed"),
            Some(stream) if stream.incoming.ended => Err(Fault::Stream(id, Reason::StreamClosed)),
            Some(_) if !valid => Err(Fault::Stream(id, Reason::Protocol)),
            Some(_) => self.ended(id),
        }
    }

    fn open(&mut self, id: u32, asked: Asked, announced: Option<u64>, ended: bool) -> Checked {
        let window = self.sender.initial_window();
        let stream = |kind| Stream::new(kind, STREAM_WINDOW, window);
        let mut refusal = None;
        let mut stream = match asked {
            Asked::Page { verb, path } => stream(Kind::Page { verb, path }),
            Asked::Call(method) => {
                if method.many {
                    self.events.push_back(Event::Opened { stream: id, method });
                }
                stream(Kind::Call(method))
            }
            Asked::Refused(status) => {
                refusal = Some(status);
                stream(Kind::Call(MethodRef::NONE))
            }
        };
        stream.incoming.announced = announced;
        self.streams.insert(id, stream);
        if let Some(status) = refusal {
            self.finish(id, Err(status));
        }
        if ended { self.ended(id) } else { Ok(()) }
    }

    fn client_reset(&mut self, head: Head, payload: &[u8]) -> Checked {
        if payload.len() != 4 {
            return broken(Reason::FrameSize, "RST_STREAM of a wrong size");
        }
        if head.stream == 0 || head.stream > self.last_stream {
            return broken(Reason::Protocol, "RST_STREAM of a stream that was never opened");
        }
        self.abandoned.remove(&head.stream);
        self.forget(head.stream);
        Ok(())
    }

    /// Ends a stream at once, because of what the client did on it.
    fn reset(&mut self, id: u32, reason: Reason) {
        self.sender.reset(id, reason);
        let ended = self.streams.get(&id).is_some_and(|stream| stream.incoming.ended);
        self.forget(id);
        if !ended {
            self.abandon(id);
        }
    }

    fn forget(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.sender.forget(&stream);
            self.events.push_back(Event::Reset { stream: id });
        }
    }

    fn abandon(&mut self, id: u32) {
        if self.abandoned.len() == ABANDONED_STREAMS {
            self.abandoned.clear();
            self.abandoned_more = true;
        }
        self.abandoned.insert(id);
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Checked {
        if head.stream != 0 {
            return broken(Reason::Protocol, "SETTINGS on a stream");
        }
        let valid =
            if head.has(flag::ACK) { payload.is_empty() } else { payload.len().is_multiple_of(6) };
        if !valid {
            return broken(Reason::FrameSize, "SETTINGS of a wrong size");
        }
        if head.has(flag::ACK) {
            return Ok(());
        }
        let mut window = None;
        for entry in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([entry[0], entry[1]]);
            let value = frame::number(&entry[2..]).unwrap_or_default();
            self.setting(name, value)?;
            if name == setting::INITIAL_WINDOW_SIZE {
                window = Some(value);
            }
        }
        self.sender.settings_ack();
        window.map_or(Ok(()), |window| self.initial_window(window.into()))
    }

    fn initial_window(&mut self, window: i64) -> Checked {
        if window != self.sender.initial_window() {
            self.window_changes += 1;
        }
        if self.window_changes > WINDOW_CHANGES {
            return broken(Reason::EnhanceYourCalm, "the window is changed too often");
        }
        if !self.sender.set_initial_window(window, &mut self.streams) {
            return broken(Reason::FlowControl, "a window grows beyond its limit");
        }
        Ok(())
    }

    fn setting(&mut self, name: u16, value: u32) -> Checked {
        match name {
            setting::HEADER_TABLE_SIZE => self.sender.set_table_bytes(value),
            setting::ENABLE_PUSH if value > 1 => {
                return broken(Reason::Protocol, "ENABLE_PUSH is neither 0 nor 1");
            }
            setting::INITIAL_WINDOW_SIZE if i64::from(value) > MAX_WINDOW => {
                return broken(Reason::FlowControl, "INITIAL_WINDOW_SIZE is too large");
            }
            setting::MAX_FRAME_SIZE if !(PAYLOAD_BYTES..1 << 24).contains(&(value as usize)) => {
                return broken(Reason::Protocol, "MAX_FRAME_SIZE is out of range");
            }
            _ => {}
        }
        Ok(())
    }

    fn ping(&mut self, head: Head, payload: &[u8], now: Instant) -> Checked {
        if head.stream != 0 {
            return broken(Reason::Protocol, "PING on a stream");
        }
        let Ok(opaque) = <[u8; 8]>::try_from(payload) else {
            return broken(Reason::FrameSize, "PING of a wrong size");
        };
        if head.has(flag::ACK) {
            return Ok(());
        }
        let wrote = self.sender.take_wrote();
        match self.liveness.pinged(wrote, !self.streams.is_empty(), now) {
            Ping::Answer => {
                self.sender.pong(opaque);
                Ok(())
            }
            Ping::TooMany => broken(Reason::EnhanceYourCalm, "too_many_pings"),
        }
    }

    fn window_update(&mut self, head: Head, payload: &[u8]) -> Checked {
        let Some(increment) = frame::number(payload).filter(|_| payload.len() == 4) else {
            return broken(Reason::FrameSize, "WINDOW_UPDATE of a wrong size");
        };
        let increment = i64::from(increment & 0x7fff_ffff);
        if head.stream == 0 {
            if increment == 0 {
                return broken(Reason::Protocol, "WINDOW_UPDATE by nothing");
            }
            if !self.sender.widen(increment) {
                return broken(Reason::FlowControl, "a window grows beyond its limit");
            }
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            // Perhaps sent before the client heard that the stream has ended.
            return match head.stream > self.last_stream {
                true => broken(Reason::Protocol, "a frame on a stream that was never opened"),
                false => Ok(()),
            };
        };
        if increment == 0 {
            return Err(Fault::Stream(head.stream, Reason::Protocol));
        }
        stream.outgoing.window += increment;
        if stream.outgoing.window > MAX_WINDOW {
            return Err(Fault::Stream(head.stream, Reason::FlowControl));
        }
        self.sender.schedule(head.stream, &mut stream.outgoing);
        Ok(())
    }
}

/// Sending.
impl Connection {
    /// Sends a message on a stream, if it is still there.
    pub(crate) fn send(&mut self, id: u32, payload: crate::Payload) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.sender.queue(id, &mut stream.outgoing, payload);
    }

    /// Ends a call.
    pub(crate) fn finish(&mut self, id: u32, result: Result<(), Status>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.outgoing.end.is_none() {
            stream.outgoing.end = Some(End::Call(result));
            self.sender.schedule(id, &mut stream.outgoing);
        }
    }

    /// Answers a request that is not gRPC.
    pub(crate) fn answer_page(&mut self, id: u32, response: &http::Response<Bytes>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let bodiless =
            matches!(&stream.kind, Kind::Page { verb, .. } if verb == http::Method::HEAD);
        self.sender.page(id, &mut stream.outgoing, response, !bodiless);
    }

    /// How many more bytes a stream should be given to send.
    pub(crate) fn room(&self, id: u32) -> usize {
        const WAITING_BYTES: usize = 64 << 10;
        let waiting = self.streams.get(&id).map(|stream| stream.outgoing.queued_bytes());
        waiting.map_or(0, |waiting| WAITING_BYTES.saturating_sub(waiting))
    }

    /// Bytes of answers that wait for the client's windows.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.sender.waiting_bytes()
    }

    /// Puts as much of what waits into the output as its size and the windows
    /// allow.
    pub(crate) fn fill(&mut self) {
        while let Some(id) = self.sender.fill(&mut self.streams) {
            let ended = self.streams.remove(&id).is_none_or(|stream| stream.incoming.ended);
            if !ended {
                // We are done, and the rest of the request does not matter.
                self.sender.reset(id, Reason::NoError);
                self.abandon(id);
            }
        }
    }

    /// What is to be written.
    pub(crate) fn output(&mut self) -> &mut crate::output::Output {
        self.sender.output()
    }

    /// When [`Connection::on_time`] is to be called next.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        self.liveness.alarm()
    }

    /// Does what is due by now; whether the client is still there.
    pub(crate) fn on_time(&mut self, now: Instant) -> bool {
        match self.liveness.on_time(now) {
            crate::liveness::Due::Nothing => true,
            crate::liveness::Due::Ping => {
                self.sender.ping();
                true
            }
            crate::liveness::Due::GiveUp => false,
        }
    }
}

fn priority(head: Head, payload: &[u8]) -> Checked {
    if head.stream == 0 {
        return broken(Reason::Protocol, "PRIORITY on stream 0");
    }
    if payload.len() != 5 {
        return Err(Fault::Stream(head.stream, Reason::FrameSize));
    }
    if depends_on(payload) == head.stream {
        return Err(Fault::Stream(head.stream, Reason::Protocol));
    }
    Ok(())
}

/// The stream that a priority names; priorities are otherwise passed over.
fn depends_on(priority: &[u8]) -> u32 {
    frame::number(priority).unwrap_or_default() & 0x7fff_ffff
}

/// The payload without its padding.
fn unpadded(head: Head, payload: &[u8]) -> Checked<&[u8]> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let unpadded = payload.split_first().and_then(|(padding, rest)| {
        let len = rest.len().checked_sub(usize::from(*padding))?;
        rest.get(..len)
    });
    match unpadded {
        Some(unpadded) => Ok(unpadded),
        None => broken(Reason::Protocol, "more padding than payload"),
    }
}
