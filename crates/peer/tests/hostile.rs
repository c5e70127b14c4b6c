//! Peers that send garbage, nothing or too much, or that stop reading: they lose their connection,
//! and other members notice nothing.

mod node;

use std::time::Duration;

use consensus::id::MemberId;
use consensus::membership::MemberInfo;
use consensus::message::{Body, Message};
use node::{CLUSTER, Node, Settings, eventually, id, pair};
use peer::{Answer, Class, Event};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PREFACE: &[u8] = b"k1m-peer\x03";
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const MESSAGE: u8 = 3;
const PING: u8 = 4;
const ACKNOWLEDGEMENT: u8 = 5;
const CONTROL: u8 = 1;
const LOG: u8 = 2;
const SNAPSHOT: u8 = 3;

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32).to_le_bytes(), body].concat()
}

/// Returns the first bytes of a member that sends messages of a class.
fn hello(class: u8, from: &MemberInfo, to: MemberId) -> Vec<u8> {
    let mut body = vec![class];
    body.extend_from_slice(&CLUSTER.0.to_le_bytes());
    body.extend_from_slice(&to.get().to_le_bytes());
    // No process.
    body.extend_from_slice(&0u64.to_le_bytes());
    from.encode(&mut body);
    [PREFACE, &frame(HELLO, &body)].concat()
}

/// A member that nobody can reach.
fn hostile() -> MemberInfo {
    let peer_urls = vec!["http://127.0.0.1:1".to_owned()];
    MemberInfo { id: id(7), name: "h".to_owned(), peer_urls, client_urls: vec![] }
}

fn message_of(from: &MemberInfo, to: MemberId, body: Body) -> Message {
    Message { cluster: CLUSTER, from: from.id, to, term: 1, body }
}

fn message(message: &Message) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body);
    frame(MESSAGE, &body)
}

/// Reads until the other side closes the connection.
async fn read_to_end(stream: &mut TcpStream) {
    let mut buf = [0; 4096];
    let closed = tokio::time::timeout(Duration::from_secs(120), async {
        while !matches!(stream.read(&mut buf).await, Ok(0) | Err(_)) {}
    });
    closed.await.expect("the connection is not closed");
}

/// Sends bytes, and waits until the receiver closes the connection.
async fn is_refused(to: &Node, bytes: &[u8]) {
    let mut stream = TcpStream::connect(to.address()).await.unwrap();
    // It may be closed before all bytes are sent.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream).await;
}

#[tokio::test]
async fn what_is_no_handshake_is_refused() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    let hello_of_a = hello(LOG, &a.info, b.info.id);
    let huge = [PREFACE, &[HELLO, 0xff, 0xff, 0xff, 0xff]].concat();
    let other_version = [b"k1m-peer\x04", &hello_of_a[PREFACE.len()..]].concat();
    let garbage: Vec<u8> =
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cases: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        &garbage,
        &huge,
        &other_version,
        &[PREFACE, &frame(HELLO, &[])].concat(),
        &[PREFACE, &frame(HELLO, &[9; 100])].concat(),
        &[PREFACE, &frame(MESSAGE, &[1; 100])].concat(),
        &[PREFACE, &frame(HELLO, &[0; 17 << 10])].concat(),
    ];
    for bytes in &cases {
        is_refused(&b, bytes).await;
    }
    let invalid = || b.transport.status().invalid_connections;
    eventually("eight refusals", || invalid() == cases.len() as u64).await;
    a.reach(&mut b).await;
    b.reach(&mut a).await;
}

#[tokio::test]
async fn each_truncated_handshake_ends() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    let bytes = hello(LOG, &a.info, b.info.id);
    for cut in 0..bytes.len() {
        let mut stream = TcpStream::connect(b.address()).await.unwrap();
        stream.write_all(&bytes[..cut]).await.unwrap();
        stream.shutdown().await.unwrap();
        read_to_end(&mut stream).await;
    }
    a.reach(&mut b).await;
}

#[tokio::test]
async fn silent_connections_are_closed_and_do_not_keep_members_out() {
    let (mut a, mut b) = {
        let settings = Settings::impatient();
        (Node::start(1, "a", &settings).await, Node::start(2, "b", &Settings::default()).await)
    };
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(b.address()).await.unwrap());
    }
    // The handshake may take two minutes here, but the oldest ones are given up.
    read_to_end(&mut silent[0]).await;
    a.transport.set_members([&b.info]);
    a.reach(&mut b).await;
    // Here it may take half a second.
    let mut silent = TcpStream::connect(a.address()).await.unwrap();
    read_to_end(&mut silent).await;
}

#[tokio::test]
async fn a_peer_that_violates_the_protocol_loses_its_stream() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    let hostile = hostile();
    let good = message_of(&hostile, b.info.id, Body::TimeoutNow);
    let bad = [
        Message { cluster: consensus::id::ClusterId(1), ..good.clone() },
        Message { from: a.info.id, ..good.clone() },
        Message { to: a.info.id, ..good.clone() },
        Message {
            body: Body::Append { previous: Default::default(), commit: 1, entries: vec![] },
            ..good.clone()
        },
        Message { body: Body::Snapshot(Default::default()), ..good.clone() },
    ];
    let mut cases: Vec<Vec<u8>> = bad.iter().map(message).collect();
    cases.push(vec![MESSAGE, 0xff, 0xff, 0xff, 0xff]);
    cases.push(frame(MESSAGE, &[0; 70_000]));
    cases.push(frame(MESSAGE, b"garbage"));
    cases.push(frame(PING, &[1]));
    cases.push(frame(ACKNOWLEDGEMENT, &[0; 16]));
    cases.push(frame(99, &[]));
    cases.push(PREFACE.to_vec());
    for case in &cases {
        let bytes = [hello(CONTROL, &hostile, b.info.id), message(&good), case.clone()].concat();
        is_refused(&b, &bytes).await;
        let (_, from) = b
            .wait("message", |event| match event {
                Event::Message(message) => Some((message.term, message.from)),
                _ => None,
            })
            .await;
        assert_eq!(from, hostile.id, "only the good message arrives");
    }
    let snapshots = [message(&good), frame(6, b"chunk"), frame(7, &[0; 12])];
    for bytes in snapshots {
        is_refused(&b, &[hello(SNAPSHOT, &hostile, b.info.id), bytes].concat()).await;
    }
    a.reach(&mut b).await;
}

#[tokio::test]
async fn a_peer_that_ignores_the_window_loses_its_stream() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    let hostile = hostile();
    let append = Body::AppendResponse { index: 1, commit: 1, refused: None };
    let one = message(&message_of(&hostile, b.info.id, append));
    let mut bytes = hello(LOG, &hostile, b.info.id);
    // More than the window of 8 MiB.
    bytes.extend(one.repeat((9 << 20) / one.len()));
    is_refused(&b, &bytes).await;
    let events = b.transport.events();
    let received = events.iter().filter(|event| matches!(event, Event::Message(_))).count();
    // Each counts 128 bytes more.
    let taken = received * (one.len() + 128);
    assert!((7 << 20..=8 << 20).contains(&taken), "{received} messages");
    a.reach(&mut b).await;
}

#[tokio::test]
async fn a_sender_that_becomes_silent_is_dropped() {
    let b = Node::start(2, "b", &Settings::impatient()).await;
    let hostile = hostile();
    let half = message(&message_of(&hostile, b.info.id, Body::TimeoutNow));
    for rest in [&[][..], &half[..half.len() / 2]] {
        let bytes = [&hello(CONTROL, &hostile, b.info.id)[..], rest].concat();
        is_refused(&b, &bytes).await;
    }
    eventually("forgotten", || b.transport.status().peers.is_empty()).await;
}

#[tokio::test]
async fn the_own_identity_is_refused() {
    let b = Node::start(2, "b", &Settings::default()).await;
    is_refused(&b, &hello(LOG, &b.info, b.info.id)).await;
    let refused = b.transport.status().refused;
    assert_eq!(refused.get(&Answer::SameMember), Some(&1));
}

/// Accepts a connection as the member `of`, and says that streams begin.
async fn accept_as(listener: &TcpListener, of: &MemberInfo) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut body = vec![0];
    body.extend_from_slice(&(8u32 << 20).to_le_bytes());
    body.extend_from_slice(&CLUSTER.0.to_le_bytes());
    body.push(0);
    of.encode(&mut body);
    stream.write_all(&frame(WELCOME, &body)).await.unwrap();
    stream
}

/// Starts a member, and a listener in the place of its peer 7.
async fn with_false_peer(settings: &Settings) -> (Node, MemberInfo, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = Node::start(1, "a", settings).await;
    let peer_urls = vec![format!("http://{}", listener.local_addr().unwrap())];
    let hostile = MemberInfo { peer_urls, ..hostile() };
    a.transport.set_members([&hostile]);
    (a, hostile, listener)
}

#[tokio::test]
async fn a_half_open_stream_is_noticed_and_opened_again() {
    let (mut a, hostile, listener) = with_false_peer(&Settings::impatient()).await;
    // It takes the connection, and nothing more: as a machine that has lost its power.
    let mut half_open = Vec::new();
    for _ in 0..6 {
        half_open.push(accept_as(&listener, &hostile).await);
    }
    let unreachable = |event| match event {
        Event::Unreachable(id) => Some(id),
        _ => None,
    };
    assert_eq!(a.wait("notice", unreachable).await, id(7));
}

#[tokio::test]
async fn a_peer_that_says_nonsense_is_left() {
    let (_a, hostile, listener) = with_false_peer(&Settings::default()).await;
    let too_much = [&10_000u64.to_le_bytes()[..], &[0; 8]].concat();
    let cases = [
        frame(ACKNOWLEDGEMENT, &too_much),
        frame(ACKNOWLEDGEMENT, &[0; 3]),
        frame(MESSAGE, &[]),
        vec![ACKNOWLEDGEMENT, 0xff, 0xff, 0xff, 0xff],
        b"garbage garbage".to_vec(),
    ];
    // There are two streams, each of which is opened again.
    for case in cases.iter().chain(&cases) {
        let mut stream = accept_as(&listener, &hostile).await;
        stream.write_all(case).await.unwrap();
        read_to_end(&mut stream).await;
    }
    // The handshake itself.
    for case in [&b"garbage garbage"[..], &[WELCOME, 0xff, 0xff, 0xff, 0xff], &frame(WELCOME, &[9])]
    {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(case).await.unwrap();
        read_to_end(&mut stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_is_left_although_it_acknowledges() {
    let (mut a, hostile, listener) = with_false_peer(&Settings::impatient()).await;
    let acknowledge = tokio::spawn(async move {
        let mut streams = Vec::new();
        loop {
            let mut stream = accept_as(&listener, &hostile).await;
            streams.push(tokio::spawn(async move {
                let alive = frame(ACKNOWLEDGEMENT, &[0; 16]);
                while stream.write_all(&alive).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }));
        }
    });
    // More than the kernel buffers.
    eventually("another stream", || {
        a.append(id(7), 1, 6 << 20);
        a.stream(id(7), Class::Log).unwrap().connects >= 2
    })
    .await;
    let unreachable = |event| matches!(event, Event::Unreachable(_)).then_some(());
    a.wait("notice", unreachable).await;
    acknowledge.abort();
}
