//! Clients that start much work and do not read the responses, that reset their calls, or
//! that stop waiting for them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream, StreamExt};
use grpc::{
    Budget, Capacity, Code, Encoded, Keepalive, Payload, Reply, Requests, Routes, ServerConfig,
    Service, Status,
};
use http2::{FrameHeader, HEADER_BYTES, PREFACE, flag, kind, read_u32};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_util::sync::CancellationToken;

const MIB: usize = 1 << 20;

/// Counts what its handlers do.
#[derive(Default)]
struct Counting {
    /// Messages of 1 MiB that have been produced.
    produced: AtomicUsize,
    /// Handlers that exist.
    alive: Arc<AtomicUsize>,
    /// Method and code of each call that has ended.
    ended: Mutex<Vec<(&'static str, Code)>>,
}

impl Service for Counting {
    fn call_ended(&self, path: &'static str, code: Code) {
        self.ended.lock().push((path, code));
    }

    fn page(&self, _: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
        Box::pin(std::future::ready(http::Response::default()))
    }
}

/// Counts a handler until it is dropped.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(service: &Counting) -> Self {
        service.alive.fetch_add(1, Ordering::Relaxed);
        Alive(service.alive.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The reply to a write, of this size.
struct Written(Arc<Counting>, usize);

impl Reply for Written {
    fn unencoded_len(&self) -> usize {
        self.1
    }

    fn into_payload(self) -> Payload {
        self.0.produced.fetch_add(1, Ordering::Relaxed);
        Payload::encode(&"x".repeat(self.1))
    }
}

fn large_message(service: &Counting) -> String {
    service.produced.fetch_add(1, Ordering::Relaxed);
    "x".repeat(MIB)
}

impl Counting {
    async fn say(self: Arc<Self>, text: String) -> Result<String, Status> {
        Ok(text)
    }

    /// Never returns.
    async fn wait(self: Arc<Self>, _: String) -> Result<String, Status> {
        let _alive = Alive::new(&self);
        std::future::pending().await
    }

    /// Works for 1 ms on the thread of the connection.
    async fn short(self: Arc<Self>, _: String) -> Result<String, Status> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(String::new())
    }

    /// Returns 1 MiB.
    async fn large(self: Arc<Self>, _: String) -> Result<String, Status> {
        Ok(large_message(&self))
    }

    /// Returns 1 MiB, as the handler of a write does: it yields once, and its reply is not
    /// encoded.
    async fn write(self: Arc<Self>, _: String) -> Result<Written, Status> {
        tokio::task::yield_now().await;
        Ok(Written(self, MIB))
    }

    /// Expects a reply of 1 MiB, and waits for it for ever.
    async fn expect(
        self: Arc<Self>,
        _: String,
        admission: grpc::Admission,
    ) -> Result<String, Status> {
        let _expected = admission.expect_reply(MIB)?;
        self.produced.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    /// Does the same as [`Counting::write`] with a small reply.
    async fn small_write(self: Arc<Self>, _: String) -> Result<Written, Status> {
        tokio::task::yield_now().await;
        Ok(Written(self, 100))
    }

    /// Returns a message that is larger than gRPC allows.
    async fn oversize(self: Arc<Self>, _: String) -> Result<Encoded, Status> {
        Ok(Encoded(Payload::in_pieces(1 << 31, 0, std::iter::empty())))
    }

    /// Returns a message of 16 MiB that is encoded while it is sent, and occupies as much memory.
    async fn lazy(
        self: Arc<Self>,
        _: String,
        admission: grpc::Admission,
    ) -> Result<Encoded, Status> {
        let read = move |slow: &grpc::SlowRead| {
            let given_up = slow.give_way_holding(16 * MIB);
            self.produced.fetch_add(usize::from(!given_up), Ordering::Relaxed);
            let pieces = std::iter::repeat_n(Bytes::from(vec![0; MIB]), 16);
            Encoded(Payload::in_pieces(16 * MIB, 16 * MIB, pieces))
        };
        admission.run_slow(0, read).await
    }

    /// Returns the largest number of MiB that a read may gather, up to 1,000.
    async fn gather(
        self: Arc<Self>,
        _: String,
        admission: grpc::Admission,
    ) -> Result<String, Status> {
        let read = move |slow: &grpc::SlowRead| {
            let mut gathered = 0;
            while gathered < 1000 && !slow.give_way_holding(gathered * MIB) {
                gathered += 1;
                self.produced.store(gathered, Ordering::Relaxed);
            }
            String::new()
        };
        admission.run_slow(0, read).await
    }

    /// Waits until the slow reads of others have ended.
    async fn queue(
        self: Arc<Self>,
        request: String,
        admission: grpc::Admission,
    ) -> Result<String, Status> {
        self.produced.fetch_add(request.len(), Ordering::Relaxed);
        let read = |_: &grpc::SlowRead| String::new();
        let result = admission.run_slow(request.len(), read).await;
        self.produced.fetch_sub(request.len(), Ordering::Relaxed);
        result
    }

    /// Keeps 1 MiB for each message, as long as the call lasts. Returns how much that is.
    fn keep(
        self: Arc<Self>,
        requests: Requests<String>,
        admission: grpc::Admission,
    ) -> impl Stream<Item = Result<String, Status>> {
        let (mut kept, mut memory) = (0, admission.reserve());
        requests.map(move |_| {
            if memory.resize((kept + 1) * MIB) {
                kept += 1;
                self.produced.fetch_add(1, Ordering::Relaxed);
            }
            Ok(kept.to_string())
        })
    }

    /// Keeps its request, and has no message.
    fn listen(
        self: Arc<Self>,
        request: String,
        _: grpc::Admission,
    ) -> impl Stream<Item = Result<String, Status>> {
        self.produced.fetch_add(request.len(), Ordering::Relaxed);
        stream::pending()
    }

    /// Works for 1 ms each time it is polled, and has no message.
    fn work(self: Arc<Self>, _: Requests<String>) -> impl Stream<Item = Result<String, Status>> {
        let alive = Alive::new(&self);
        stream::poll_fn(move |cx| {
            let _ = &alive;
            std::thread::sleep(Duration::from_millis(1));
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// Returns messages of 1 MiB for ever.
    fn chat(self: Arc<Self>, _: Requests<String>) -> impl Stream<Item = Result<String, Status>> {
        let alive = Alive::new(&self);
        stream::repeat(()).map(move |()| {
            let _ = &alive;
            Ok(large_message(&self))
        })
    }
}

/// Bounds what a machine without other work does in less than a second.
const LONG: Duration = Duration::from_secs(120);

fn config() -> ServerConfig {
    let second = Duration::from_secs(1);
    ServerConfig {
        max_streams: 100_000,
        message_bytes: MIB,
        budget: Budget::new(4 * MIB),
        capacity: Capacity::new(200 * MIB, 2),
        stall_timeout: 1000 * second,
        keepalive: Keepalive { interval: 1000 * second, timeout: second, min_interval: second },
    }
}

/// A client that writes frames, and a server with [`Counting`].
struct Client {
    io: DuplexStream,
    service: Arc<Counting>,
    stop: CancellationToken,
    next_stream: u32,
}

/// A server with shared limits, for several connections.
struct Server {
    routes: Arc<Routes<Counting>>,
    service: Arc<Counting>,
    config: ServerConfig,
}

impl Server {
    fn new() -> Self {
        let service = Arc::new(Counting::default());
        let routes = Routes::new(service.clone())
            .unary("/a/Say", Counting::say)
            .unary("/a/Wait", Counting::wait)
            .unary("/a/Short", Counting::short)
            .unary("/a/Large", Counting::large)
            .unary("/a/Write", Counting::write)
            .unary("/a/SmallWrite", Counting::small_write)
            .unary("/a/Oversize", Counting::oversize)
            .admitted_unary("/a/Slow", slow)
            .admitted_unary("/a/Queue", Counting::queue)
            .admitted_unary("/a/Endless", endless)
            .admitted_unary("/a/Lazy", Counting::lazy)
            .admitted_unary("/a/Gather", Counting::gather)
            .admitted_unary("/a/Expect", Counting::expect)
            .admitted_bidirectional("/a/Keep", Counting::keep)
            .server_stream("/a/Listen", Counting::listen)
            .bidirectional("/a/Work", Counting::work)
            .bidirectional("/a/Chat", Counting::chat);
        Server { routes: Arc::new(routes), service, config: config() }
    }

    fn with_budget(bytes: usize) -> Self {
        let server = Server::new();
        Server { config: ServerConfig { budget: Budget::new(bytes), ..server.config }, ..server }
    }

    fn with_stall_timeout(stall_timeout: Duration) -> Self {
        let server = Server::new();
        Server { config: ServerConfig { stall_timeout, ..server.config }, ..server }
    }

    async fn connect(&self) -> Client {
        let (mut io, theirs) = tokio::io::duplex(64 << 10);
        let stop = CancellationToken::new();
        let (routes, config, stopped) = (self.routes.clone(), self.config.clone(), stop.clone());
        tokio::spawn(async move { grpc::serve(theirs, &[], routes, None, &config, stopped).await });
        io.write_all(&[&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        Client { io, service: self.service.clone(), stop, next_stream: 1 }
    }
}

async fn connect() -> Client {
    Server::new().connect().await
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { len: payload.len(), kind, flags, stream };
    [&header.encode()[..], payload].concat()
}

/// The header fields of a call: `:method POST`, `:scheme http`, and literals.
fn head(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(":path", path), ("content-type", "application/grpc")].iter().chain(more)
    {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes().chain([value.len() as u8]).chain(value.bytes()));
    }
    block
}

impl Client {
    /// Returns the frames of a new call with an empty message, and its stream.
    fn call(&mut self, path: &str, more: &[(&str, &str)]) -> (u32, Vec<u8>) {
        let stream = self.next_stream;
        self.next_stream += 2;
        let head = frame(kind::HEADERS, flag::END_HEADERS, stream, &head(path, more));
        let end =
            if ["/a/Chat", "/a/Work", "/a/Keep"].contains(&path) { 0 } else { flag::END_STREAM };
        (stream, [head, frame(kind::DATA, end, stream, &[0; 5])].concat())
    }

    /// Returns the frames of a new call with a text, and its stream.
    fn call_with(&mut self, path: &str, text: &str) -> (u32, Vec<u8>) {
        let stream = self.next_stream;
        self.next_stream += 2;
        let head = frame(kind::HEADERS, flag::END_HEADERS, stream, &head(path, &[]));
        let text = prost::Message::encode_to_vec(&text.to_owned());
        let message = [&[0][..], &(text.len() as u32).to_be_bytes(), &text].concat();
        (stream, [head, frame(kind::DATA, flag::END_STREAM, stream, &message)].concat())
    }

    /// Makes `count` calls with a text of 16,000 bytes. Returns how many were not refused.
    async fn call_with_long_texts(&mut self, path: &str, count: usize) -> usize {
        let text = "x".repeat(16_000);
        let (mut refused, first) = (0, self.next_stream);
        for _ in 0..count {
            let (_, bytes) = self.call_with(path, &text);
            self.send(&bytes).await;
        }
        // All calls are handled when nothing more is received.
        let quiet = Duration::from_millis(500);
        while let Ok((header, payload)) = tokio::time::timeout(quiet, self.read()).await {
            if header.kind == kind::HEADERS && header.stream >= first {
                let text = String::from_utf8_lossy(&payload);
                assert!(text.contains("etcdserver: too many requests"), "{text:?}");
                refused += 1;
            }
        }
        count - refused
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
    }

    async fn start(&mut self, path: &str, more: &[(&str, &str)]) -> u32 {
        let (stream, bytes) = self.call(path, more);
        self.send(&bytes).await;
        stream
    }

    /// Reads the next frame.
    async fn read(&mut self) -> (FrameHeader, Vec<u8>) {
        let read = async {
            let mut header = [0; HEADER_BYTES];
            self.io.read_exact(&mut header).await.unwrap();
            let header = FrameHeader::peek(&header).unwrap();
            let mut payload = vec![0; header.len];
            self.io.read_exact(&mut payload).await.unwrap();
            (header, payload)
        };
        tokio::time::timeout(LONG, read).await.expect("no frame was received")
    }

    /// Reads until the last frame of `stream`. Returns its payload, in which the names and
    /// values of errors are literals.
    async fn end_of(&mut self, stream: u32) -> String {
        loop {
            let (header, payload) = self.read().await;
            if header.stream == stream
                && header.kind == kind::HEADERS
                && header.has(flag::END_STREAM)
            {
                return String::from_utf8_lossy(&payload).into_owned();
            }
        }
    }

    /// Reads frames of one kind.
    async fn read_kind(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let (header, payload) = self.read().await;
            if header.kind == kind && !header.has(flag::ACK) {
                return payload;
            }
        }
    }

    /// Makes a call and returns the end of its response. When it has returned, the server has
    /// handled all that was sent before.
    async fn say(&mut self) -> String {
        let stream = self.start("/a/Say", &[]).await;
        self.end_of(stream).await
    }
}

/// Waits until `condition` is true.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "not within {LONG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until `counter` has not changed at four looks in a row, and returns it.
async fn settled(counter: &AtomicUsize) -> usize {
    let (mut before, mut unchanged) = (usize::MAX, 0);
    while unchanged < 4 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = counter.load(Ordering::Relaxed);
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
    }
    before
}

/// Repeats what must take less than a limit. On a busy machine it may take longer, but not each
/// time.
async fn assert_quick(limit: Duration, what: &str, mut run: impl AsyncFnMut() -> Duration) {
    const ATTEMPTS: usize = 5;
    let mut attempts = Vec::new();
    while attempts.len() < ATTEMPTS {
        let took = run().await;
        if took < limit {
            return;
        }
        attempts.push(took);
    }
    panic!("{what} took {attempts:?}, want less than {limit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_drops_unary_calls() {
    let mut client = connect().await;
    let waiting = client.start("/a/Wait", &[]).await;
    client.say().await;
    assert_eq!(client.service.alive.load(Ordering::Relaxed), 1);
    client.send(&frame(kind::RST_STREAM, 0, waiting, &8_u32.to_be_bytes())).await;
    // This call is reset in the same read in which it arrives.
    let (stream, call) = client.call("/a/Wait", &[]);
    let reset = frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
    client.send(&[call, reset].concat()).await;
    let alive = client.service.alive.clone();
    eventually("calls are dropped", || alive.load(Ordering::Relaxed) == 0).await;
    client.say().await;
    let cancelled = ("/a/Wait", Code::Cancelled);
    let ended = client.service.ended.lock().clone();
    assert_eq!(ended.iter().filter(|end| **end == cancelled).count(), 2, "{ended:?}");
}

/// A read of 64 KiB starts many streams. Only so many produce messages as the connection may
/// hold.
#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_produce_a_bounded_number_of_messages() {
    let mut client = connect().await;
    let calls: Vec<u8> = (0..1000).flat_map(|_| client.call("/a/Chat", &[]).1).collect();
    client.send(&calls).await;
    let produced = settled(&client.service.produced).await;
    assert!((60..70).contains(&produced), "{produced} messages of 1 MiB were produced");
    // They go on when the client reads. All streams get their turn.
    let window = 500_u32 << 20;
    let settings = frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    client.send(&settings).await;
    client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes())).await;
    let mut heads = std::collections::HashSet::new();
    while heads.len() < 300 {
        let (header, _) = client.read().await;
        if header.kind == kind::HEADERS {
            heads.insert(header.stream);
        }
    }
}

/// The client resets streams while none may produce messages. They must not remain.
#[tokio::test(flavor = "multi_thread")]
async fn reset_drops_streams_that_wait() {
    let mut client = connect().await;
    let calls: Vec<u8> = (0..1000).flat_map(|_| client.call("/a/Chat", &[]).1).collect();
    client.send(&calls).await;
    settled(&client.service.produced).await;
    let alive = client.service.alive.clone();
    assert_eq!(alive.load(Ordering::Relaxed), 1000);
    for n in 0..1000 {
        client.send(&frame(kind::RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())).await;
    }
    eventually("streams are dropped", || alive.load(Ordering::Relaxed) == 0).await;
}

/// One connection after the other holds as much as it may. The budget of 200 MiB bounds all
/// of them together, and each new connection still gets its responses.
#[tokio::test(flavor = "multi_thread")]
async fn connections_share_the_budget_for_responses() {
    let server = Server::new();
    let mut greedy = Vec::new();
    for _ in 0..20 {
        let mut client = server.connect().await;
        let calls: Vec<u8> = (0..400).flat_map(|_| client.call("/a/Large", &[]).1).collect();
        client.send(&calls).await;
        greedy.push(client);
    }
    let produced = settled(&server.service.produced).await;
    // Each connection may hold one response of 1 MiB that does not fit any more.
    assert!((150..=240).contains(&produced), "{produced} responses of 1 MiB are held");
    let mut client = server.connect().await;
    let start = Instant::now();
    for _ in 0..10 {
        let stream = client.start("/a/Large", &[]).await;
        let window = (2 * MIB) as u32;
        client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes())).await;
        client.send(&frame(kind::WINDOW_UPDATE, 0, stream, &window.to_be_bytes())).await;
        client.end_of(stream).await;
    }
    assert!(start.elapsed() < LONG, "took {:?}", start.elapsed());
    // The deferred calls start when the client reads.
    let client = &mut greedy[0];
    let window = 450_u32 << 20;
    let settings = frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    client.send(&settings).await;
    client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes())).await;
    client.end_of(799).await;
}

/// Resets of calls that wait for their turn take constant time each.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_are_reset_quickly() {
    assert_quick(Duration::from_secs(5), "59,900 resets", reset_calls_that_wait).await;
}

async fn reset_calls_that_wait() -> Duration {
    let mut client = Server::with_budget(100 * MIB).connect().await;
    let calls: Vec<u8> = (0..60_000).flat_map(|_| client.call("/a/Large", &[]).1).collect();
    client.send(&calls).await;
    let resets: Vec<u8> = (100..60_000)
        .rev()
        .flat_map(|n| frame(kind::RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes()))
        .collect();
    let start = Instant::now();
    client.send(&resets).await;
    client.send(&frame(kind::PING, 0, 0, &[7; 8])).await;
    loop {
        let (header, _) = client.read().await;
        if header.kind == kind::PING && header.has(flag::ACK) {
            break;
        }
    }
    start.elapsed()
}

/// Further calls of a client that does not read are refused when too many wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_calls_are_bounded() {
    let mut client = Server::with_budget(100 * MIB).connect().await;
    let calls: Vec<u8> = (0..100).flat_map(|_| client.call("/a/Large", &[]).1).collect();
    client.send(&calls).await;
    settled(&client.service.produced).await;
    // 40 MiB in calls of 16 KiB.
    let mut last = 0;
    for _ in 0..2560 {
        last = client.next_stream;
        client.next_stream += 2;
        let head = frame(kind::HEADERS, flag::END_HEADERS, last, &head("/a/Say", &[]));
        let message = [&[0, 0, 0, 0x3f, 0xf0][..], &[0; 0x3ff0][..]].concat();
        client.send(&[head, frame(kind::DATA, flag::END_STREAM, last, &message)].concat()).await;
    }
    let end = client.end_of(last).await;
    assert!(end.contains("etcdserver: too many requests"), "{end:?}");
}

/// Calls of many connections wait: because the clients do not read, for slow reads, and because
/// they are streams without a message. Their requests share one budget of 4 MiB, and those of a
/// normal client are executed.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_of_all_connections_are_bounded() {
    for path in ["/a/Say", "/a/Queue", "/a/Listen"] {
        let server = Server::new();
        let (mut clients, mut waiting) = (Vec::new(), 0);
        for _ in 0..20 {
            let mut client = server.connect().await;
            let before = if path == "/a/Say" { "/a/Large" } else { "/a/Endless" };
            let calls: Vec<u8> = (0..100).flat_map(|_| client.call(before, &[]).1).collect();
            client.send(&calls).await;
            if path == "/a/Say" {
                settled(&server.service.produced).await;
            }
            waiting += client.call_with_long_texts(path, 100).await;
            clients.push(client);
        }
        let bytes = waiting * 16_000;
        // The budget, the guaranteed parts, and 64 KiB for each connection.
        assert!((3 * MIB..8 * MIB).contains(&bytes), "{path}: requests of {bytes} bytes wait");
        let mut normal = server.connect().await;
        let (stream, call) = normal.call_with("/a/Say", &"y".repeat(10_000));
        normal.send(&call).await;
        let end = normal.end_of(stream).await;
        assert!(!end.contains("too many"), "{path}: {end:?}");
        drop(clients);
        let mut client = server.connect().await;
        let calls: Vec<u8> = (0..100).flat_map(|_| client.call("/a/Large", &[]).1).collect();
        client.send(&calls).await;
        settled(&server.service.produced).await;
        let again = client.call_with_long_texts("/a/Say", 200).await * 16_000;
        assert!(again > 3 * MIB / 2, "{path}: only {again} bytes wait after the others have gone");
    }
}

/// Streams occupy memory as long as they are open, even those of which only the header fields have
/// arrived.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_of_all_connections_are_bounded() {
    let server = Server::new();
    let config = ServerConfig { capacity: Capacity::new(4 * MIB, 2), ..server.config.clone() };
    let server = Server { config, ..server };
    let open = |client: &mut Client, path: &str, count: u32| -> Vec<u8> {
        let first = client.next_stream;
        client.next_stream += 2 * count;
        let head = head(path, &[]);
        let streams = (first..client.next_stream).step_by(2);
        streams.flat_map(|stream| frame(kind::HEADERS, flag::END_HEADERS, stream, &head)).collect()
    };
    let mut clients = Vec::new();
    // 8 MiB may be kept. The first connection gets half of it, 2,304 streams.
    for (path, count) in [("/a/Keep", 2400), ("/a/Say", 1400), ("/a/Listen", 900)] {
        let mut client = server.connect().await;
        let streams = open(&mut client, path, count);
        client.send(&streams).await;
        let end = client.end_of(client.next_stream - 2).await;
        assert!(end.contains("etcdserver: too many requests"), "{path}: {end:?}");
        clients.push(client);
    }
    let mut normal = server.connect().await;
    let streams = open(&mut normal, "/a/Keep", 250);
    normal.send(&streams).await;
    let end = normal.say().await;
    assert!(!end.contains("too many"), "{end:?}");
    drop(clients);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let streams = open(&mut normal, "/a/Keep", 1500);
    normal.send(&streams).await;
    let end = normal.say().await;
    assert!(!end.contains("too many"), "after the others have gone: {end:?}");
}

/// Returns after 100 ms on a blocking thread. Counts the reads that run.
async fn slow(
    service: Arc<Counting>,
    _: String,
    admission: grpc::Admission,
) -> Result<String, Status> {
    let read = move |_: &grpc::SlowRead| {
        let alive = Alive::new(&service);
        std::thread::sleep(Duration::from_millis(100));
        service.produced.fetch_max(alive.0.load(Ordering::Relaxed), Ordering::Relaxed);
        String::new()
    };
    admission.run_slow(0, read).await
}

/// Two slow reads may run. Those of one connection do not keep another one waiting.
#[tokio::test(flavor = "multi_thread")]
async fn connections_take_turns_with_slow_reads() {
    let limit = Duration::from_secs(3);
    assert_quick(limit, "behind 200 reads, a read", read_behind_slow_reads).await;
}

/// Returns the time of the slower one of two reads: one behind the reads of another client, and
/// one behind reads that were reset.
async fn read_behind_slow_reads() -> Duration {
    let server = Server::new();
    let (mut busy, mut other) = (server.connect().await, server.connect().await);
    let calls: Vec<u8> = (0..200).flat_map(|_| busy.call("/a/Slow", &[]).1).collect();
    busy.send(&calls).await;
    busy.say().await;
    let start = Instant::now();
    let stream = other.start("/a/Slow", &[]).await;
    other.end_of(stream).await;
    let behind_others = start.elapsed();
    // Reads that wait are cancelled: the rest would take 10 s.
    for n in 0..200 {
        busy.send(&frame(kind::RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())).await;
    }
    busy.say().await;
    let start = Instant::now();
    let stream = busy.start("/a/Slow", &[]).await;
    busy.end_of(stream).await;
    let behind_reset = start.elapsed();
    assert_eq!(server.service.produced.load(Ordering::Relaxed), 2, "reads at the same time");
    behind_others.max(behind_reset)
}

/// Works on a blocking thread until the call is cancelled.
async fn endless(
    service: Arc<Counting>,
    _: String,
    admission: grpc::Admission,
) -> Result<String, Status> {
    let read = move |slow: &grpc::SlowRead| {
        let _alive = Alive::new(&service);
        while !slow.give_way() {
            std::thread::sleep(Duration::from_millis(1));
        }
        String::new()
    };
    admission.run_slow(0, read).await
}

/// A slow read that is running is told that its call was reset, that its deadline has passed,
/// or that the connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reads_that_run_are_cancelled() {
    let server = Server::new();
    let alive = server.service.alive.clone();
    for end in ["reset", "deadline", "close"] {
        let mut client = server.connect().await;
        let timeout = [("grpc-timeout", "200m")];
        let fields = if end == "deadline" { &timeout[..] } else { &[] };
        let stream = client.start("/a/Endless", fields).await;
        eventually("the read is running", || alive.load(Ordering::Relaxed) == 1).await;
        match end {
            "reset" => client.send(&frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes())).await,
            "deadline" => drop(client.end_of(stream).await),
            _ => drop(client),
        }
        eventually(end, || alive.load(Ordering::Relaxed) == 0).await;
    }
}

/// Streams that work without a message do not delay the resets of their connection.
#[tokio::test(flavor = "multi_thread")]
async fn streams_without_messages_are_reset_quickly() {
    assert_quick(Duration::from_secs(2), "3,000 resets", reset_streams_without_messages).await;
}

async fn reset_streams_without_messages() -> Duration {
    let mut client = connect().await;
    let streams: Vec<_> = (0..3000).map(|_| client.call("/a/Work", &[])).collect();
    let calls: Vec<u8> = streams.iter().flat_map(|(_, call)| call.clone()).collect();
    client.send(&calls).await;
    let start = Instant::now();
    for (stream, _) in streams {
        client.send(&frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes())).await;
    }
    let alive = client.service.alive.clone();
    eventually("all streams are dropped", || alive.load(Ordering::Relaxed) == 0).await;
    client.say().await;
    start.elapsed()
}

/// One connection cannot use up the budget for incomplete requests.
#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_leave_room_for_other_connections() {
    let server = Server::new();
    let mut greedy = server.connect().await;
    let (head, half) = (head("/a/Say", &[]), 500 << 10);
    let message = [&[0, 0, 0x0f, 0xff, 0xff][..], &vec![0; half]].concat();
    // 10 MiB of a budget of 4 MiB.
    for n in 0..20 {
        let stream = 2 * n + 1;
        greedy.send(&frame(kind::HEADERS, flag::END_HEADERS, stream, &head)).await;
        for part in message.chunks(16_384) {
            greedy.send(&frame(kind::DATA, 0, stream, part)).await;
        }
    }
    let refused = greedy.end_of(39).await;
    assert!(refused.contains("too many unread messages"), "{refused:?}");
    let mut client = server.connect().await;
    client.send(&frame(kind::HEADERS, flag::END_HEADERS, 1, &head)).await;
    let message = [&[0, 0, 3, 0xff, 0xff][..], &vec![0; 0x3_ffff]].concat();
    for part in message.chunks(16_384) {
        client.send(&frame(kind::DATA, 0, 1, part)).await;
    }
    client.send(&frame(kind::DATA, flag::END_STREAM, 1, &[])).await;
    let end = client.end_of(1).await;
    assert!(end.contains("unmarshalling"), "the message was not received: {end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_at_their_deadline() {
    let mut client = connect().await;
    for path in ["/a/Wait", "/a/Chat"] {
        let start = Instant::now();
        let stream = client.start(path, &[("grpc-timeout", "100m")]).await;
        if path == "/a/Chat" {
            let window = 500_u32 << 20;
            client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes())).await;
            client.send(&frame(kind::WINDOW_UPDATE, 0, stream, &window.to_be_bytes())).await;
        }
        let end = client.end_of(stream).await;
        assert!(end.contains("context deadline exceeded"), "{path}: {end:?}");
        assert!(
            start.elapsed() >= Duration::from_millis(100),
            "{path}: after {:?}",
            start.elapsed()
        );
    }
    assert_eq!(client.service.alive.load(Ordering::Relaxed), 0, "handlers that exist");
    client.say().await;
    let ended = client.service.ended.lock().clone();
    let exceeded = |path| (path, Code::DeadlineExceeded);
    assert_eq!(ended, [exceeded("/a/Wait"), exceeded("/a/Chat"), ("/a/Say", Code::Ok)]);
    let stream = client.start("/a/Say", &[("grpc-timeout", "1s")]).await;
    let end = client.end_of(stream).await;
    assert!(end.contains("malformed grpc-timeout: transport: timeout unit is not"), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_messages_are_counted_with_their_code() {
    let mut client = connect().await;
    let stream = client.start("/a/Oversize", &[]).await;
    let end = client.end_of(stream).await;
    assert!(end.contains("larger than max"), "{end:?}");
    // The client's message on this stream is too large.
    let stream = client.next_stream;
    client.next_stream += 2;
    let head = frame(kind::HEADERS, flag::END_HEADERS, stream, &head("/a/Chat", &[]));
    let large = frame(kind::DATA, 0, stream, &[0, 0xff, 0, 0, 0]);
    client.send(&[head, large].concat()).await;
    client.end_of(stream).await;
    let ended = client.service.ended.lock().clone();
    let refused = |path| (path, Code::ResourceExhausted);
    assert_eq!(ended, [refused("/a/Oversize"), refused("/a/Chat")]);
}

/// A stopping server serves the calls that the client started before it got the first GOAWAY
/// frame.
#[tokio::test(flavor = "multi_thread")]
async fn stop_serves_calls_in_flight() {
    let mut client = connect().await;
    client.say().await;
    client.stop.cancel();
    let first = client.read_kind(kind::GOAWAY).await;
    assert_eq!(read_u32(&first), Some((1 << 31) - 1), "the last stream is not named yet");
    let ping = client.read_kind(kind::PING).await;
    // The client has not read the frames.
    let end = client.say().await;
    assert!(end.len() < 5, "{end:?}");
    let chat = client.start("/a/Chat", &[]).await;
    let end = client.end_of(chat).await;
    assert!(end.contains("server stopped"), "{end:?}");
    client.send(&frame(kind::PING, flag::ACK, 0, &ping)).await;
    let second = client.read_kind(kind::GOAWAY).await;
    assert_eq!(read_u32(&second), Some(chat));
    let rest = client.io.read(&mut [0; 1]).await.unwrap();
    assert_eq!(rest, 0, "the connection is closed");
}

/// The same for a client that does not acknowledge the ping.
#[tokio::test(flavor = "multi_thread")]
async fn stop_does_not_wait_for_a_client_that_does_not_answer() {
    let mut client = connect().await;
    client.say().await;
    client.stop.cancel();
    client.read_kind(kind::GOAWAY).await;
    let second = client.read_kind(kind::GOAWAY).await;
    assert_eq!(read_u32(&second), Some(1));
}

/// Slow reads that never end keep nobody waiting: neither those of one connection, nor those
/// of several that have all slots together.
#[tokio::test(flavor = "multi_thread")]
async fn endless_slow_reads_leave_turns_to_others() {
    let server = Server::new();
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut client = server.connect().await;
        let calls: Vec<u8> = (0..20).flat_map(|_| client.call("/a/Endless", &[]).1).collect();
        client.send(&calls).await;
        client.say().await;
        let mut other = server.connect().await;
        assert_quick(Duration::from_secs(4), "beside endless reads, three reads", async || {
            let start = Instant::now();
            for _ in 0..3 {
                let stream = other.start("/a/Slow", &[]).await;
                other.end_of(stream).await;
            }
            start.elapsed()
        })
        .await;
        busy.push(client);
    }
    // Those that wait for another turn end with their connection too.
    let alive = server.service.alive.clone();
    drop(busy);
    eventually("the reads are dropped", || alive.load(Ordering::Relaxed) == 0).await;
}

/// What a running slow read will return is not known. That it may be much does not keep the
/// other calls of its connection waiting.
#[tokio::test(flavor = "multi_thread")]
async fn calls_do_not_wait_for_a_slow_read_of_their_connection() {
    let mut server = Server::new();
    server.config.capacity = Capacity::new(3 * MIB, 2);
    let alive = server.service.alive.clone();
    let mut client = server.connect().await;
    client.start("/a/Endless", &[]).await;
    eventually("the read is running", || alive.load(Ordering::Relaxed) == 1).await;
    client.say().await;
}

/// The client sends something invalid after the response has begun.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_head_is_sent_as_trailers() {
    let mut client = connect().await;
    let stream = client.start("/a/Chat", &[]).await;
    // The response has begun, and more of it is queued than the window allows.
    client.read_kind(kind::DATA).await;
    settled(&client.service.produced).await;
    client.send(&frame(kind::DATA, 0, stream, &[1, 0, 0, 0, 0])).await;
    let window = (4 * MIB) as u32;
    client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes())).await;
    client.send(&frame(kind::WINDOW_UPDATE, 0, stream, &window.to_be_bytes())).await;
    loop {
        let (header, payload) = client.read().await;
        if header.stream != stream || header.kind == kind::DATA && !header.has(flag::END_STREAM) {
            continue;
        }
        assert_eq!(header.kind, kind::HEADERS, "the response ends without a status");
        assert!(header.has(flag::END_STREAM), "HEADERS in the middle of the response");
        assert_ne!(payload[0], 0x88, "`:status` in trailers");
        break;
    }
    let ended = client.service.ended.lock().clone();
    assert_eq!(ended.len(), 1, "{ended:?}");
}

/// Also a connection that the client closes reports its calls.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_closed_connection_are_reported() {
    let mut client = connect().await;
    client.start("/a/Wait", &[]).await;
    client.start("/a/Work", &[]).await;
    client.say().await;
    let service = client.service.clone();
    drop(client);
    let cancelled = |path| (path, Code::Cancelled);
    let reported = |path| service.ended.lock().contains(&cancelled(path));
    eventually("both are reported", || reported("/a/Wait") && reported("/a/Work")).await;
}

/// A client that sends many calls at once does not keep the thread for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn many_short_calls_leave_the_thread_to_other_connections() {
    assert_quick(Duration::from_millis(500), "five calls", call_beside_short_calls).await;
}

async fn call_beside_short_calls() -> Duration {
    let server = Server::new();
    let (mut busy, mut other) = (server.connect().await, server.connect().await);
    other.say().await;
    let calls: Vec<_> = (0..800).map(|_| busy.call("/a/Short", &[])).collect();
    busy.send(&calls.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>()).await;
    let start = Instant::now();
    for _ in 0..5 {
        other.say().await;
    }
    let took = start.elapsed();
    let (last, _) = calls.last().unwrap();
    busy.end_of(*last).await;
    took
}

/// A path of 4,000 bytes as an entry of the dynamic table of HPACK, and the block of a
/// request with this path that has three bytes for it.
fn indexed_path(verb: u8, content_type: &str) -> (Vec<u8>, Vec<u8>) {
    let path = [b"/", &[b'x'; 3999][..]].concat();
    // Literals with incremental indexing, the first with the indexed name `:path`. An integer
    // that is not below 127 continues with groups of seven bits.
    let mut first = vec![verb, 0x86, 0x44, 127, 0xa1, 0x1e];
    first.extend(path);
    let mut rest = vec![0, 12];
    rest.extend(b"content-type");
    rest.push(content_type.len() as u8);
    rest.extend(content_type.bytes());
    first.extend(&rest);
    (first, [&[verb, 0x86, 0xbe][..], &rest].concat())
}

/// A client makes calls of an unknown method and does not read the errors. Their heads occupy
/// memory, so the server stops reading.
#[tokio::test(flavor = "multi_thread")]
async fn errors_that_are_not_read_are_bounded() {
    const CALLS: u32 = 100_000;
    let client = connect().await;
    let (mut reader, mut writer) = tokio::io::split(client.io);
    let (first, rest) = indexed_path(0x83, "application/grpc");
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    tokio::spawn(async move {
        for n in 0..CALLS {
            let block = if n == 0 { &first } else { &rest };
            let flags = flag::END_HEADERS | flag::END_STREAM;
            writer.write_all(&frame(kind::HEADERS, flags, 2 * n + 1, block)).await.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let unread = settled(&sent).await;
    assert!(unread < 20_000, "{unread} errors wait in memory");
    // They all arrive when the client reads.
    let mut ended = 0;
    while ended < CALLS {
        let mut header = [0; HEADER_BYTES];
        reader.read_exact(&mut header).await.unwrap();
        let header = FrameHeader::peek(&header).unwrap();
        reader.read_exact(&mut vec![0; header.len]).await.unwrap();
        if header.kind == kind::HEADERS {
            assert!(header.len < 4000, "an error of {} bytes", header.len);
            ended += 1;
        }
    }
}

/// A client makes requests with long paths, and completes none.
#[tokio::test(flavor = "multi_thread")]
async fn paths_of_incomplete_pages_are_bounded() {
    let mut client = connect().await;
    let (first, rest) = indexed_path(0x82, "text/plain");
    for n in 0..10_000 {
        let block = if n == 0 { &first } else { &rest };
        client.send(&frame(kind::HEADERS, flag::END_HEADERS, 2 * n + 1, block)).await;
    }
    let end = client.end_of(19_999).await;
    assert!(end.contains("too many unread messages"), "{end:?}");
}

/// Empty messages of a stream whose handler does not run, because the client does not read,
/// occupy more memory than they have bytes.
#[tokio::test(flavor = "multi_thread")]
async fn empty_messages_that_wait_are_bounded() {
    let mut client = connect().await;
    let calls: Vec<u8> = (0..100).flat_map(|_| client.call("/a/Chat", &[]).1).collect();
    client.send(&calls).await;
    settled(&client.service.produced).await;
    let stream = client.start("/a/Work", &[]).await;
    // 320,000 messages in 1.6 MB, on as many streams as their windows require.
    let other = client.start("/a/Work", &[]).await;
    for part in 0..100 {
        let stream = if part % 2 == 0 { stream } else { other };
        client.send(&frame(kind::DATA, 0, stream, &[0; 16_000])).await;
    }
    let end = client.end_of(other).await;
    assert!(end.contains("too many unread messages"), "{end:?}");
}

/// The memory of large responses counts. Further slow reads get only the guaranteed part of their
/// connection when none is left. Clients that do not read are then disconnected soon.
#[tokio::test(flavor = "multi_thread")]
async fn memory_of_large_responses_is_bounded() {
    // A twelfth of this if memory is scarce.
    let server = Server::with_stall_timeout(Duration::from_secs(36));
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = server.connect().await;
        client.start("/a/Lazy", &[]).await;
        clients.push(client);
    }
    let produced = settled(&server.service.produced).await;
    assert!((10..=16).contains(&produced), "{produced} responses of 16 MiB in 200 MiB");
    let mut further = server.connect().await;
    further.send(&open_windows()).await;
    let stream = further.start("/a/Slow", &[]).await;
    let end = further.end_of(stream).await;
    assert!(!end.contains("too many"), "a slow read with a small result: {end:?}");
    // The clients open no windows. Those that have a response are disconnected: after 3 s if less than
    // 1/16 of the memory is left, otherwise after 36 s.
    let mut closed = tokio::task::JoinSet::new();
    for mut client in clients {
        closed.spawn(async move { client.io.read_to_end(&mut Vec::new()).await });
    }
    let first = tokio::time::timeout(LONG, closed.join_next()).await;
    first.expect("all are still connected").unwrap().unwrap().unwrap();
    // Further large reads get the memory, sometime after those of the clients that have waited.
    let start = Instant::now();
    loop {
        let stream = further.start("/a/Lazy", &[]).await;
        if !further.end_of(stream).await.contains("too many") {
            break;
        }
        assert!(start.elapsed() < LONG, "the memory of closed connections is not free");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Connections hold incomplete requests that use up the budget of 4 MiB. These end after a while, but
/// not those of a connection with little.
#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_end_when_memory_is_scarce() {
    // A twelfth of this if memory is scarce.
    let server = Server::with_stall_timeout(Duration::from_secs(48));
    let head = head("/a/Say", &[]);
    // `bytes` bytes of a longer message.
    let incomplete = |stream: u32, bytes: usize| {
        let message = [&[0, 0, 0x0f, 0xff, 0xff][..], &vec![0; bytes]].concat();
        let parts = message.chunks(16_384).flat_map(|part| frame(kind::DATA, 0, stream, part));
        let head = frame(kind::HEADERS, flag::END_HEADERS, stream, &head);
        head.into_iter().chain(parts).collect::<Vec<u8>>()
    };
    let mut small = server.connect().await;
    small.send(&incomplete(1, 100)).await;
    let mut greedy = Vec::new();
    for count in [20, 10, 5, 4, 4, 4, 4, 4] {
        let mut client = server.connect().await;
        for stream in (1..2 * count).step_by(2) {
            client.send(&incomplete(stream, 100_000)).await;
        }
        client.next_stream = 2 * count + 1;
        client.say().await;
        greedy.push(client);
    }
    let mut further = server.connect().await;
    // More than the part of a connection.
    let message = prost::Message::encode_to_vec(&"x".repeat(200_000));
    let message = [&[0, 0, 3, 0x0d, 0x44][..], &message].concat();
    let mut say_much = async || {
        let stream = further.next_stream;
        further.next_stream += 2;
        let parts = message.chunks(16_384).flat_map(|part| frame(kind::DATA, 0, stream, part));
        let end = frame(kind::DATA, flag::END_STREAM, stream, &[]);
        let head = frame(kind::HEADERS, flag::END_HEADERS, stream, &head);
        further.send(&head.into_iter().chain(parts).chain(end).collect::<Vec<u8>>()).await;
        let (header, payload) = loop {
            let (header, payload) = further.read().await;
            if header.stream == stream && header.kind == kind::HEADERS {
                break (header, payload);
            }
        };
        (header.has(flag::END_STREAM), String::from_utf8_lossy(&payload).into_owned())
    };
    let (refused, end) = say_much().await;
    assert!(refused && end.contains("too many unread messages"), "{end:?}");
    let start = Instant::now();
    while say_much().await.0 {
        assert!(start.elapsed() < LONG, "incomplete requests do not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    small.send(&frame(kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await;
    small.next_stream = 3;
    assert!(!small.say().await.contains("stayed incomplete"));
}

/// The result of a slow read counts while it is gathered.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reads_without_memory_for_their_result_fail() {
    let mut client = connect().await;
    let stream = client.start("/a/Gather", &[]).await;
    let end = client.end_of(stream).await;
    assert!(end.contains("etcdserver: too many requests"), "{end:?}");
    let gathered = client.service.produced.load(Ordering::Relaxed);
    assert!((90..=120).contains(&gathered), "{gathered} MiB of 200 MiB");
    assert!(!client.say().await.contains("too many"));
}

/// A client that leaves much unread is disconnected. One that reads slowly is not.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_are_disconnected() {
    // A reader on a busy machine must not be silent for as long.
    let stall_timeout = Duration::from_secs(3);
    let server = Server::with_stall_timeout(stall_timeout);
    let (mut idle, mut reading) = (server.connect().await, server.connect().await);
    for client in [&mut idle, &mut reading] {
        let calls: Vec<u8> = (0..10).flat_map(|_| client.call("/a/Large", &[]).1).collect();
        client.send(&calls).await;
    }
    let window = 500_u32 << 20;
    let settings = frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    reading.send(&settings).await;
    let start = Instant::now();
    while start.elapsed() < 2 * stall_timeout {
        let window = 16_384_u32.to_be_bytes();
        reading.send(&frame(kind::WINDOW_UPDATE, 0, 0, &window)).await;
        reading.read_kind(kind::DATA).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut unread = Vec::new();
    let closed = idle.io.read_to_end(&mut unread);
    tokio::time::timeout(LONG, closed).await.expect("still connected").unwrap();
    let text = String::from_utf8_lossy(&unread);
    assert!(text.contains("the client does not read its responses"), "no GOAWAY");
    reading.send(&frame(kind::PING, 0, 0, &[7; 8])).await;
    while reading.read().await.0.kind != kind::PING {}
}

/// Frames that let the server send as much as it wants.
fn open_windows() -> Vec<u8> {
    let window = (1_u32 << 30).to_be_bytes();
    let settings = frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &window].concat());
    [settings, frame(kind::WINDOW_UPDATE, 0, 0, &window)].concat()
}

/// Writes start before the first of them has a reply. Their replies are encoded only while the
/// connection may hold them, and all of them are sent when the client reads.
#[tokio::test(flavor = "multi_thread")]
async fn unread_replies_to_writes_are_bounded() {
    let server = Server::new();
    let produced = || server.service.produced.load(Ordering::Relaxed);
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = server.connect().await;
        let mut calls: Vec<u8> = (0..300).flat_map(|_| client.call("/a/Write", &[]).1).collect();
        calls.extend(client.call("/a/Write", &[("grpc-timeout", "1S")]).1);
        client.send(&calls).await;
        clients.push(client);
    }
    let encoded = settled(&server.service.produced).await;
    assert!((100..=200).contains(&encoded), "{encoded} replies of 1 MiB in 200 MiB");
    // Small replies do not wait, neither for their own connection nor for others.
    let mut other = server.connect().await;
    other.start("/a/SmallWrite", &[]).await;
    eventually("the small reply", || produced() == encoded + 1).await;
    assert!(!other.say().await.contains("too many"));
    // A deadline and a reset end calls that wait.
    let ended = |code| {
        let ended = server.service.ended.lock();
        ended.iter().filter(|call| **call == ("/a/Write", code)).count()
    };
    eventually("the deadlines", || ended(Code::DeadlineExceeded) == 4).await;
    let mut reading = clients.pop().unwrap();
    let last = reading.next_stream - 6;
    reading.send(&frame(kind::RST_STREAM, 0, last + 2, &8_u32.to_be_bytes())).await;
    eventually("the reset", || ended(Code::Cancelled) == 1).await;
    drop(clients);
    reading.send(&open_windows()).await;
    reading.end_of(last).await;
    eventually("the closed connections", || ended(Code::Cancelled) > 3 * 100).await;
}

/// Replies that do not exist yet keep a connection from starting more calls.
#[tokio::test(flavor = "multi_thread")]
async fn expected_replies_are_bounded() {
    let mut client = connect().await;
    let calls: Vec<u8> = (0..100).flat_map(|_| client.call("/a/Expect", &[]).1).collect();
    client.send(&calls).await;
    assert_eq!(settled(&client.service.produced).await, 33, "32 MiB and one");
    let code = 8_u32.to_be_bytes();
    for stream in (1..20).step_by(2) {
        client.send(&frame(kind::RST_STREAM, 0, stream, &code)).await;
    }
    assert_eq!(settled(&client.service.produced).await, 43, "10 calls were reset");
}

/// The replies that all connections expect share the memory of 200 MiB. A connection whose part is
/// small may still expect one.
#[tokio::test(flavor = "multi_thread")]
async fn expected_replies_of_all_connections_are_bounded() {
    let server = Server::new();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = server.connect().await;
        let calls: Vec<u8> = (0..30).flat_map(|_| client.call("/a/Expect", &[]).1).collect();
        client.send(&calls).await;
        client.say().await;
        clients.push(client);
    }
    let expected = settled(&server.service.produced).await;
    assert!((200..=250).contains(&expected), "replies of {expected} MiB are expected");
}

/// A connection whose replies wait for memory that another one uses goes on when that is closed.
#[tokio::test(flavor = "multi_thread")]
async fn replies_wait_for_other_connections() {
    let server = Server::new();
    let mut greedy = Vec::new();
    for _ in 0..20 {
        let mut client = server.connect().await;
        let calls: Vec<u8> = (0..100).flat_map(|_| client.call("/a/Write", &[]).1).collect();
        client.send(&calls).await;
        greedy.push(client);
    }
    let before = settled(&server.service.produced).await;
    let mut last = server.connect().await;
    let calls: Vec<u8> = (0..50).flat_map(|_| last.call("/a/Write", &[]).1).collect();
    last.send(&calls).await;
    let after = settled(&server.service.produced).await;
    assert!(after - before < 10, "{} replies were encoded", after - before);
    drop(greedy);
    let produced = || server.service.produced.load(Ordering::Relaxed);
    eventually("all replies are encoded", || produced() >= after + 50 - (after - before)).await;
}

/// What calls keep is limited, and free for others when they end.
#[tokio::test(flavor = "multi_thread")]
async fn kept_memory_is_bounded() {
    let server = Server::new();
    let idle = Arc::strong_count(&server.service);
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = server.connect().await;
        let stream = client.start("/a/Keep", &[]).await;
        client.send(&frame(kind::DATA, 0, stream, &[0; 5 * 200])).await;
        clients.push(client);
        // At the same time, five connections would get 5/6 of the memory.
        settled(&server.service.produced).await;
    }
    let produced = || server.service.produced.load(Ordering::Relaxed);
    eventually("the memory is used", || produced() >= 380).await;
    let kept = settled(&server.service.produced).await;
    assert!((380..=400).contains(&kept), "{kept} MiB of 400 MiB are kept");
    drop(clients);
    eventually("the memory is free", || Arc::strong_count(&server.service) == idle).await;
    let mut client = server.connect().await;
    let stream = client.start("/a/Keep", &[]).await;
    client.send(&frame(kind::DATA, 0, stream, &[0; 5 * 200])).await;
    eventually("the memory is used again", || produced() >= kept + 190).await;
    let again = settled(&server.service.produced).await - kept;
    assert!((190..=200).contains(&again), "{again} MiB of 400 MiB are kept");
}

/// Passes `bytes` to the server at each read after its first write, and counts the reads. Each takes
/// at least `READ_TIME`, so that their number does not depend on how fast the machine decodes.
struct Flood {
    bytes: Vec<u8>,
    written: bool,
    reads: Arc<AtomicUsize>,
}

const READ_TIME: Duration = Duration::from_millis(1);

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.written {
            return Poll::Pending;
        }
        std::thread::sleep(READ_TIME);
        buffer.put_slice(&self.bytes);
        self.reads.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Reading takes time even if no handler runs: these blocks are decoded and then ignored. The
/// connection gives way to others after 2 ms. Without this, it would read 16 times.
#[tokio::test]
async fn reads_without_calls_leave_the_thread_to_other_connections() {
    let server = Server::new();
    // The server ends a call of an unknown method before the request is complete.
    let call = frame(kind::HEADERS, flag::END_HEADERS, 1, &head("/no/Such", &[]));
    let start = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[]), &call].concat();
    // `accept-encoding: gzip, deflate`, 2,100 times: 126 kB decoded.
    let end = flag::END_HEADERS | flag::END_STREAM;
    let trailers = frame(kind::HEADERS, end, 1, &[0x90; 2100]);
    let reads = Arc::new(AtomicUsize::new(0));
    let flood = Flood { bytes: trailers.repeat(30), written: false, reads: reads.clone() };
    let stop = CancellationToken::new();
    let serve = grpc::serve(flood, &start, server.routes.clone(), None, &server.config, stop);
    let mut serve = Box::pin(serve);
    assert!(futures_util::poll!(&mut serve).is_pending());
    let reads = reads.load(Ordering::Relaxed);
    assert!((1..8).contains(&reads), "{reads} reads in one turn");
}
