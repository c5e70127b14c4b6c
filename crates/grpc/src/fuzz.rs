//! Property tests with random bytes of clients, and regression tests of the faults that
//! they found. `PROPTEST_CASES` sets the number of cases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http2::{FrameHeader, HEADER_BYTES, PREFACE, flag, kind, read_u32};
use proptest::prelude::*;

use crate::connection::{CallEvent, GrpcConnection};
use crate::{
    Budget, Capacity, Keepalive, Payload, Requests, Routes, ServerConfig, Service, Status,
};

struct EmptyService;

impl Service for EmptyService {
    fn page(&self, _: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
        Box::pin(std::future::ready(http::Response::default()))
    }
}

fn routes() -> Routes<EmptyService> {
    Routes::new(Arc::new(EmptyService))
        .unary("/a/One", |_, _: String| async { Ok(String::new()) })
        .bidirectional("/a/Many", |_, requests: Requests<String>| requests)
}

fn config() -> ServerConfig {
    let keepalive = Keepalive {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        min_interval: Duration::ZERO,
    };
    let (budget, capacity) = (Budget::new(10_000), Capacity::new(1 << 20, 2));
    let stall_timeout = Duration::from_secs(1000);
    ServerConfig { max_streams: 5, message_bytes: 1000, budget, capacity, stall_timeout, keepalive }
}

/// Encodes the header fields of a POST request: `:method` and `:scheme` as indexes of
/// HPACK's static table, the others as literals without Huffman coding.
fn fields(path: &str, content_type: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(":path", path), ("content-type", content_type)] {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes().chain([value.len() as u8]).chain(value.bytes()));
    }
    block
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHeader { len: payload.len(), kind, flags, stream };
    [&head.encode()[..], payload].concat()
}

/// A frame that is valid in most cases.
fn plausible_frame() -> impl Strategy<Value = Vec<u8>> {
    let stream = || prop_oneof![8 => (0_u32..6).prop_map(|n| 2 * n + 1), 1 => 0_u32..12];
    let flags = || {
        prop_oneof![
            Just(flag::END_HEADERS),
            Just(flag::END_HEADERS | flag::END_STREAM),
            any::<u8>()
        ]
    };
    let block = prop_oneof![
        4 => Just(fields("/a/One", "application/grpc")),
        4 => Just(fields("/a/Many", "application/grpc")),
        1 => Just(fields("/nowhere", "application/grpc")),
        1 => Just(fields("/page", "text/plain")),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let data = prop_oneof![
        Just(vec![0, 0, 0, 0, 2, 10, 0]),
        Just(vec![0, 0, 0, 0, 0]),
        Just([&[0, 0, 0, 3, 0][..], &[0; 600]].concat()),
        prop::collection::vec(any::<u8>(), 0..30),
    ];
    let number = prop_oneof![Just(0_u32), 0_u32..100_000, any::<u32>()];
    let settings = prop::collection::vec((0_u16..8, number.clone()), 0..4);
    prop_oneof![
        6 => (flags(), stream(), block).prop_map(|(f, s, b)| frame(kind::HEADERS, f, s, &b)),
        6 => (0_u8..2, stream(), data).prop_map(|(f, s, d)| frame(kind::DATA, f, s, &d)),
        1 => stream().prop_map(|s| frame(kind::RST_STREAM, 0, s, &[0; 4])),
        2 => (stream(), number).prop_map(|(s, n)| frame(kind::WINDOW_UPDATE, 0, s, &n.to_be_bytes())),
        1 => settings.prop_map(|list| {
            let entry = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
            frame(kind::SETTINGS, 0, 0, &list.iter().flat_map(entry).collect::<Vec<u8>>())
        }),
        1 => Just(frame(kind::PING, 0, 0, &[0; 8])),
        1 => (any::<u8>(), any::<u8>(), stream(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(k, f, s, p)| frame(k, f, s, &p)),
    ]
}

/// The bytes that a client sends. In some cases, one byte is damaged.
fn client() -> impl Strategy<Value = Vec<u8>> {
    let frames = prop::collection::vec(plausible_frame(), 0..30);
    (frames, prop::option::of((any::<prop::sample::Index>(), any::<u8>()))).prop_map(
        |(frames, damage)| {
            let mut bytes = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat();
            frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
            if let Some((at, value)) = damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        },
    )
}

/// Passes `pieces` to a connection and responds to its events: after each piece if
/// `answer_each_piece` is set, otherwise after the last piece. Returns descriptions of
/// the events, and the output.
fn run<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    answer_each_piece: bool,
) -> (Vec<String>, Vec<u8>) {
    let (routes, now) = (routes(), Instant::now());
    let mut connection = GrpcConnection::new(&config(), None, now);
    let (mut descriptions, mut events) = (Vec::new(), Vec::new());
    for piece in pieces {
        let received = connection.receive(piece, &routes.methods, now);
        while let Some(event) = connection.next_event() {
            descriptions.push(format!("{event:?}"));
            events.push(event);
        }
        if received.is_err() {
            events.clear();
            break;
        }
        if answer_each_piece {
            events.drain(..).for_each(|event| answer(&mut connection, event));
            connection.fill_output();
        }
    }
    events.into_iter().for_each(|event| answer(&mut connection, event));
    connection.fill_output();
    (descriptions, drain(connection.output()))
}

/// Removes and returns all bytes of the output.
fn drain(output: &mut http2::Output) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 64];
        let count = output.slices(&mut slices);
        let before = bytes.len();
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
        output.advance(bytes.len() - before);
    }
    bytes
}

fn answer(connection: &mut GrpcConnection, event: CallEvent) {
    match event {
        CallEvent::Call { stream, .. } => {
            connection.respond(stream, Payload::encode(&"x".repeat(100)));
        }
        CallEvent::Message { stream, message } => {
            connection.release(stream, message.framed_len() as i64);
            connection.send_message(stream, Payload::encode(&"y".repeat(20_000)));
        }
        CallEvent::Ended { stream } => {
            connection.finish(stream, Err(&Status::internal("done")));
        }
        CallEvent::Page { stream, verb, .. } => {
            let response = http::Response::new(Bytes::from_static(b"page"));
            connection.respond_page(stream, &verb, response);
        }
        CallEvent::Opened { stream, .. } => connection.start_response(stream),
        CallEvent::Rejected { stream, status } => connection.respond_error(stream, &status),
        CallEvent::Reset { .. } => {}
    }
}

proptest! {
    /// Events and output do not depend on how the bytes are divided into reads.
    #[test]
    fn result_does_not_depend_on_read_boundaries(
        bytes in client(),
        cuts in prop::collection::vec(1_usize..50, 0..40),
    ) {
        let in_one_piece = run(std::iter::once(&bytes[..]), false);
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for cut in cuts {
            let (piece, left) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = left;
        }
        pieces.push(rest);
        prop_assert_eq!(run(pieces.iter().copied(), false), in_one_piece);
        // Responses sent between two reads may change later events, but must not cause a
        // panic.
        run(pieces.into_iter(), true);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..5),
    ) {
        run(pieces.iter().map(|piece| &piece[..]), true);
        let valid_start = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat();
        let pieces = std::iter::once(&valid_start).chain(&pieces);
        run(pieces.map(|piece| &piece[..]), true);
    }
}

/// Creates a connection on which a streaming call is open on stream 1.
fn streaming_connection(now: Instant) -> (Routes<EmptyService>, GrpcConnection) {
    let routes = routes();
    let mut connection = GrpcConnection::new(&config(), None, now);
    let head = fields("/a/Many", "application/grpc");
    let bytes = [
        &PREFACE[..],
        &frame(kind::SETTINGS, 0, 0, &[]),
        &frame(kind::HEADERS, flag::END_HEADERS, 1, &head),
    ];
    connection.receive(&bytes.concat(), &routes.methods, now).unwrap();
    while connection.next_event().is_some() {}
    drain(connection.output());
    (routes, connection)
}

/// Regression test: the bytes of a message in two frames were released twice, so the
/// client got too much window.
#[test]
fn messages_are_released_once() {
    let now = Instant::now();
    let (routes, mut connection) = streaming_connection(now);
    let message = [&[0, 0, 0, 3, 132][..], &[0; 900]].concat();
    let (first, second) = message.split_at(500);
    let (mut sent, mut returned) = (0, 0);
    for _ in 0..5000 {
        for part in [first, second] {
            sent += part.len();
            let data = frame(kind::DATA, 0, 1, part);
            connection.receive(&data, &routes.methods, now).unwrap();
        }
        while let Some(event) = connection.next_event() {
            let CallEvent::Message { stream, message } = event else {
                panic!("unexpected event: {event:?}")
            };
            connection.release(stream, message.framed_len() as i64);
        }
        let output = drain(connection.output());
        let mut rest = &output[..];
        while let Some(head) = FrameHeader::peek(rest) {
            let payload = &rest[HEADER_BYTES..][..head.len];
            if head.kind == kind::WINDOW_UPDATE && head.stream == 1 {
                returned += read_u32(payload).unwrap() as usize;
            }
            rest = &rest[HEADER_BYTES + head.len..];
        }
    }
    assert!(
        returned > sent - (1 << 20) && returned <= sent,
        "the server returned {returned} bytes of window for {sent} bytes sent"
    );
}

/// Regression test: empty messages did not count against the budget. With half of the budget
/// of 10,000 bytes, the server accepts 78 unread messages, each of which counts as 64 bytes. If
/// empty messages did not count, the stream's window of 1 MiB would allow 209,000.
#[test]
fn unread_empty_messages_count_against_the_budget() {
    let now = Instant::now();
    let (routes, mut connection) = streaming_connection(now);
    let data = frame(kind::DATA, 0, 1, &[0; 5000]);
    let mut unread = Vec::new();
    for _ in 0..1000 {
        connection.receive(&data, &routes.methods, now).unwrap();
        while let Some(event) = connection.next_event() {
            match event {
                CallEvent::Message { message, .. } => unread.push(message),
                CallEvent::Rejected { .. } => {
                    return assert_eq!(unread.len(), 78, "number of unread messages");
                }
                other => panic!("unexpected event: {other:?}"),
            }
        }
    }
    panic!("the server accepted {} unread messages", unread.len());
}
