//! Tests of the client's side: against the crate's own server, and against frames that a server
//! should not send.

mod wire;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, ErrorCode, Event, Fields, HEADER_BYTES, Headers, Keepalive,
    Limits, Refill, ResponseHead, flag, kind, setting,
};
use wire::{block, frame};

const LIMITS: Limits = Limits {
    stream_window: 64 << 10,
    connection_window: 256 << 10,
    refill: Refill::OnRelease,
    fields_bytes: 4 << 10,
    output_bytes: 16 << 10,
};

fn config() -> Config {
    let second = Duration::from_secs(1);
    let keepalive = Keepalive { interval: second, timeout: second, min_interval: Duration::ZERO };
    Config { max_streams: 3, keepalive, connect_method: ConnectMethod::Reject, limits: LIMITS }
}

/// Removes and returns the bytes of the output.
fn output(connection: &mut Connection<Fields>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        connection.fill_output();
        let (mut bytes, mut slices) = (Vec::new(), [IoSlice::new(&[]); 16]);
        let output = connection.output();
        let count = output.slices(&mut slices);
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
        output.advance(bytes.len());
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes);
    }
}

struct Pair {
    client: Connection<Fields>,
    server: Connection<Fields>,
    /// The size of the pieces in which bytes arrive.
    piece: usize,
}

impl Pair {
    fn new(piece: usize) -> Pair {
        let now = Instant::now();
        let (client, server) =
            (Connection::client(&config(), now), Connection::new(&config(), now));
        let mut pair = Pair { client, server, piece };
        assert!(pair.exchange().is_empty());
        pair
    }

    /// Passes bytes between both sides until both are silent. Returns the events, with the side.
    fn exchange(&mut self) -> Vec<(&'static str, Event<Fields>)> {
        let mut events = Vec::new();
        loop {
            let (to_server, to_client) = (output(&mut self.client), output(&mut self.server));
            if to_server.is_empty() && to_client.is_empty() {
                return events;
            }
            for piece in to_server.chunks(self.piece) {
                self.server.receive(piece, &(), Instant::now()).unwrap();
            }
            for piece in to_client.chunks(self.piece) {
                self.client.receive(piece, &(), Instant::now()).unwrap();
            }
            let from_server = std::iter::from_fn(|| self.server.next_event());
            events.extend(from_server.map(|event| ("server", event)));
            let from_client = std::iter::from_fn(|| self.client.next_event());
            events.extend(from_client.map(|event| ("client", event)));
        }
    }

    fn open(&mut self, path: &str) -> u32 {
        let id = self.client.open(request("GET", path), false).expect("a stream");
        self.client.finish(id, None);
        id
    }
}

fn request(method: &str, path: &str) -> Fields {
    let fields = [(":method", method), (":scheme", "https"), (":path", path), ("accept", "*/*")];
    Fields::from_iter(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
}

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    ResponseHead { status, headers: Headers::Fields(Fields::from_iter(fields)) }
}

/// A client whose server has sent its settings, and that has sent one request.
fn waiting_client() -> (Connection<Fields>, u32) {
    let mut client = Connection::client(&config(), Instant::now());
    assert!(!client.is_established());
    client.receive(&frame(kind::SETTINGS, 0, 0, &[]), &(), Instant::now()).unwrap();
    assert!(client.is_established());
    let id = client.open(request("GET", "/"), false).unwrap();
    client.finish(id, None);
    output(&mut client);
    (client, id)
}

#[test]
fn bodies_pass_in_both_directions_in_any_split() {
    for piece in [1, 7, 1000, 100_000] {
        let mut pair = Pair::new(piece);
        let id = pair.client.open(request("POST", "/a"), false).unwrap();
        pair.client.send_request(id);
        let body: Vec<u8> = (0..200_000_u32).map(|byte| byte as u8).collect();
        pair.client.send_data(id, Bytes::from(body.clone()).into());
        pair.client.finish(id, None);
        let (mut uploaded, mut downloaded, mut trailers) = (Vec::new(), Vec::new(), None);
        for _ in 0..100 {
            for (side, event) in pair.exchange() {
                match (side, event) {
                    ("server", Event::Request { stream, request, .. }) => {
                        let fields: Vec<_> = request.iter().collect();
                        assert_eq!(fields[0], (&b":method"[..], &b"POST"[..]));
                        assert_eq!(stream, id);
                    }
                    ("server", Event::Data { stream, bytes, end_stream }) => {
                        uploaded.extend_from_slice(&bytes);
                        pair.server.release(stream, bytes.len() as i64);
                        if end_stream {
                            let trailers = Fields::from_iter([(&b"grpc-status"[..], &b"0"[..])]);
                            let body = [Bytes::from(std::mem::take(&mut uploaded)).into()];
                            let trailers = Some(Headers::Fields(trailers));
                            pair.server.respond(stream, head(201, &[("a", "b")]), body, trailers);
                        }
                    }
                    ("client", Event::Response { response, end_stream, .. }) => {
                        let fields: Vec<_> = response.iter().collect();
                        assert_eq!(fields[0], (&b":status"[..], &b"201"[..]));
                        assert_eq!((fields.len(), end_stream), (2, false));
                    }
                    ("client", Event::Data { stream, bytes, .. }) => {
                        downloaded.extend_from_slice(&bytes);
                        pair.client.release(stream, bytes.len() as i64);
                    }
                    ("client", Event::Trailers { fields, .. }) => trailers = Some(fields),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(downloaded == body, "{} bytes with pieces of {piece}", downloaded.len());
        let trailers = trailers.expect("trailers");
        assert_eq!(trailers.iter().next(), Some((&b"grpc-status"[..], &b"0"[..])));
        assert!(!pair.client.is_open(id) && pair.client.queued_bytes() == 0);
    }
}

#[test]
fn a_part_of_a_frame_is_delivered_at_once() {
    let (mut client, id) = waiting_client();
    let headers = frame(kind::HEADERS, flag::END_HEADERS, id, &block(&[(":status", "200")]));
    client.receive(&headers, &(), Instant::now()).unwrap();
    assert!(matches!(client.next_event(), Some(Event::Response { .. })));
    let data = frame(kind::DATA, flag::END_STREAM, id, b"abcdef");
    client.receive(&data[..HEADER_BYTES + 2], &(), Instant::now()).unwrap();
    let Some(Event::Data { bytes, end_stream: false, .. }) = client.next_event() else { panic!() };
    assert_eq!(bytes, "ab");
    client.receive(&data[HEADER_BYTES + 2..], &(), Instant::now()).unwrap();
    let Some(Event::Data { bytes, end_stream: true, .. }) = client.next_event() else { panic!() };
    assert_eq!(bytes, "cdef");
    assert!(client.next_event().is_none() && !client.is_open(id));
}

#[test]
fn the_servers_limit_on_streams_is_kept() {
    let mut pair = Pair::new(1000);
    let ids = [pair.open("/1"), pair.open("/2"), pair.open("/3")];
    assert_eq!(ids, [1, 3, 5]);
    assert!(!pair.client.can_open() && pair.client.open(request("GET", "/4"), false).is_none());
    assert_eq!(pair.exchange().len(), 3);
    pair.server.respond(3, head(200, &[]), [], None);
    assert_eq!(pair.exchange().len(), 1);
    assert_eq!(pair.open("/4"), 7);
}

#[test]
fn requests_that_goaway_leaves_out_are_reported() {
    let (mut client, first) = waiting_client();
    let second = client.open(request("GET", "/2"), false).unwrap();
    client.finish(second, None);
    output(&mut client);
    let payload = [first.to_be_bytes(), [0; 4]].concat();
    client.receive(&frame(kind::GOAWAY, 0, 0, &payload), &(), Instant::now()).unwrap();
    let Some(Event::Unprocessed { stream }) = client.next_event() else { panic!() };
    assert_eq!(stream, second);
    assert!(client.is_open(first) && client.is_ending() && !client.can_open());
    let headers = flag::END_HEADERS | flag::END_STREAM;
    let response = frame(kind::HEADERS, headers, first, &block(&[(":status", "200")]));
    client.receive(&response, &(), Instant::now()).unwrap();
    assert!(matches!(client.next_event(), Some(Event::Response { end_stream: true, .. })));
    assert!(client.is_done());
}

#[test]
fn an_early_response_ends_the_request() {
    let mut pair = Pair::new(1000);
    let id = pair.client.open(request("POST", "/a"), false).unwrap();
    pair.client.send_request(id);
    pair.client.send_data(id, Bytes::from(vec![0; 300_000]).into());
    assert!(matches!(pair.exchange()[0].1, Event::Request { .. }));
    assert!(pair.client.queued_bytes() > 0);
    pair.server.respond(id, head(413, &[]), [], None);
    let events = pair.exchange();
    assert!(events.iter().any(|(side, event)| {
        *side == "client" && matches!(event, Event::Response { end_stream: true, .. })
    }));
    assert!(!pair.client.is_open(id) && pair.client.queued_bytes() == 0);
    pair.open("/next");
    assert!(matches!(pair.exchange()[0].1, Event::Request { .. }));
}

#[test]
fn responses_without_a_body_may_have_a_length() {
    let (mut client, get) = waiting_client();
    let head = client.open(request("HEAD", "/"), true).unwrap();
    client.finish(head, None);
    output(&mut client);
    let flags = flag::END_HEADERS | flag::END_STREAM;
    let fields = block(&[(":status", "200"), ("content-length", "7")]);
    let frames =
        [frame(kind::HEADERS, flags, head, &fields), frame(kind::HEADERS, flags, get, &fields)];
    client.receive(&frames.concat(), &(), Instant::now()).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| client.next_event()).collect();
    assert!(matches!(events[0], Event::Response { stream, .. } if stream == head));
    assert!(matches!(events[1], Event::Reset { stream, .. } if stream == get), "{events:?}");
}

#[test]
fn informational_responses_are_skipped() {
    let (mut client, id) = waiting_client();
    let early = frame(kind::HEADERS, flag::END_HEADERS, id, &block(&[(":status", "103")]));
    client.receive(&early, &(), Instant::now()).unwrap();
    assert!(client.next_event().is_none());
    let end = flag::END_HEADERS | flag::END_STREAM;
    let last = frame(kind::HEADERS, end, id, &block(&[(":status", "200")]));
    client.receive(&last, &(), Instant::now()).unwrap();
    assert!(matches!(client.next_event(), Some(Event::Response { end_stream: true, .. })));
}

#[test]
fn invalid_responses_reset_their_stream() {
    let invalid: [&[(&str, &str)]; 6] = [
        &[],
        &[(":status", "20")],
        &[(":status", "200"), (":status", "200")],
        &[(":status", "200"), (":path", "/")],
        &[("a", "b"), (":status", "200")],
        &[(":status", "200"), ("connection", "close")],
    ];
    for fields in invalid {
        let (mut client, id) = waiting_client();
        let headers = frame(kind::HEADERS, flag::END_HEADERS, id, &block(fields));
        client.receive(&headers, &(), Instant::now()).unwrap();
        let Some(Event::Reset { code, .. }) = client.next_event() else { panic!("{fields:?}") };
        assert_eq!(code, ErrorCode::ProtocolError as u32);
        assert!(!client.is_open(id));
    }
    let (mut client, id) = waiting_client();
    let long = "x".repeat(120);
    let fields = vec![("a", long.as_str()); 40];
    let fields = block(&[&[(":status", "200")], &fields[..]].concat());
    client
        .receive(&frame(kind::HEADERS, flag::END_HEADERS, id, &fields), &(), Instant::now())
        .unwrap();
    assert!(matches!(client.next_event(), Some(Event::Reset { .. })), "fields above the limit");
}

#[test]
fn frames_that_a_server_must_not_send_end_the_connection() {
    let push = [0_u32.to_be_bytes().to_vec(), block(&[(":status", "200")])].concat();
    let frames = [
        frame(kind::HEADERS, flag::END_HEADERS, 2, &block(&[(":status", "200")])),
        frame(kind::HEADERS, flag::END_HEADERS, 99, &block(&[(":status", "200")])),
        frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &push),
        frame(kind::GOAWAY, 0, 0, &[0; 4]),
        frame(kind::DATA, 0, 99, b"a"),
    ];
    for bytes in frames {
        let (mut client, _) = waiting_client();
        client.receive(&bytes, &(), Instant::now()).expect_err("an error");
    }
    let mut client = Connection::<Fields>::client(&config(), Instant::now());
    client
        .receive(&frame(kind::PING, 0, 0, &[0; 8]), &(), Instant::now())
        .expect_err("no SETTINGS");
}

#[test]
fn lowering_the_limit_on_streams_stops_new_ones() {
    let (mut client, _) = waiting_client();
    let payload =
        [&setting::MAX_CONCURRENT_STREAMS.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
    client.receive(&frame(kind::SETTINGS, 0, 0, &payload), &(), Instant::now()).unwrap();
    assert!(!client.can_open() && !client.is_ending());
}

/// The window of the connection bounds the bodies of all streams together, and a stream that ends
/// gives back what was not released.
#[test]
fn the_connections_window_is_refilled_on_release() {
    let mut pair = Pair::new(10_000);
    let mut received = Vec::new();
    for round in 0..20 {
        let id = pair.client.open(request("POST", "/a"), false).unwrap();
        pair.client.send_request(id);
        pair.client.send_data(id, Bytes::from(vec![0; 200_000]).into());
        let events = pair.exchange();
        let bytes: usize = events
            .iter()
            .map(|(_, event)| match event {
                Event::Data { bytes, .. } => bytes.len(),
                _ => 0,
            })
            .sum();
        received.push(bytes);
        match round % 3 {
            0 => pair.client.reset(id, ErrorCode::Cancel),
            1 => pair.server.reset(id, ErrorCode::Cancel),
            _ => pair.server.respond(id, head(403, &[]), [], None),
        }
        pair.exchange();
    }
    assert!(received.iter().all(|bytes| *bytes == 64 << 10), "{received:?}");
}

#[test]
fn a_request_that_was_not_sent_is_forgotten_silently() {
    let mut pair = Pair::new(1000);
    let fields: [(&[u8], &[u8]); 3] =
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a")];
    let head = Arc::new(Fields::from_iter(fields));
    let first = pair.client.open_repeated(&head).unwrap();
    pair.client.finish(first, None);
    pair.client.reset(first, ErrorCode::Cancel);
    assert!(pair.exchange().is_empty(), "a reset of a stream that was never opened is an error");
    let second = pair.client.open_repeated(&head).unwrap();
    pair.client.finish(second, None);
    let events = pair.exchange();
    let [("server", Event::Request { stream, request, .. })] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(*stream == second && *request == *head);
    pair.client.reset(second, ErrorCode::Cancel);
    assert!(matches!(pair.exchange()[..], [("server", Event::Reset { .. })]));
}
