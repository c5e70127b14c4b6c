//! Observes one HTTP/2 connection: detects calls and gRPC streams, and sends their messages
//! to the recorder.
//!
//! The tap processes the bytes before the tunnel forwards them. It buffers incomplete header
//! blocks, incomplete messages, and the messages of a unary call until the call ends. The
//! recorder's thread decodes the messages and writes the trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http2::Decoder;
use trace::{AbortedBy, Outcome};

use crate::event::Event;
use crate::frames::{Piece, Scanner, flag, kind};
use crate::header_fields::{Fields, strip_padding_and_priority};
use crate::metrics::Metrics;
use crate::recorder::Recorder;
use crate::side::Side;
use crate::tracked_stream::TrackedStream;

/// Maximum size of a header block in bytes. A larger block ends the recording of its
/// connection.
const MAX_BLOCK_BYTES: usize = 64 << 10;
/// Maximum size of the decoded header fields of a block in bytes, as RFC 9113 counts them. More
/// end the recording: a byte of a block can stand for a field of any size.
const MAX_LIST_BYTES: usize = 64 << 10;
/// What RFC 9113 adds to the size of each field.
const FIELD_OVERHEAD: usize = 32;
/// Maximum size of the HPACK dynamic table in bytes.
const HEADER_TABLE_BYTES: usize = 64 << 10;
/// Maximum number of concurrently tracked HTTP/2 streams of all connections. Further streams
/// are forwarded, but neither counted nor recorded.
const MAX_STREAMS: i64 = 1 << 18;
/// Maximum number of interned method names per connection.
const MAX_METHODS: usize = 256;

/// Observes a connection.
pub struct Tap {
    conn: u64,
    metrics: Arc<Metrics>,
    /// `None` if recording is disabled, or has stopped because the bytes could not be parsed.
    recorder: Option<Recorder>,
    client: Direction,
    server: Direction,
    /// The HTTP/2 streams in progress, by stream ID.
    streams: HashMap<u32, TrackedStream>,
    /// Interned method names, by HTTP/2 path.
    methods: HashMap<Box<[u8]>, Arc<str>>,
}

/// The parser state of the bytes that one side sends.
struct Direction {
    scanner: Scanner,
    headers: Decoder,
    /// The received part of the current header block.
    block: Vec<u8>,
    /// Whether the HEADERS frame of the current header block has END_STREAM set.
    ends_stream: bool,
    /// Bytes of the current DATA frame that have not been received, without padding.
    data_remaining: usize,
}

impl Tap {
    /// Creates the tap of a client connection. `conn` is the ID of the connection in the
    /// trace.
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

    /// Processes bytes sent by `side`.
    pub fn observe(&mut self, side: Side, bytes: &[u8]) {
        self.metrics.bytes_forwarded(side, bytes.len());
        let now = Instant::now();
        let mut scanner = std::mem::take(&mut self.direction(side).scanner);
        scanner.scan(bytes, |piece| self.observe_piece(side, piece, now));
        self.direction(side).scanner = scanner;
    }

    /// Whether the bytes that `side` has sent so far end at a frame boundary.
    pub fn is_between_frames(&mut self, side: Side) -> bool {
        self.direction(side).scanner.is_between_frames()
    }

    /// Whether no call or stream is in progress.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    fn direction(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn observe_piece(&mut self, side: Side, piece: Piece, now: Instant) {
        match piece.head.kind {
            kind::HEADERS | kind::CONTINUATION => self.observe_header(side, piece, now),
            kind::DATA => self.observe_data(side, piece, now),
            kind::RST_STREAM if piece.is_last => {
                let aborted_by = match side {
                    Side::Client => AbortedBy::Client,
                    Side::Server => AbortedBy::Server,
                };
                self.end_stream(piece.head.stream, Some(aborted_by), now);
            }
            _ => {}
        }
    }

    fn observe_header(&mut self, side: Side, piece: Piece, now: Instant) {
        let is_recording = self.recorder.is_some();
        let direction = self.direction(side);
        let Piece { head, bytes, is_last, .. } = piece;
        if is_recording && direction.block.len() + bytes.len() <= MAX_BLOCK_BYTES {
            direction.block.extend_from_slice(bytes);
        } else if is_recording {
            return self.stop_recording("header block is too large");
        }
        if !is_last {
            return;
        }
        if head.kind == kind::HEADERS {
            direction.ends_stream = head.has(flag::END_STREAM);
            if strip_padding_and_priority(&mut direction.block, head).is_none() && is_recording {
                return self.stop_recording("HEADERS frame is malformed");
            }
        }
        if head.has(flag::END_HEADERS) {
            self.end_header_block(side, head.stream, now);
        }
    }

    /// Decodes the complete header block of a stream. Starts the stream if the client sent
    /// the block, and ends it if the server set END_STREAM.
    fn end_header_block(&mut self, side: Side, stream: u32, now: Instant) {
        if side == Side::Client {
            self.start_stream(stream, now);
        }
        let direction = match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        let ends = direction.ends_stream;
        let mut fields = Fields::default();
        let Direction { headers, block, .. } = direction;
        let mut left = Some(MAX_LIST_BYTES);
        let decoded = headers.decode_while(block, |name, value| {
            left =
                left.and_then(|left| left.checked_sub(name.len() + value.len() + FIELD_OVERHEAD));
            if left.is_some() {
                fields.add(name, value);
            }
            left.is_some()
        });
        block.clear();
        match decoded {
            Ok(true) => {}
            Ok(false) => self.stop_recording("header fields are too large"),
            Err(_) => self.stop_recording("header block cannot be decoded"),
        }
        if self.recorder.is_some() {
            self.add_header_fields(side, stream, fields, now);
        }
        if ends && side == Side::Server {
            self.end_stream(stream, None, now);
        }
    }

    /// Stores the method or the outcome of a stream, if the header fields contain it.
    fn add_header_fields(&mut self, side: Side, number: u32, fields: Fields, now: Instant) {
        let is_new = self.streams.get(&number).is_some_and(|stream| stream.method.is_none());
        if side == Side::Client && is_new {
            let method = self.intern_method(&fields.path);
            let Some(stream) = self.streams.get_mut(&number) else { return };
            stream.is_stream = trace::is_stream(&method);
            stream.method = Some(method.clone());
            if stream.is_stream {
                self.record(Event::Open { time: now, conn: self.conn, stream: number, method });
            }
        } else if let (Side::Server, Some(stream)) = (side, self.streams.get_mut(&number))
            && let Some(code) = fields.code
        {
            stream.outcome =
                Outcome { code: Some(code), message: fields.message, aborted_by: None };
        }
    }

    /// Starts to track a stream. Does nothing if the stream is already tracked: the header
    /// block then contains trailers.
    fn start_stream(&mut self, number: u32, now: Instant) {
        if self.streams.contains_key(&number) || self.metrics.calls_in_flight() >= MAX_STREAMS {
            return;
        }
        self.metrics.call_started();
        self.streams.insert(number, TrackedStream::new(now));
    }

    fn observe_data(&mut self, side: Side, piece: Piece, now: Instant) {
        let direction = self.direction(side);
        let (head, mut bytes) = (piece.head, piece.bytes);
        if piece.is_first {
            direction.data_remaining = head.len;
            if let (true, Some((padding, rest))) = (head.has(flag::PADDED), bytes.split_first()) {
                direction.data_remaining = head.len.saturating_sub(1 + usize::from(*padding));
                bytes = rest;
            }
        }
        let (bytes, _padding) = bytes.split_at(bytes.len().min(direction.data_remaining));
        direction.data_remaining -= bytes.len();
        if let Some(recorder) = &self.recorder {
            let (conn, stream) = (self.conn, head.stream);
            let emit = |method, message| {
                recorder.record(Event::Message { time: now, conn, stream, side, method, message });
            };
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.push(side, bytes, recorder.budget(), emit);
            }
        }
        if piece.is_last && head.has(flag::END_STREAM) && side == Side::Server {
            self.end_stream(head.stream, None, now);
        }
    }

    /// Removes a stream and records its end. `aborted_by` is recorded only if the server has
    /// sent no status.
    fn end_stream(&mut self, number: u32, aborted_by: Option<AbortedBy>, now: Instant) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        self.metrics.call_ended();
        if stream.outcome.code.is_none() {
            stream.outcome.aborted_by = aborted_by;
        }
        if let (Some(recorder), Some(method)) = (&self.recorder, stream.method.take()) {
            recorder.record(stream.into_event(self.conn, number, method, now));
        }
    }

    /// Returns the interned method name.
    fn intern_method(&mut self, path: &[u8]) -> Arc<str> {
        if let Some(name) = self.methods.get(path) {
            return name.clone();
        }
        let name: Arc<str> = String::from_utf8_lossy(path).into();
        if self.methods.len() < MAX_METHODS {
            self.methods.insert(path.into(), name.clone());
        }
        name
    }

    fn record(&self, event: Event) {
        if let Some(recorder) = &self.recorder {
            recorder.record(event);
        }
    }

    /// Stops recording the connection because its bytes cannot be parsed. Counts one missing
    /// record per stream in progress, and at least one. Forwarding continues.
    fn stop_recording(&mut self, reason: &str) {
        if let Some(recorder) = self.recorder.take() {
            tracing::warn!(connection = self.conn, reason, "stopped recording connection");
            recorder.add_missing(self.streams.len().max(1) as u64);
        }
    }
}

impl Drop for Tap {
    /// Ends the streams in progress: the connection is closed.
    fn drop(&mut self) {
        let now = Instant::now();
        let numbers: Vec<_> = self.streams.keys().copied().collect();
        for number in numbers {
            self.end_stream(number, Some(AbortedBy::Connection), now);
        }
    }
}

impl Direction {
    fn new() -> Self {
        Direction {
            scanner: Scanner::default(),
            headers: Decoder::with_limit(HEADER_TABLE_BYTES),
            block: Vec::new(),
            ends_stream: false,
            data_remaining: 0,
        }
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

    /// A header field in HPACK's literal representation, without indexing and Huffman coding.
    fn literal_field(name: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0, name.len() as u8];
        bytes.extend(name.bytes());
        bytes.push(value.len() as u8);
        bytes.extend(value.bytes());
        bytes
    }

    fn test_tap() -> (Tap, crossbeam_channel::Receiver<Event>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let (recorder, events) = Recorder::for_tests(100);
        (Tap::new(1, metrics.clone(), Some(recorder)), events, metrics)
    }

    #[test]
    fn a_unary_call_is_recorded() {
        let (mut tap, events, _) = test_tap();
        let path = literal_field(":path", "/etcdserverpb.KV/Put");
        // The request's header block consists of a HEADERS frame with 2 bytes of padding and
        // a CONTINUATION frame.
        let mut padded = vec![2];
        padded.extend(&path[..4]);
        padded.extend([0, 0]);
        tap.observe(Side::Client, &frame(1, flag::PADDED, 1, &padded));
        tap.observe(Side::Client, &frame(9, flag::END_HEADERS, 1, &path[4..]));
        assert!(!tap.is_idle());
        // The DATA frame has 3 bytes of padding.
        let data = [3, 0, 0, 0, 0, 2, b'h', b'i', 0, 0, 0];
        tap.observe(Side::Client, &frame(0, flag::PADDED | flag::END_STREAM, 1, &data));
        tap.observe(
            Side::Server,
            &frame(1, flag::END_HEADERS, 1, &literal_field(":status", "200")),
        );
        tap.observe(Side::Server, &frame(0, 0, 1, &[0, 0, 0, 0, 0]));
        let status =
            [literal_field("grpc-status", "5"), literal_field("grpc-message", "a%20b")].concat();
        tap.observe(Side::Server, &frame(1, flag::END_HEADERS | flag::END_STREAM, 1, &status));
        let Ok(Event::Call(call)) = events.try_recv() else { panic!("no call was recorded") };
        assert_eq!(&*call.method, "/etcdserverpb.KV/Put");
        assert_eq!(call.request.content.as_deref(), Some(&b"hi"[..]));
        assert_eq!((call.outcome.code, &*call.outcome.message), (Some(5), "a b"));
        assert!(tap.is_idle());
    }

    #[test]
    fn the_aborting_side_is_recorded() {
        let (mut tap, events, _) = test_tap();
        let path = literal_field(":path", "/etcdserverpb.Watch/Watch");
        for stream in [1, 3, 5] {
            tap.observe(Side::Client, &frame(1, flag::END_HEADERS, stream, &path));
        }
        tap.observe(Side::Client, &frame(3, 0, 1, &[0, 0, 0, 8]));
        tap.observe(Side::Server, &frame(3, 0, 3, &[0, 0, 0, 8]));
        drop(tap);
        let aborted_by: Vec<_> = events
            .try_iter()
            .filter_map(|event| match event {
                Event::End { outcome, .. } => outcome.aborted_by,
                _ => None,
            })
            .collect();
        assert_eq!(aborted_by, [AbortedBy::Client, AbortedBy::Server, AbortedBy::Connection]);
    }

    #[test]
    fn invalid_header_blocks_stop_only_the_recording() {
        let (mut tap, events, metrics) = test_tap();
        tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 1, &[0x80]));
        assert!(tap.recorder.is_none() && events.is_empty());
        tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 3, &[0x80]));
        drop(tap);
        assert!(metrics.render().unwrap().contains("etcd_proxy_calls_in_flight 0"));
    }

    /// A header block in which one byte stands for 4,000.
    fn bomb(fields: usize) -> Vec<u8> {
        // A literal that is added to the table. 127 + 0x21 + (0x1e << 7) = 4,000 bytes
        let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
        block.extend([b'b'; 4000]);
        // The newest entry of the dynamic table has the index 62.
        block.extend(vec![0x80 | 62; fields]);
        block
    }

    #[test]
    fn decoded_header_fields_are_bounded() {
        for (fields, recorded) in [(10, true), (20, false)] {
            let (mut tap, _events, _) = test_tap();
            let block = [literal_field(":path", "/a/B"), bomb(fields)].concat();
            tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 1, &block));
            assert_eq!(tap.recorder.is_some(), recorded, "{fields} fields of 4 KB");
        }
        // A million fields of 4 KB would take seconds.
        let (mut tap, _events, _) = test_tap();
        for _ in 0..20 {
            tap.observe(Side::Client, &frame(1, 0, 1, &bomb(50_000)));
            assert!(tap.client.block.capacity() <= 2 * MAX_BLOCK_BYTES);
        }
        assert!(tap.recorder.is_none());
    }

    #[test]
    fn stored_paths_and_messages_are_bounded() {
        let (mut tap, _events, _) = test_tap();
        let long = |name: &str| {
            let mut field = vec![0, name.len() as u8];
            field.extend(name.bytes());
            // 127 + 0x61 + (0x4e << 7) = 10,208 bytes
            field.extend([0x7f, 0xe1, 0x4e]);
            field.extend([b'x'; 10_208]);
            field
        };
        tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 1, &long(":path")));
        let end = [literal_field("grpc-status", "5"), long("grpc-message")].concat();
        tap.observe(Side::Server, &frame(1, flag::END_HEADERS, 1, &end));
        let stream = &tap.streams[&1];
        assert_eq!(stream.method.as_ref().map(|method| method.len()), Some(1024));
        assert_eq!(stream.outcome.message.len(), 1024);
    }

    #[test]
    fn tracked_streams_are_bounded_over_all_connections() {
        let metrics = Arc::new(Metrics::new());
        let mut taps: Vec<_> = (0..4).map(|n| Tap::new(n, metrics.clone(), None)).collect();
        for tap in &mut taps {
            for stream in 0..100_000 {
                tap.observe(Side::Client, &frame(1, flag::END_HEADERS, 2 * stream + 1, &[]));
            }
        }
        assert_eq!(taps.iter().map(|tap| tap.streams.len()).sum::<usize>(), MAX_STREAMS as usize);
        // The end of a stream makes room for another one.
        taps[0].observe(Side::Client, &frame(3, 0, 1, &[0, 0, 0, 8]));
        taps[3].observe(Side::Client, &frame(1, flag::END_HEADERS, 200_001, &[]));
        drop(taps);
        assert_eq!(metrics.calls_in_flight(), 0);
    }

    proptest! {
        /// The tap does not panic on arbitrary frames, and counts the end of every call that
        /// it has counted as started.
        #[test]
        fn arbitrary_frames_never_panic(frames in prop::collection::vec(
            (any::<bool>(), 0..12u8, any::<u8>(), 0..6u32, prop::collection::vec(any::<u8>(), 0..40)), 0..60)
        ) {
            let (mut tap, _events, metrics) = test_tap();
            for (client, kind, flags, stream, payload) in frames {
                let side = if client { Side::Client } else { Side::Server };
                tap.observe(side, &frame(kind, flags, stream, &payload));
            }
            drop(tap);
            prop_assert!(metrics.render().unwrap().contains("etcd_proxy_calls_in_flight 0"));
        }
    }
}
