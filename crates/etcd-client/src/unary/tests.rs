//! Calls to a server in memory.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http2::{
    CommonField, Config, ConnectMethod, Connection, Data, ErrorCode, Event, Headers, Keepalive,
    ResponseHead, StreamMap,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::task::JoinSet;

use super::state::LIMITS;
use super::*;

const OPTIONS: Options = Options {
    max_calls: 200,
    timeout: Duration::from_secs(1),
    collect: Duration::from_millis(1),
    max_batch: 200,
};

static HEAD: [CommonField; 1] = [CommonField { name: "content-type", value: "application/grpc" }];
static OK: [CommonField; 1] = [CommonField { name: "grpc-status", value: "0" }];

/// A connection that counts writes.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The other side of a connection.
struct Server {
    io: DuplexStream,
    http: Connection<Fields>,
    /// Bodies of requests, by stream.
    bodies: StreamMap<Vec<u8>>,
}

/// What a client has done.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    /// A complete request on a stream.
    Call(u32, Vec<u8>),
    /// A stream was reset.
    Reset(u32),
    /// The connection has ended.
    End,
}

/// A caller, its driver, the other side, and the number of writes of the caller.
fn connected() -> (Caller, Driver, Server, Arc<AtomicUsize>) {
    connected_with(OPTIONS)
}

fn connected_with(options: Options) -> (Caller, Driver, Server, Arc<AtomicUsize>) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (shared, writes) = (Arc::new(Shared::new(options)), Arc::<AtomicUsize>::default());
    let driver = driver::run(Box::new(Counted(near, writes.clone())), shared.clone());
    let target = Target { scheme: "http".into(), authority: "etcd:2379".into() };
    let second = Duration::from_secs(1);
    let keepalive = Keepalive { interval: second, timeout: second, min_interval: second };
    let connect_method = ConnectMethod::Reject;
    let config = Config { max_streams: 1000, keepalive, connect_method, limits: LIMITS };
    let http = Connection::new(&config, Instant::now());
    let server = Server { io: far, http, bodies: StreamMap::default() };
    (Caller { target: Arc::new(target), shared }, driver, server, writes)
}

impl Server {
    /// Waits for what the client does next, without answering anything.
    async fn next(&mut self) -> Got {
        loop {
            match self.http.next_event() {
                Some(Event::Request { stream, request, .. }) => {
                    assert_eq!(request.get(b":path"), Some(&b"/etcdserverpb.KV/Txn"[..]));
                    assert_eq!(request.get(b":authority"), Some(&b"etcd:2379"[..]));
                    self.bodies.insert(stream, Vec::new());
                }
                Some(Event::Data { stream, bytes, end_stream }) => {
                    self.bodies.entry(stream).or_default().extend_from_slice(&bytes);
                    if end_stream {
                        return Got::Call(stream, self.bodies.remove(&stream).unwrap());
                    }
                }
                Some(Event::Reset { stream, .. }) => return Got::Reset(stream),
                Some(event) => panic!("{event:?}"),
                None if !self.exchange().await => return Got::End,
                None => {}
            }
        }
    }

    /// Writes what there is, and reads once. Returns whether the connection goes on.
    async fn exchange(&mut self) -> bool {
        self.write().await;
        let mut buffer = vec![0; 1 << 20];
        let read = self.io.read(&mut buffer).await.unwrap_or(0);
        self.http.receive(&buffer[..read], &(), Instant::now()).unwrap();
        read > 0
    }

    async fn write(&mut self) {
        loop {
            self.http.fill_output();
            let mut slices = [io::IoSlice::new(&[]); 16];
            let output = self.http.output();
            let count = output.slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|it| it.iter().copied()).collect();
            if bytes.is_empty() {
                return;
            }
            output.advance(bytes.len());
            // The client may have ended the connection.
            let _ = self.io.write_all(&bytes).await;
        }
    }

    /// Answers a call with the bytes of its request.
    fn echo(&mut self, stream: u32, body: Vec<u8>) {
        let head = ResponseHead { status: 200, headers: Headers::Common(&HEAD) };
        let body = [Data::Bytes(body.into())];
        self.http.respond(stream, head, body, Some(Headers::Common(&OK)));
    }
}

#[tokio::test]
async fn calls_that_begin_together_are_written_together() {
    let (caller, driver, mut server, writes) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let (caller, txn) = (caller.clone(), txn.clone());
        calls.spawn(async move {
            let answer = caller.call::<u64>(&txn, &number).await;
            assert_eq!(answer, Ok(number));
        });
    }
    // The tasks of the calls are ready before that of the driver.
    tokio::spawn(driver);
    let mut taken = Vec::new();
    for _ in 0..200 {
        let Got::Call(stream, body) = server.next().await else { panic!("no call") };
        taken.push((stream, body));
    }
    // With the preface.
    assert_eq!(writes.load(Relaxed), 1);
    // Not in their order.
    taken.into_iter().rev().for_each(|(stream, body)| server.echo(stream, body));
    server.write().await;
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    assert!(caller.shared.lock().calls.is_empty());
}

#[tokio::test]
async fn calls_wait_for_others() {
    let hour = Duration::from_secs(3600);
    let options = Options { timeout: hour, collect: hour, max_batch: 3, ..OPTIONS };
    let (caller, driver, mut server, writes) = connected_with(options);
    let txn = caller.method("/etcdserverpb.KV/Txn");
    tokio::spawn(driver);
    let mut calls = Vec::new();
    for number in 0..3_u64 {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        // Only the preface was sent.
        assert_eq!(writes.load(Relaxed), 1);
        calls.push(caller.begin(&txn, &number).unwrap());
    }
    for _ in 0..3 {
        let Got::Call(stream, body) = server.next().await else { panic!("no call") };
        server.echo(stream, body);
    }
    assert_eq!(writes.load(Relaxed), 2);
    server.write().await;
    for (number, call) in (0..3_u64).zip(calls) {
        assert_eq!(u64::decode(call.await.unwrap()), Ok(number));
    }
}

#[tokio::test]
async fn further_calls_are_busy_and_those_after_the_end_closed() {
    let (caller, driver, mut server, _) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    let begin = || caller.begin(&txn, &7_u64);
    let mut calls: Vec<Call> = (0..OPTIONS.max_calls).map(|_| begin().unwrap()).collect();
    assert_eq!(begin().err(), Some(CallError::Busy));
    calls.truncate(1);
    let second = begin().unwrap();
    tokio::spawn(driver);
    assert!(matches!(server.next().await, Got::Call(..)));
    drop(server);
    for call in [calls.remove(0), second] {
        assert!(matches!(call.await, Err(CallError::Broken(_))));
    }
    assert_eq!(begin().err(), Some(CallError::Closed));
}

#[tokio::test]
async fn the_server_learns_of_calls_that_are_given_up_after_they_were_sent() {
    let (caller, driver, mut server, _) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    drop(caller.begin(&txn, &1_u64).unwrap());
    let second = caller.begin(&txn, &2_u64).unwrap();
    let driver = tokio::spawn(driver);
    let Got::Call(stream, body) = server.next().await else { panic!("no call") };
    assert_eq!(body, with_prefix(&2_u64));
    drop(second);
    assert_eq!(server.next().await, Got::Reset(stream));
    let third = caller.begin(&txn, &3_u64).unwrap();
    driver.abort();
    assert!(matches!(third.await, Err(CallError::Broken(_))), "the driver is gone");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left() {
    let (caller, driver, mut server, _) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    let driver = tokio::spawn(driver);
    let first = caller.begin(&txn, &1_u64).unwrap();
    let Got::Call(stream, body) = server.next().await else { panic!("no call") };
    server.echo(stream, body);
    server.write().await;
    assert!(first.await.is_ok());
    let second = caller.begin(&txn, &2_u64).unwrap();
    let Err(CallError::Broken(text)) = second.await else { panic!("it has an answer") };
    assert_eq!(text, "no answer within 1 s");
    driver.await.unwrap();
    assert_eq!(caller.begin(&txn, &3_u64).err(), Some(CallError::Closed));
}

#[tokio::test]
async fn a_status_is_an_error_and_the_connection_goes_on() {
    let (caller, driver, mut server, _) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    tokio::spawn(driver);
    let fields: [(&[u8], &[u8]); 2] = [(b"grpc-status", b"8"), (b"grpc-message", b"full")];
    for is_trailer in [false, true] {
        let call = caller.begin(&txn, &1_u64).unwrap();
        let Got::Call(stream, body) = server.next().await else { panic!("no call") };
        let fields = Headers::Fields(Fields::from_iter(fields));
        let (head, data, trailers) = match is_trailer {
            true => (Headers::Common(&HEAD), Some(Data::Bytes(body.into())), Some(fields)),
            false => (fields, None, None),
        };
        server.http.respond(stream, ResponseHead { status: 200, headers: head }, data, trailers);
        server.write().await;
        assert_eq!(call.await, Err(CallError::Status("code 8: full".into())));
    }
}

#[tokio::test]
async fn a_server_that_drains_gets_no_more_calls() {
    let (caller, driver, mut server, _) = connected();
    let txn = caller.method("/etcdserverpb.KV/Txn");
    let driver = tokio::spawn(driver);
    let call = caller.begin(&txn, &1_u64).unwrap();
    let Got::Call(stream, body) = server.next().await else { panic!("no call") };
    server.http.go_away(ErrorCode::NoError, "it stops");
    server.echo(stream, body);
    server.write().await;
    assert!(call.await.is_ok());
    driver.await.unwrap();
    assert_eq!(caller.begin(&txn, &2_u64).err(), Some(CallError::Closed));
}
