//! Tests of links with a server that does what the path of a request says.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, Event, Fields, Headers, Keepalive, Limits, ResponseHead,
};
use http2_socket::Channel;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tls_socket::{ServerSide, TlsSocket};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::*;

const LONG: Duration = Duration::from_secs(120);

/// What a link reported.
#[derive(Default)]
struct Log {
    lines: RefCell<Vec<String>>,
    opened: Cell<u32>,
    dials_failed: Cell<u32>,
}

impl Receiver<u32> for Log {
    fn answered(&self, tag: u32, outcome: Outcome<'_>) {
        self.lines.borrow_mut().push(match outcome {
            Outcome::Answered(answer) => {
                let body = String::from_utf8_lossy(answer.body).into_owned();
                format!("{tag}: {} {body} {:?}", answer.status, answer.retry_after)
            }
            Outcome::Failed(failure) => format!("{tag}: {}", failure.name()),
        });
    }

    fn watched(&self, tag: u32, part: Part<'_>) {
        self.lines.borrow_mut().push(match part {
            Part::Bytes(bytes) => format!("{tag}: part {}", String::from_utf8_lossy(bytes)),
            Part::Ended(end) => format!("{tag}: ended {:?}", end.status),
        });
    }
}

impl Observer for Log {
    fn opened(&self) {
        self.opened.set(self.opened.get() + 1);
    }

    fn closed(&self, _: &Result<()>) {}

    fn dial_failed(&self, _: &anyhow::Error) {
        self.dials_failed.set(self.dials_failed.get() + 1);
    }
}

impl Log {
    /// Waits until a link has reported this line.
    async fn wait(&self, line: &str) {
        let start = Instant::now();
        while !self.lines.borrow().iter().any(|it| it == line) {
            let lines = self.lines.borrow().clone();
            assert!(start.elapsed() < LONG, "no {line:?} in {lines:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A link to a server, and what it reports.
struct World {
    link: Rc<Link<u32>>,
    log: Rc<Log>,
}

/// Runs a test with a link to a server that allows two streams.
fn with_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (server, roots) = certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        spawn_local(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let server = server.clone();
                spawn_local(async move {
                    if let Ok(socket) = TlsSocket::accept(tcp, server).await {
                        serve(socket).await;
                    }
                });
            }
        });
        let tls = client_config(roots, None).unwrap();
        let name = ServerName::try_from("server").unwrap();
        let link = Link::new(Rc::new(Endpoint::new(address, name, tls)));
        let log = Rc::new(Log::default());
        spawn_local(link.clone().run(log.clone(), log.clone()));
        test(World { link, log }).await;
    });
}

fn certificates() -> (Arc<ServerConfig>, Arc<RootCertStore>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["server".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    (Arc::new(server), Arc::new(roots))
}

async fn serve(socket: TlsSocket<ServerSide>) {
    let keepalive = Keepalive {
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        min_interval: Duration::ZERO,
    };
    let connect_method = ConnectMethod::Reject;
    let config = Config { max_streams: 2, keepalive, connect_method, limits: Limits::default() };
    let http = Connection::<Fields>::new(&config, Instant::now());
    let mut channel = Channel::new(socket, http);
    poll_fn(|cx| poll_server(&mut channel, cx)).await;
}

fn poll_server(channel: &mut Channel<ServerSide, Fields>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        let received = channel.poll_receive(cx, Instant::now());
        while let Some(event) = channel.http.next_event() {
            if !obey(channel, event) {
                return Poll::Ready(());
            }
        }
        if channel.send(cx).is_err() || channel.http.is_done() {
            channel.close(cx);
            return Poll::Ready(());
        }
        match received {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(true)) => {}
            Poll::Ready(_) => return Poll::Ready(()),
        }
    }
}

/// Does what a path says. Returns whether the connection stays open.
fn obey(channel: &mut Channel<ServerSide, Fields>, event: Event<Fields>) -> bool {
    let head = |status, fields: &[(&[u8], &[u8])]| {
        let headers = Headers::Fields(Fields::from_iter(fields.iter().copied()));
        ResponseHead { status, headers }
    };
    match event {
        Event::Request { stream, request, end_stream, .. } => {
            let path = String::from_utf8_lossy(request.get(b":path").unwrap()).into_owned();
            match &*path {
                "/close" => return false,
                "/silent" => {}
                "/busy" => {
                    channel.http.respond(stream, head(429, &[(b"retry-after", b"7")]), [], None);
                }
                "/watch" => {
                    channel.http.send_head(stream, head(200, &[]));
                    channel.http.send_data(stream, Bytes::from("one").into());
                }
                "/goaway" => {
                    let body = [Bytes::from("bye").into()];
                    channel.http.respond(stream, head(200, &[]), body, None);
                    channel.http.drain("moving", Instant::now());
                }
                _ if end_stream => {
                    let body = [Bytes::from(path).into()];
                    channel.http.respond(stream, head(200, &[]), body, None);
                }
                _ => {}
            }
        }
        Event::Data { stream, bytes, end_stream: true } => {
            channel.http.respond(stream, head(201, &[]), [bytes.into()], None);
        }
        _ => {}
    }
    true
}

fn get(path: &str) -> Request {
    Request::get(path.to_owned())
}

#[test]
fn every_request_has_its_answer_within_the_limit_on_streams() {
    with_world(async |world| {
        for tag in 0..50 {
            world.link.send(tag, get(&format!("/{tag}")), Limit::Ordinary);
        }
        let body = Body::Protobuf(Bytes::from("lease"));
        let request = Request { method: Method::Put, path: "/put".into(), body };
        world.link.send(50, request, Limit::Heartbeat);
        world.link.send(51, get("/busy"), Limit::Ordinary);
        world.log.wait("51: 429  Some(7)").await;
        world.log.wait("50: 201 lease None").await;
        assert_eq!(world.log.lines.borrow().len(), 52);
        assert!(
            (0..50).all(|it| world.log.lines.borrow().contains(&format!("{it}: 200 /{it} None")))
        );
        assert_eq!(world.log.opened.get(), 1);
    });
}

#[test]
fn a_heartbeat_that_is_not_answered_fails_and_another_request_goes_on() {
    with_world(async |world| {
        world.link.send(1, get("/silent"), Limit::Ordinary);
        let start = Instant::now();
        world.link.send(2, get("/silent"), Limit::Heartbeat);
        // The limit of two streams is reached until the heartbeat fails.
        world.link.send(3, get("/after"), Limit::Ordinary);
        world.log.wait("2: timeout").await;
        assert!(start.elapsed() >= Duration::from_secs(10));
        world.log.wait("3: 200 /after None").await;
        assert_eq!(world.log.lines.borrow().len(), 2, "the other request has more time");
    });
}

#[test]
fn a_connection_that_ends_fails_its_requests_and_is_opened_again() {
    with_world(async |world| {
        world.link.send(1, get("/silent"), Limit::Ordinary);
        world.link.watch(2, get("/watch"));
        world.log.wait("2: part one").await;
        // The limit of two streams is reached, so this waits for the next connection.
        world.link.send(3, get("/after"), Limit::Ordinary);
        world.link.close();
        world.log.wait("1: connection").await;
        world.log.wait("2: ended Some(200)").await;
        world.log.wait("3: connection").await;
    });
    with_world(async |world| {
        world.link.send(1, get("/close"), Limit::Ordinary);
        world.log.wait("1: connection").await;
        world.link.send(2, get("/after"), Limit::Ordinary);
        world.log.wait("2: 200 /after None").await;
        assert_eq!(world.log.opened.get(), 2);
    });
}

#[test]
fn watches_go_on_after_goaway_and_new_requests_use_another_connection() {
    with_world(async |world| {
        world.link.watch(1, get("/watch"));
        world.log.wait("1: part one").await;
        world.link.send(2, get("/goaway"), Limit::Ordinary);
        world.log.wait("2: 200 bye None").await;
        while world.log.opened.get() < 2 {
            world.link.send(3, get("/after"), Limit::Ordinary);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.log.wait("3: 200 /after None").await;
        let ended = |line: &String| line.starts_with("1: ended");
        assert!(!world.log.lines.borrow().iter().any(ended), "the watch goes on");
        world.link.close();
        world.log.wait("1: ended Some(200)").await;
    });
}

#[test]
fn a_watch_that_is_cancelled_ends_and_frees_its_stream() {
    with_world(async |world| {
        world.link.watch(1, get("/watch"));
        world.link.watch(2, get("/watch"));
        world.log.wait("2: part one").await;
        // The limit of two streams is reached: these wait.
        world.link.watch(3, get("/watch"));
        world.link.send(4, get("/after"), Limit::Ordinary);
        world.link.cancel(3);
        world.log.wait("3: ended None").await;
        world.link.cancel(1);
        world.log.wait("1: ended Some(200)").await;
        world.log.wait("4: 200 /after None").await;
        let lines = world.log.lines.borrow();
        assert!(!lines.iter().any(|line| line.starts_with("2: ended")), "{lines:?}");
    });
}

#[test]
fn requests_fail_at_once_if_the_server_cannot_be_reached() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let tls = client_config(Arc::new(RootCertStore::empty()), None).unwrap();
        let name = ServerName::try_from("server").unwrap();
        let mut endpoint = Endpoint::new(address, name, tls);
        endpoint.source = Some(std::net::Ipv4Addr::new(127, 0, 0, 9));
        let (link, log) = (Link::new(Rc::new(endpoint)), Rc::new(Log::default()));
        spawn_local(link.clone().run(log.clone(), log.clone()));
        link.send(1, get("/"), Limit::Ordinary);
        link.watch(2, get("/"));
        log.wait("1: connection").await;
        log.wait("2: ended None").await;
        assert_eq!(log.dials_failed.get(), 1);
    });
}
