//! Clients that cost the server more than themselves, and clients that rely on the letter
//! of RFC 9113.

mod wire;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, ErrorCode, Event, Fields, FrameHeader, HEADER_BYTES,
    Headers, Keepalive, Limits, MAX_PAYLOAD_BYTES, PREFACE, ResponseHead, flag, kind,
};
use wire::frame;

/// A connection, and its client.
struct Pair {
    server: Connection<Fields>,
    /// Frames of the server that have been read: header and payload.
    frames: Vec<(FrameHeader, Vec<u8>)>,
}

fn pair() -> Pair {
    pair_with_streams(100)
}

fn pair_with_streams(max_streams: u32) -> Pair {
    let second = Duration::from_secs(1);
    let keepalive = Keepalive { interval: second, timeout: second, min_interval: second };
    let limits = Limits::default();
    let config = Config { max_streams, keepalive, connect_method: ConnectMethod::Reject, limits };
    let mut pair = Pair { server: Connection::new(&config, Instant::now()), frames: Vec::new() };
    pair.send(&[&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat()).unwrap();
    pair.read();
    pair.frames.clear();
    pair
}

impl Pair {
    fn send(&mut self, bytes: &[u8]) -> Result<(), ErrorCode> {
        let received = self.server.receive(bytes, &(), Instant::now());
        received.map_err(|error| error.code)
    }

    /// Sends `frames` of the iterator until the server closes the connection. Returns the
    /// number of frames that it accepted, and its error code.
    fn flood(&mut self, frames: impl Iterator<Item = Vec<u8>>) -> (usize, Option<ErrorCode>) {
        let mut accepted = 0;
        for frame in frames {
            if let Err(code) = self.send(&frame) {
                return (accepted, Some(code));
            }
            while self.server.next_event().is_some() {}
            self.read();
            accepted += 1;
        }
        (accepted, None)
    }

    /// Reads all that the server has to send.
    fn read(&mut self) {
        loop {
            self.server.fill_output();
            let output = self.server.output();
            let mut bytes = Vec::new();
            while !output.is_empty() {
                let mut slices = [IoSlice::new(&[]); 64];
                let count = output.slices(&mut slices);
                let before = bytes.len();
                slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
                output.advance(bytes.len() - before);
            }
            if bytes.is_empty() {
                return;
            }
            let mut rest = &bytes[..];
            while let Some(header) = FrameHeader::peek(rest) {
                self.frames.push((header, rest[HEADER_BYTES..][..header.len].to_vec()));
                rest = &rest[HEADER_BYTES + header.len..];
            }
        }
    }

    /// Acknowledges the server's pings, as every client must.
    fn acknowledge_pings(&mut self) {
        let is_ping = |(header, _): &&(FrameHeader, Vec<u8>)| {
            header.kind == kind::PING && !header.has(flag::ACK)
        };
        let pings: Vec<_> =
            self.frames.iter().filter(is_ping).map(|(_, payload)| payload.clone()).collect();
        self.frames.retain(|frame| !is_ping(&frame));
        for ping in pings {
            self.send(&frame(kind::PING, flag::ACK, 0, &ping)).unwrap();
        }
        self.read();
    }

    /// The number of body bytes that the client has received on `stream`.
    fn body_bytes(&self, stream: u32) -> usize {
        let of_stream =
            |(header, _): &&(FrameHeader, _)| header.kind == kind::DATA && header.stream == stream;
        self.frames.iter().filter(of_stream).map(|(header, _)| header.len).sum()
    }

    /// Answers a request with a body of `bytes` bytes.
    fn respond(&mut self, stream: u32, bytes: usize) {
        let head = ResponseHead { status: 200, headers: Headers::Fields(Fields::default()) };
        let body = Bytes::from(vec![0; bytes]).into();
        self.server.respond(stream, head, [body], None);
    }
}

/// A field as a literal with a literal name, without Huffman coding.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// `:method GET`, `:scheme http` and `:path /`.
const GET: [u8; 3] = [0x82, 0x86, 0x84];

fn request(stream: u32, flags: u8) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | flags, stream, &GET)
}

/// Frame headers count against the limit of a block: 65,536 bytes are at most 6,553
/// CONTINUATION frames with one byte each.
#[test]
fn block_in_many_small_frames_is_refused() {
    let mut pair = pair();
    pair.send(&frame(kind::HEADERS, 0, 1, &GET)).unwrap();
    let (accepted, error) = pair.flood((0..20_000).map(|_| frame(kind::CONTINUATION, 0, 1, &[0])));
    assert_eq!(error, Some(ErrorCode::EnhanceYourCalm), "accepted {accepted} frames");
    assert!((6000..6554).contains(&accepted), "accepted {accepted} frames");
}

/// Three bytes that refer to a name of 4 KiB in the dynamic table make the decoder copy
/// 4 KiB. A frame of 16 KiB would cost 21 MiB.
#[test]
fn fields_far_above_the_limit_are_not_decoded() {
    let mut pair = pair();
    let first = [&GET[..], &long_name()].concat();
    pair.send(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &first)).unwrap();
    let Some(Event::Request { fields_too_large: false, .. }) = pair.server.next_event() else {
        panic!("the request with one large field was not delivered")
    };
    // Fields of 64 KiB in total are delivered, up to twice as much is reported, and more
    // closes the connection.
    let references = |count| [&GET[..], &[0x0f, 0x2f, 0].repeat(count)].concat();
    for (stream, count, too_large) in [(3, 15, false), (5, 30, true)] {
        let block = references(count);
        pair.send(&frame(kind::HEADERS, flag::END_HEADERS, stream, &block)).unwrap();
        let Some(Event::Request { fields_too_large, .. }) = pair.server.next_event() else {
            panic!("the request with {count} references was not delivered")
        };
        assert_eq!(fields_too_large, too_large, "{count} references");
    }
    let block = references(5000);
    let request = frame(kind::HEADERS, flag::END_HEADERS, 7, &block);
    assert_eq!(pair.send(&request), Err(ErrorCode::EnhanceYourCalm));
}

/// The same for trailers.
#[test]
fn trailers_far_above_the_limit_are_not_decoded() {
    let mut pair = pair();
    let first = [&GET[..], &long_name()].concat();
    pair.send(&frame(kind::HEADERS, flag::END_HEADERS, 1, &first)).unwrap();
    let end = flag::END_HEADERS | flag::END_STREAM;
    let trailers = frame(kind::HEADERS, end, 1, &[0x0f, 0x2f, 0].repeat(5000));
    assert_eq!(pair.send(&trailers), Err(ErrorCode::EnhanceYourCalm));
}

/// A field with a name of 4,000 bytes and an empty value that is added to the table, with index
/// 62. A length of 4,000 is 127 + 3,873.
fn long_name() -> Vec<u8> {
    [&[0x40, 0x7f, 0xa1, 0x1e][..], &[b'a'; 4000], &[0]].concat()
}

/// Requests with a few bytes for 60 KiB of fields are valid, but a flood of them closes the
/// connection.
#[test]
fn floods_of_requests_that_are_long_decoded_close_the_connection() {
    const END: u8 = flag::END_HEADERS | flag::END_STREAM;
    let mut pair = pair();
    pair.send(&frame(kind::HEADERS, END, 1, &[&GET[..], &long_name()].concat())).unwrap();
    pair.respond(1, 0);
    let block = [&GET[..], &[0xbe; 15]].concat();
    let mut accepted = 0;
    let error = (1..50_000).find_map(|n| {
        let error = pair.send(&frame(kind::HEADERS, END, 2 * n + 1, &block)).err();
        while pair.server.next_event().is_some() {}
        pair.respond(2 * n + 1, 0);
        pair.read();
        accepted += usize::from(error.is_none());
        error
    });
    assert_eq!(error, Some(ErrorCode::EnhanceYourCalm));
    assert!((10..100).contains(&accepted), "accepted {accepted} requests");
}

/// An encoder that uses each entry of the table once makes blocks of 4 KiB from a few bytes.
#[test]
fn requests_with_all_fields_of_the_table_are_accepted() {
    const END: u8 = flag::END_HEADERS | flag::END_STREAM;
    let mut pair = pair();
    let fields: Vec<u8> = (0..40)
        .flat_map(|n| [&[0x40, 9], format!("name-{n:04}").as_bytes(), &[50], &[b'v'; 50]].concat())
        .collect();
    let first = frame(kind::HEADERS, END, 1, &[&GET[..], &fields].concat());
    pair.send(&first).unwrap();
    let table: Vec<u8> = (0..40).map(|n| 0xbe + n).collect();
    for n in 1..20_000 {
        pair.send(&frame(kind::HEADERS, END, 2 * n + 1, &[&GET[..], &table].concat())).unwrap();
        while pair.server.next_event().is_some() {}
        pair.respond(2 * n + 1, 0);
        pair.read();
    }
}

/// Trailers of a stream that the server has ended are decoded, because they may change the
/// table. They are useless, and count by their decoded size.
#[test]
fn floods_of_trailers_of_an_ended_stream_close_the_connection() {
    for (references, expected) in [(0, 9_900..10_000), (15, 10..100)] {
        let mut pair = pair();
        pair.send(&frame(kind::HEADERS, flag::END_HEADERS, 1, &GET)).unwrap();
        pair.respond(1, 0);
        pair.read();
        let end = flag::END_HEADERS | flag::END_STREAM;
        pair.send(&frame(kind::HEADERS, end, 1, &long_name())).unwrap();
        let trailers = frame(kind::HEADERS, end, 1, &vec![0xbe; references]);
        let (accepted, error) = pair.flood((0..50_000).map(|_| trailers.clone()));
        assert_eq!(error, Some(ErrorCode::EnhanceYourCalm), "{references} references");
        assert!(expected.contains(&accepted), "accepted {accepted} frames");
    }
}

/// Each change of the initial window costs time for each stream.
#[test]
fn window_changes_count_by_the_number_of_streams() {
    for (streams, expected) in [(0, 9_900..10_000), (12_800, 90..100)] {
        let mut pair = pair_with_streams(20_000);
        for n in 0..streams {
            pair.send(&request(2 * n + 1, 0)).unwrap();
        }
        let changes = (1..50_000_u32).map(|n| {
            frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &(65_535 + n).to_be_bytes()].concat())
        });
        let (accepted, error) = pair.flood(changes);
        assert_eq!(error, Some(ErrorCode::EnhanceYourCalm), "{streams} streams");
        assert!(expected.contains(&accepted), "{streams} streams: accepted {accepted} changes");
    }
}

/// Frames that carry nothing: the connection is closed after 10,000 of them.
#[test]
fn floods_of_useless_frames_close_the_connection() {
    let empty_data = || frame(kind::DATA, 0, 1, &[]);
    let padding_only = || frame(kind::DATA, flag::PADDED, 1, &[0]);
    let priority = || frame(kind::PRIORITY, 0, 5, &[0; 5]);
    let unknown = || frame(0xbe, 0, 1, &[]);
    let settings = || frame(kind::SETTINGS, 0, 0, &[]);
    let settings_ack = || frame(kind::SETTINGS, flag::ACK, 0, &[]);
    let ping_ack = || frame(kind::PING, flag::ACK, 0, &[0; 8]);
    let reset_again = || frame(kind::RST_STREAM, 0, 3, &[0; 4]);
    let floods: [(&str, &dyn Fn() -> Vec<u8>); 8] = [
        ("empty DATA", &empty_data),
        ("DATA with padding only", &padding_only),
        ("PRIORITY", &priority),
        ("unknown frames", &unknown),
        ("SETTINGS", &settings),
        ("SETTINGS ACK", &settings_ack),
        ("PING ACK", &ping_ack),
        ("RST_STREAM of a closed stream", &reset_again),
    ];
    for (name, flooding) in floods {
        let mut pair = pair();
        pair.send(&request(1, 0)).unwrap();
        pair.send(&request(3, 0)).unwrap();
        pair.send(&frame(kind::RST_STREAM, 0, 3, &[0; 4])).unwrap();
        let (accepted, error) = pair.flood((0..100_000).map(|_| flooding()));
        assert_eq!(error, Some(ErrorCode::EnhanceYourCalm), "{name}");
        assert!((9_000..=10_100).contains(&accepted), "{name}: {accepted} frames");
    }
}

/// A malformed request costs the server more than its client: it decodes the fields,
/// remembers the stream and sends RST_STREAM.
#[test]
fn floods_of_malformed_requests_close_the_connection() {
    let mut pair = pair();
    let malformed = |n: u32| {
        let block = [&GET[..], &literal("connection", "close")].concat();
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * n + 1, &block)
    };
    let (accepted, error) = pair.flood((0..50_000).map(malformed));
    assert_eq!(error, Some(ErrorCode::EnhanceYourCalm), "accepted {accepted} requests");
    assert!((900..=1000).contains(&accepted), "accepted {accepted} requests");
}

/// A client may send useless frames as long as it also sends useful ones.
#[test]
fn useful_frames_make_up_for_useless_ones() {
    let mut pair = pair();
    for n in 0..20_000 {
        let stream = 2 * n + 1;
        let bytes = [
            frame(kind::PRIORITY, 0, stream, &[0; 5]),
            request(stream, 0),
            frame(kind::DATA, 0, stream, &[]),
            frame(kind::DATA, 0, stream, b"body"),
            frame(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 1, 0]),
            frame(kind::DATA, flag::END_STREAM, stream, &[]),
        ];
        pair.send(&bytes.concat()).unwrap();
        while pair.server.next_event().is_some() {}
        pair.respond(stream, 0);
        pair.read();
        // The client has not yet learned that the stream has ended.
        let late = frame(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 1, 0]);
        (0..100).for_each(|_| pair.send(&late).unwrap());
    }
}

#[test]
fn malformed_trailers_are_rejected() {
    let trailers: [(&str, &str); 5] = [
        ("sum", "1\r\nx: y"),
        ("sum", "\0"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("Sum", "1"),
    ];
    for (name, value) in trailers {
        let mut pair = pair();
        pair.send(&request(1, 0)).unwrap();
        let end = flag::END_HEADERS | flag::END_STREAM;
        pair.send(&frame(kind::HEADERS, end, 1, &literal(name, value))).unwrap();
        assert!(matches!(pair.server.next_event(), Some(Event::Request { .. })));
        let event = pair.server.next_event();
        assert!(matches!(event, Some(Event::Reset { .. })), "{name}: {value:?}: {event:?}");
    }
}

/// A content-length consists of digits (RFC 9110, section 8.6).
#[test]
fn content_length_with_a_sign_is_rejected() {
    let mut pair = pair();
    let block = [&GET[..], &literal("content-length", "+4")].concat();
    pair.send(&frame(kind::HEADERS, flag::END_HEADERS, 1, &block)).unwrap();
    assert!(pair.server.next_event().is_none());
}

/// A client may wait with WINDOW_UPDATE until the window is exhausted, because it reads
/// the body only when it is complete.
#[test]
fn large_responses_use_the_whole_window() {
    let mut pair = pair();
    pair.send(&request(1, flag::END_STREAM)).unwrap();
    // The initial window of the stream is larger than that of the connection.
    pair.send(&frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0])).unwrap();
    for round in 1..4 {
        match round {
            1 => pair.respond(1, 1 << 20),
            _ => {
                let window = frame(kind::WINDOW_UPDATE, 0, 0, &65_535_u32.to_be_bytes());
                pair.send(&window).unwrap();
            }
        }
        pair.read();
        pair.acknowledge_pings();
        assert_eq!(pair.body_bytes(1), round * 65_535, "round {round}");
    }
}

/// Until the client has had time to enlarge the window, its last 8 KiB are kept for small
/// responses.
#[test]
fn small_responses_overtake_large_ones_in_the_window() {
    let mut pair = pair();
    pair.send(&[request(1, flag::END_STREAM), request(3, flag::END_STREAM)].concat()).unwrap();
    pair.send(&frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0])).unwrap();
    pair.respond(1, 1 << 20);
    pair.read();
    pair.respond(3, 1000);
    pair.read();
    assert_eq!(pair.body_bytes(3), 1000);
}

/// A WINDOW_UPDATE of one byte must not cost a turn of every stream that waits.
#[test]
fn small_window_updates_wake_few_streams() {
    let mut pair = pair_with_streams(20_000);
    for n in 0..20_000 {
        pair.send(&request(2 * n + 1, flag::END_STREAM)).unwrap();
        pair.respond(2 * n + 1, MAX_PAYLOAD_BYTES + 1);
    }
    pair.read();
    pair.acknowledge_pings();
    let body: usize = pair
        .frames
        .iter()
        .filter(|(header, _)| header.kind == kind::DATA)
        .map(|(header, _)| header.len)
        .sum();
    assert_eq!(body, 65_535);
    pair.frames.clear();
    let start = Instant::now();
    for _ in 0..2000 {
        pair.send(&frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).unwrap();
        pair.read();
        pair.acknowledge_pings();
    }
    // It is less than a second on a machine without other work.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "2,000 updates took {took:?}");
}
