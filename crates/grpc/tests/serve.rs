//! Tests of the server with the HTTP/2 client of the crate `h2`, over a pipe in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream, StreamExt};
use grpc::{
    Admission, Budget, Capacity, Code, Keepalive, Requests, Routes, ServerConfig, Service, Status,
};
use h2::client::SendRequest;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct Echo {
    ended: AtomicUsize,
    started: AtomicUsize,
}

impl Service for Echo {
    fn call_ended(&self, _: &'static str, _: Code) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn page(&self, request: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
        let body = Bytes::from(format!("{} {}", request.method(), request.uri().path()));
        Box::pin(async move { http::Response::new(body) })
    }
}

impl Echo {
    /// Returns the text. If it starts with "fail ", returns an error with the rest of the
    /// text.
    async fn say(self: Arc<Self>, text: String) -> Result<String, Status> {
        self.started.fetch_add(1, Ordering::Relaxed);
        match text.strip_prefix("fail ") {
            Some(reason) => Err(Status::not_found(reason.to_owned())),
            None => Ok(text),
        }
    }

    /// Never returns.
    async fn wait(self: Arc<Self>, _: String) -> Result<String, Status> {
        std::future::pending().await
    }

    /// Streams messages of 1 KiB. Their number is the text.
    fn repeat(
        self: Arc<Self>,
        text: String,
        _: Admission,
    ) -> impl Stream<Item = Result<String, Status>> {
        let count: usize = text.parse().unwrap();
        stream::iter((0..count).map(|_| Ok("x".repeat(1024))))
    }

    /// Returns each text in upper case.
    fn chat(
        self: Arc<Self>,
        requests: Requests<String>,
    ) -> impl Stream<Item = Result<String, Status>> {
        requests.map(|text| text.map(|text| text.to_uppercase()))
    }
}

struct Client {
    send: SendRequest<Bytes>,
    service: Arc<Echo>,
    stop: CancellationToken,
}

fn config() -> ServerConfig {
    let second = Duration::from_secs(1);
    ServerConfig {
        max_streams: 100,
        message_bytes: 1 << 20,
        budget: Budget::new(4 << 20),
        capacity: Capacity::new(100 << 20, 2),
        stall_timeout: 1000 * second,
        keepalive: Keepalive { interval: 100 * second, timeout: second, min_interval: second },
    }
}

async fn connect(builder: &h2::client::Builder) -> Client {
    let service = Arc::new(Echo::default());
    let routes = Routes::new(service.clone())
        .unary("/test.Echo/Say", Echo::say)
        .unary("/test.Echo/Wait", Echo::wait)
        .server_stream("/test.Echo/Repeat", Echo::repeat)
        .bidirectional("/test.Echo/Chat", Echo::chat);
    let stop = CancellationToken::new();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let stopped = stop.clone();
    tokio::spawn(async move {
        grpc::serve(theirs, &[], Arc::new(routes), None, &config(), stopped).await
    });
    let (send, connection) = builder.handshake::<_, Bytes>(ours).await.unwrap();
    tokio::spawn(connection);
    Client { send, service, stop }
}

/// Encodes a protobuf `StringValue` with gRPC's prefix.
fn message(text: &str) -> Bytes {
    let encoded = prost::Message::encode_to_vec(&text.to_owned());
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(encoded.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&encoded);
    bytes.into()
}

/// Decodes the messages of a response body.
fn texts(mut body: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some((prefix, rest)) = body.split_at_checked(5) {
        let len = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
        texts.push(prost::Message::decode(&rest[..len]).unwrap());
        body = &rest[len..];
    }
    texts
}

/// The result of a call: the response messages and the status.
#[derive(Debug, PartialEq)]
struct Outcome {
    texts: Vec<String>,
    code: u8,
    message: String,
}

impl Client {
    async fn start(&mut self, path: &str) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let request = http::Request::post(format!("http://test{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let mut send = self.send.clone().ready().await.unwrap();
        send.send_request(request.body(()).unwrap(), false).unwrap()
    }

    async fn call(&mut self, path: &str, body: Bytes) -> Outcome {
        let (response, mut request) = self.start(path).await;
        request.send_data(body, true).unwrap();
        outcome(response).await
    }
}

async fn outcome(response: h2::client::ResponseFuture) -> Outcome {
    let (head, mut body) = response.await.unwrap().into_parts();
    assert_eq!(
        (head.status, &head.headers["content-type"]),
        (http::StatusCode::OK, &"application/grpc".parse().unwrap())
    );
    let mut bytes = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.unwrap().unwrap_or(head.headers);
    let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    Outcome {
        texts: texts(&bytes),
        code: text("grpc-status").parse().unwrap(),
        message: text("grpc-message"),
    }
}

fn ok(texts: &[&str]) -> Outcome {
    Outcome {
        texts: texts.iter().map(|t| t.to_string()).collect(),
        code: 0,
        message: String::new(),
    }
}

fn failed(code: Code, message: &str) -> Outcome {
    Outcome { texts: Vec::new(), code: code as u8, message: message.to_owned() }
}

#[tokio::test]
async fn calls_are_answered() {
    let mut client = connect(&h2::client::Builder::new()).await;
    for text in ["one", "two", ""] {
        assert_eq!(client.call("/test.Echo/Say", message(text)).await, ok(&[text]));
    }
    let lost = client.call("/test.Echo/Say", message("fail key")).await;
    assert_eq!(lost, failed(Code::NotFound, "key"));
    let large = "y".repeat(900_000);
    assert_eq!(client.call("/test.Echo/Say", message(&large)).await, ok(&[&large]));
    assert_eq!(client.call("/test.Echo/Repeat", message("3")).await.texts.len(), 3);
    assert_eq!(client.service.ended.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn invalid_calls_return_errors() {
    let mut client = connect(&h2::client::Builder::new()).await;
    let cases: [(&str, Bytes, Code, &str); 7] = [
        (
            "/test.Echo/Sing",
            message("a"),
            Code::Unimplemented,
            "unknown method Sing for service test.Echo",
        ),
        ("/test.Other/Say", message("a"), Code::Unimplemented, "unknown service test.Other"),
        ("/test", message("a"), Code::Unimplemented, "malformed method name: \"/test\""),
        ("/test.Echo/Say", Bytes::new(), Code::Internal, "grpc: a unary call without a message"),
        (
            "/test.Echo/Say",
            [message("a"), message("b")].concat().into(),
            Code::Internal,
            "grpc: a unary call with more than one message",
        ),
        (
            "/test.Echo/Say",
            message("abc").slice(..7),
            Code::Internal,
            "grpc: the request ends within a message",
        ),
        (
            "/test.Echo/Say",
            Bytes::from_static(&[1, 0, 0, 0, 0]),
            Code::Internal,
            "grpc: compressed flag set with identity or empty encoding",
        ),
    ];
    for (path, body, code, text) in cases {
        assert_eq!(client.call(path, body).await, failed(code, text), "{path}");
    }
    let garbage = client.call("/test.Echo/Say", Bytes::from_static(&[0, 0, 0, 0, 1, 0xff])).await;
    assert!(garbage.message.starts_with("grpc: error unmarshalling request"), "{garbage:?}");
    let large = client.call("/test.Echo/Say", message(&"z".repeat(1 << 20))).await;
    assert_eq!(large.code, Code::ResourceExhausted as u8, "{large:?}");
    assert_eq!(client.call("/test.Echo/Say", message("still here")).await, ok(&["still here"]));
}

#[tokio::test]
async fn bidirectional_calls_stream_both_ways() {
    let mut client = connect(&h2::client::Builder::new()).await;
    let (response, mut request) = client.start("/test.Echo/Chat").await;
    for text in ["a", "b"] {
        request.send_data(message(text), false).unwrap();
    }
    request.send_data(message("c"), true).unwrap();
    assert_eq!(outcome(response).await, ok(&["A", "B", "C"]));
}

#[tokio::test]
async fn responses_larger_than_the_window_are_sent() {
    let mut builder = h2::client::Builder::new();
    let client = &mut connect(builder.initial_window_size(100)).await;
    let answer = client.call("/test.Echo/Repeat", message("300")).await;
    assert_eq!((answer.texts.len(), answer.code), (300, 0));
}

#[tokio::test]
async fn unread_streams_do_not_block_others() {
    // The unread stream may use all of its own window. With the default sizes, this would be
    // the window of the connection as well.
    let mut builder = h2::client::Builder::new();
    let client = &mut connect(builder.initial_connection_window_size(1 << 17)).await;
    let (unread, mut request) = client.start("/test.Echo/Repeat").await;
    request.send_data(message("1000000"), true).unwrap();
    let unread = unread.await.unwrap();
    for _ in 0..100 {
        assert_eq!(client.call("/test.Echo/Say", message("hello")).await, ok(&["hello"]));
    }
    drop(unread);
    assert_eq!(client.call("/test.Echo/Say", message("hello")).await, ok(&["hello"]));
}

#[tokio::test]
async fn pages_are_served_on_the_same_connection() {
    let client = connect(&h2::client::Builder::new()).await;
    let request = http::Request::get("http://test/health").body(()).unwrap();
    let mut send = client.send.ready().await.unwrap();
    let (response, _) = send.send_request(request, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "GET /health");
}

#[tokio::test]
async fn stop_finishes_unary_calls_and_ends_streaming_calls() {
    let mut client = connect(&h2::client::Builder::new()).await;
    let (response, mut chat) = client.start("/test.Echo/Chat").await;
    chat.send_data(message("a"), false).unwrap();
    let (waiting, mut request) = client.start("/test.Echo/Wait").await;
    request.send_data(message("a"), true).unwrap();
    // When this call has returned, the server has started the two calls above.
    client.call("/test.Echo/Say", message("now")).await;
    client.stop.cancel();
    let ended = outcome(response).await;
    assert_eq!((ended.texts, ended.code), (vec!["A".to_owned()], Code::Unavailable as u8));
    let unfinished = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    assert!(unfinished.is_err(), "the unary call in progress was aborted");
}
