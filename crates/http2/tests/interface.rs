//! Tests of the crate's interface as a proxy would use it: all header fields, bodies in
//! several parts, trailers.

mod wire;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, Data, Event, Fields, FrameHeader, HEADER_BYTES, Headers,
    Keepalive, Limits, PREFACE, ResponseHead, flag, kind,
};
use wire::{block, frame};

fn connection(connect_method: ConnectMethod) -> Connection<Fields> {
    let second = Duration::from_secs(1);
    let keepalive = Keepalive { interval: second, timeout: second, min_interval: second };
    let limits = Limits::default();
    let config = Config { max_streams: 10, keepalive, connect_method, limits };
    let mut connection = Connection::new(&config, Instant::now());
    let start = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat();
    connection.receive(&start, &(), Instant::now()).unwrap();
    output(&mut connection);
    connection
}

/// Removes all frames from the output and returns the kind and the flags of each.
fn output(connection: &mut Connection<Fields>) -> Vec<(u8, u8)> {
    let (mut bytes, mut slices) = (Vec::new(), [IoSlice::new(&[]); 16]);
    connection.fill_output();
    let output = connection.output();
    let count = output.slices(&mut slices);
    slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
    output.advance(bytes.len());
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while let Some(header) = FrameHeader::peek(rest) {
        frames.push((header.kind, header.flags));
        rest = &rest[HEADER_BYTES + header.len..];
    }
    frames
}

#[test]
fn request_and_response_have_fields_bodies_and_trailers() {
    let mut connection = connection(ConnectMethod::Reject);
    let head =
        [(":method", "PUT"), (":scheme", "https"), (":path", "/a"), ("accept", "text/plain")];
    let input = [
        frame(kind::HEADERS, flag::END_HEADERS, 1, &block(&head)),
        frame(kind::DATA, 0, 1, b"body"),
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[("sum", "1")])),
    ];
    connection.receive(&input.concat(), &(), Instant::now()).unwrap();
    let Some(Event::Request { stream: 1, request, .. }) = connection.next_event() else {
        panic!("the first event is not the request")
    };
    assert_eq!(request.get(b":path"), Some(&b"/a"[..]));
    assert_eq!(request.get(b"accept"), Some(&b"text/plain"[..]));
    let Some(Event::Data { bytes, end_stream: false, .. }) = connection.next_event() else {
        panic!("the second event is not the body")
    };
    assert_eq!(&bytes[..], b"body");
    connection.release(1, 4);
    assert!(matches!(connection.next_event(), Some(Event::Trailers { stream: 1, .. })));

    // The head is sent before the body exists. A watch needs this.
    let headers = Headers::Fields(Fields::default());
    connection.send_head(1, ResponseHead { status: 200, headers });
    assert_eq!(output(&mut connection), [(kind::HEADERS, flag::END_HEADERS)]);
    connection.send_data(1, Bytes::from_static(b"event").into());
    assert_eq!(output(&mut connection), [(kind::DATA, 0)]);
    connection.finish(1, None);
    assert_eq!(output(&mut connection), [(kind::DATA, flag::END_STREAM)]);
}

#[test]
fn connect_is_delivered_or_reset() {
    let head = block(&[(":method", "CONNECT"), (":authority", "host:443")]);
    let input = frame(kind::HEADERS, flag::END_HEADERS, 1, &head);
    let mut tunnels = connection(ConnectMethod::Deliver);
    tunnels.receive(&input, &(), Instant::now()).unwrap();
    assert!(matches!(tunnels.next_event(), Some(Event::Request { end_stream: false, .. })));
    let mut rejects = connection(ConnectMethod::Reject);
    rejects.receive(&input, &(), Instant::now()).unwrap();
    assert!(rejects.next_event().is_none());
    assert_eq!(output(&mut rejects), [(kind::RST_STREAM, 0)]);
}

/// The frames before the missing part are sent, and other streams go on.
#[test]
fn a_response_whose_data_ends_early_is_reset() {
    let mut connection = connection(ConnectMethod::Reject);
    let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/a")];
    let end = flag::END_HEADERS | flag::END_STREAM;
    for stream in [1, 3] {
        let request = frame(kind::HEADERS, end, stream, &block(&fields));
        connection.receive(&request, &(), Instant::now()).unwrap();
    }
    let respond = |connection: &mut Connection<Fields>, stream, pieces: usize| {
        let head = ResponseHead { status: 200, headers: Headers::Common(&[]) };
        let chunks = Box::new(std::iter::repeat_n(Bytes::from_static(&[0; 10_000]), pieces));
        let data = Data::Lazy { len: 20_000, held_bytes: 100, chunks };
        connection.respond(stream, head, Some(data), None);
    };
    respond(&mut connection, 1, 1);
    assert_eq!(output(&mut connection), [(kind::HEADERS, 4), (kind::RST_STREAM, 0)]);
    assert_eq!((connection.queued_bytes(), connection.held_bytes()), (0, 0));
    respond(&mut connection, 3, 2);
    assert_eq!(output(&mut connection), [(kind::HEADERS, 4), (kind::DATA, 0), (kind::DATA, 1)]);
    assert_eq!((connection.queued_bytes(), connection.held_bytes()), (0, 0));
}
