//! Listens to one connection: which calls begin and end in it, and what they say.
//!
//! It sees the bytes before they are handed on, keeps no more than unfinished messages
//! and header fields, and leaves all else to the recorder's thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http2::Decoder;
use trace::{Cut, Outcome};

use crate::frames::{Head, Piece, Scanner, flag, kind};
use crate::messages::{Budget, Inbox, Message};
use crate::metrics::Metrics;
use crate::recorder::{Call, Event, Recorder};

/// A block of header fields that is larger cannot be followed.
const BLOCK_BYTES: usize = 1 << 20;
/// The largest table of header fields that a peer may have agreed on.
const HEADER_TABLE_BYTES: usize = 1 << 20;
/// Streams of a connection that are followed at once; others are forwarded only.
const STREAMS: usize = 1 << 20;
/// Names of methods that are kept for the next call.
const METHODS: usize = 256;

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// Follows a connection.
pub struct Tap {
    conn: u64,
    metrics: Arc<Metrics>,
    /// None if nothing is recorded, or not any more: the two spoke a language that we
    /// do not.
    recorder: Option<Recorder>,
    client: Direction,
    server: Direction,
    streams: HashMap<u32, Stream>,
    methods: HashMap<Box<[u8]>, Arc<str>>,
}

/// What is under way in one direction.
struct Direction {
    scanner: Scanner,
    headers: Decoder,
    /// A block of header fields that is not complete.
    block: Vec<u8>,
    /// Whether it is the last that is said on its stream.
    ends: bool,
    /// Bytes of the frame's payload that are data and still to come.
    data: usize,
}

/// A call, or a stream of messages.
struct Stream {
    opened: Instant,
    method: Option<Arc<str>>,
    is_stream: bool,
    sent: Inbox,
    received: Inbox,
    request: Message,
    response: Message,
    outcome: Outcome,
}

impl Tap {
    pub fn new(conn: u64, metrics: Arc<Metrics>, recorder: Option<Recorder>) -> Self {
        Tap {
            conn,
            metrics,
            recorder,
            client: Direction::new(),
            server: Direction::new(),
            streams: HashMap::new(),
            methods: HashMap::new(),
        }
    }

    /// Hears what `side` says.
    pub fn observe(&mut self, side: Side, bytes: &[u8]) {
        self.metrics.forwarded(side, bytes.len());
        let now = Instant::now();
        let mut scanner = std::mem::take(&mut self.direction(side).scanner);
        scanner.scan(bytes, |piece| self.piece(side, piece, now));
        self.direction(side).scanner = scanner;
    }

    /// Whether a frame may be put in after what `side` has said.
    pub fn is_between_frames(&mut self, side: Side) -> bool {
        self.direction(side).scanner.is_between()
    }

    /// Whether no call is under way.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    fn direction(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn piece(&mut self, side: Side, piece: Piece, now: Instant) {
        match piece.head.kind {
            kind::HEADERS | kind::CONTINUATION => self.header(side, piece, now),
            kind::DATA => self.data(side, piece, now),
            kind::RST_STREAM if piece.is_last => {
                let cut = if side == Side::Client { Cut::Client } else { Cut::Server };
                self.end(piece.head.stream, Some(cut), now);
            }
            _ => {}
        }
    }

    fn header(&mut self, side: Side, piece: Piece, now: Instant) {
        let records = self.recorder.is_some();
        let direction = self.direction(side);
        let Piece { head, bytes, is_last, .. } = piece;
        if records && direction.block.len() + bytes.len() <= BLOCK_BYTES {
            direction.block.extend_from_slice(bytes);
        } else if records {
            return self.give_up("a block of header fields is too large");
        }
        if !is_last {
            return;
        }
        if head.kind == kind::HEADERS {
            direction.ends = head.has(flag::END_STREAM);
            if strip(&mut direction.block, head).is_none() && records {
                return self.give_up("a frame of header fields is malformed");
            }
        }
        if head.has(flag::END_HEADERS) {
            self.block(side, head.stream, now);
        }
    }

    /// A block of header fields is complete.
    fn block(&mut self, side: Side, stream: u32, now: Instant) {
        if side == Side::Client {
            self.open(stream, now);
        }
        let direction = match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        let ends = direction.ends;
        let mut fields = Fields::default();
        let Direction { headers, block, .. } = direction;
        let decoded = headers.decode(block, |name, value| fields.take(name, value));
        block.clear();
        if decoded.is_err() {
            self.give_up("header fields cannot be decoded");
        }
        if self.recorder.is_some() {
            self.said(side, stream, fields, now);
        }
        if ends && side == Side::Server {
            self.end(stream, None, now);
        }
    }

    /// Header fields of a stream are known.
    fn said(&mut self, side: Side, number: u32, fields: Fields, now: Instant) {
        let is_new = self.streams.get(&number).is_some_and(|stream| stream.method.is_none());
        if side == Side::Client && is_new {
            let method = self.method(&fields.path);
            let Some(stream) = self.streams.get_mut(&number) else { return };
            stream.is_stream = trace::is_stream(&method);
            stream.method = Some(method.clone());
            if stream.is_stream {
                self.tell(Event::Open { time: now, conn: self.conn, stream: number, method });
            }
        } else if let (Side::Server, Some(stream)) = (side, self.streams.get_mut(&number))
            && let Some(code) = fields.code
        {
            stream.outcome = Outcome { code: Some(code), message: fields.message, cut: None };
        }
    }

    /// A stream begins, unless it is there already: then these are trailers.
    fn open(&mut self, number: u32, now: Instant) {
        if self.streams.contains_key(&number) || self.streams.len() >= STREAMS {
            return;
        }
        self.metrics.begun();
        self.streams.insert(number, Stream::new(now));
    }

    fn data(&mut self, side: Side, piece: Piece, now: Instant) {
        let direction = self.direction(side);
        let (head, mut bytes) = (piece.head, piece.bytes);
        if piece.is_first {
            direction.data = head.len;
            if let (true, Some((padding, rest))) = (head.has(flag::PADDED), bytes.split_first()) {
                direction.data = head.len.saturating_sub(1 + usize::from(*padding));
                bytes = rest;
            }
        }
        let (bytes, _padding) = bytes.split_at(bytes.len().min(direction.data));
        direction.data -= bytes.len();
        if let Some(recorder) = &self.recorder {
            let (conn, stream) = (self.conn, head.stream);
            let tell = |method, message| {
                recorder.record(Event::Message { time: now, conn, stream, side, method, message });
            };
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.push(side, bytes, recorder.budget(), tell);
            }
        }
        if piece.is_last && head.has(flag::END_STREAM) && side == Side::Server {
            self.end(head.stream, None, now);
        }
    }

    /// A stream is over, as its status says or because somebody cut it off.
    fn end(&mut self, number: u32, cut: Option<Cut>, now: Instant) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        self.metrics.ended();
        if stream.outcome.code.is_none() {
            stream.outcome.cut = cut;
        }
        if let (Some(recorder), Some(method)) = (&self.recorder, stream.method.take()) {
            recorder.record(stream.into_event(self.conn, number, method, now));
        }
    }

    /// Gives names that repeat themselves one place in memory.
    fn method(&mut self, path: &[u8]) -> Arc<str> {
        if let Some(known) = self.methods.get(path) {
            return known.clone();
        }
        let name: Arc<str> = String::from_utf8_lossy(path).into();
        if self.methods.len() < METHODS {
            self.methods.insert(path.into(), name.clone());
        }
        name
    }

    fn tell(&self, event: Event) {
        if let Some(recorder) = &self.recorder {
            recorder.record(event);
        }
    }

    /// What follows cannot be understood; it is forwarded all the same.
    fn give_up(&mut self, reason: &str) {
        if let Some(recorder) = self.recorder.take() {
            tracing::warn!(
                connection = self.conn,
                reason,
                "this connection is not recorded further"
            );
            recorder.lost(self.streams.len().max(1) as u64);
        }
    }
}

impl Drop for Tap {
    /// The connection is gone, and what was under way with it.
    fn drop(&mut self) {
        let now = Instant::now();
        let numbers: Vec<_> = self.streams.keys().copied().collect();
        for number in numbers {
            self.end(number, Some(Cut::Connection), now);
        }
    }
}

impl Direction {
    fn new() -> Self {
        Direction {
            scanner: Scanner::default(),
            headers: Decoder::with_limit(HEADER_TABLE_BYTES),
            block: Vec::new(),
            ends: false,
            data: 0,
        }
    }
}

/// Takes off a frame of header fields what is not one.
fn strip(block: &mut Vec<u8>, head: Head) -> Option<()> {
    let (mut start, mut end) = (0, block.len());
    if head.has(flag::PADDED) {
        start = 1;
        end = end.checked_sub(usize::from(*block.first()?))?;
    }
    if head.has(flag::PRIORITY) {
        start += 5;
    }
    if start > end {
        return None;
    }
    block.truncate(end);
    block.drain(..start);
    Some(())
}

/// The header fields that matter.
#[derive(Default)]
struct Fields {
    path: Vec<u8>,
    code: Option<u32>,
    message: String,
}

impl Fields {
    fn take(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b":path" => self.path = value.to_vec(),
            b"grpc-status" => {
                self.code = std::str::from_utf8(value).ok().and_then(|code| code.parse().ok());
            }
            b"grpc-message" => self.message = percent_decoded(value),
            _ => {}
        }
    }
}

/// gRPC writes bytes that are not plain text as %XX.
fn percent_decoded(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Stream {
    fn new(opened: Instant) -> Self {
        Stream {
            opened,
            method: None,
            is_stream: false,
            sent: Inbox::default(),
            received: Inbox::default(),
            request: Message::default(),
            response: Message::default(),
            outcome: Outcome::default(),
        }
    }

    /// Takes in data. Of a stream every message is an event; of a call the first of
    /// each side is kept for its end.
    fn push(
        &mut self,
        side: Side,
        bytes: &[u8],
        budget: &Budget,
        mut tell: impl FnMut(Arc<str>, Message),
    ) {
        let (inbox, kept) = match side {
            Side::Client => (&mut self.sent, &mut self.request),
            Side::Server => (&mut self.received, &mut self.response),
        };
        let (method, is_stream) = (&self.method, self.is_stream);
        inbox.push(bytes, budget, |message| match method {
            Some(method) if is_stream => tell(method.clone(), message),
            _ if kept.size == 0 && kept.kept.is_none() => *kept = message,
            _ => kept.size += message.size,
        });
    }

    fn into_event(self, conn: u64, stream: u32, method: Arc<str>, now: Instant) -> Event {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn literal(name: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0, name.len() as u8];
        bytes.extend(name.bytes());
        bytes.push(value.len() as u8);
        bytes.extend(value.bytes());
        bytes
    }

    fn tapped() -> (Tap, crossbeam_channel::Receiver<Event>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let (recorder, events) = Recorder::for_tests(100);
        (Tap::new(1, metrics.clone(), Some(recorder)), events, metrics)
    }

    #[test]
    fn a_call_from_its_header_to_its_status() {
        let (mut tap, events, _) = tapped();
        let path = literal(":path", "/etcdserverpb.KV/Put");
        // In two frames, the first of them padded; the data as well.
        let mut padded = vec![2];
        padded.extend(&path[..4]);
        padded.extend([0, 0]);
        tap.observe(Side::Client, &frame(1, flag::PADDED, 1, &padded));
        tap.observe(Side::Client, &frame(9, flag::END_HEADERS, 1, &path[4..]));
        assert!(!tap.is_idle());
        let data = [3, 0, 0, 0, 0, 2, b'h', b'i', 0, 0, 0];
        tap.observe(Side::Client, &frame(0, flag::PADDED | flag::END_STREAM, 1, &data));
        tap.observe(Side::Server, &frame(1, flag::END_HEADERS, 1, &literal(":status", "200")));
        tap.observe(Side::Server, &frame(0, 0, 1, &[0, 0, 0, 0, 0]));
        let status = [literal("grpc-status", "5"), literal("grpc-message", "a%20b")].concat();
        tap.observe(Side::Server, &frame(1, flag::END_HEADERS | flag::END_STREAM, 1, &status));
        let Ok(Event::Call(call)) = events.try_recv() else { panic!("not a call") };
        assert_eq!(&*call.method, "/etcdserverpb.KV/Put");
        assert_eq!(call.request.kept.as_deref(), Some(&b"hi"[..]));
        assert_eq!((call.outcome.code, &*call.outcome.message), (Some(5), "a b"));
        assert!(tap.is_idle());
    }

    #[test]
    fn who_cut_a_stream_off() {
        let (mut tap, events, _) = tapped();
        let path = literal(":path", "/etcdserverpb.Watch/Watch");
        for stream in [1, 3, 5] {
            tap.observe(Side::Client, &frame(1, flag::END_HEADERS, stream, &path));
        }
        tap.observe(Side::Client, &frame(3, 0, 1, &[0, 0, 0, 8]));
        tap.observe(Side::Server, &frame(3, 0, 3, &[0, 0, 0, 8]));
        drop(tap);
        let cuts: Vec<_> = events
            .try_iter()
            .filter_map(|event| match event {
                Event::End { outcome, .. } => outcome.cut,
                _ => None,
            })
            .collect();
        assert_eq!(cuts, [Cut::Client, Cut::Server, Cut::Connection]);
    }

    #[test]
    fn a_language_that_we_do_not_speak_is_counted() {
        let (mut tap, events, metrics) = tapped();
        tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 1, &[0x80]));
        assert!(tap.recorder.is_none() && events.is_empty());
        tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 3, &[0x80]));
        drop(tap);
        assert!(metrics.render().unwrap().contains("etcd_proxy_calls_in_flight 0"));
    }

    proptest! {
        /// Whatever is said: nothing panics, and every call that begins ends.
        #[test]
        fn nothing_makes_it_panic(said in prop::collection::vec(
            (any::<bool>(), 0..12u8, any::<u8>(), 0..6u32, prop::collection::vec(any::<u8>(), 0..40)), 0..60)
        ) {
            let (mut tap, _events, metrics) = tapped();
            for (client, kind, flags, stream, payload) in said {
                let side = if client { Side::Client } else { Side::Server };
                tap.observe(side, &frame(kind, flags, stream, &payload));
            }
            drop(tap);
            prop_assert!(metrics.render().unwrap().contains("etcd_proxy_calls_in_flight 0"));
        }
    }
}
