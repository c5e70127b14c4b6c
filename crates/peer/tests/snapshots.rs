//! Snapshots: their content arrives completely or not at all, and the sender learns which.

mod node;

use std::io::{self, Read};
use std::time::{Duration, Instant};

use consensus::entry::Snapshot;
use consensus::id::{MemberId, Position};
use consensus::membership::Membership;
use consensus::message::{Body, Message};
use node::{Node, Settings, eventually, pair, read_all};
use peer::Class;

/// A message with a snapshot.
fn snapshot(from: &Node, to: MemberId) -> Message {
    let membership = Membership::of_voters([from.info.clone()]);
    let position = Position { term: 1, index: 5 };
    from.message(to, Body::Snapshot(Snapshot { position, last_data: 5, membership }))
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn send(from: &Node, to: &Node, content: impl Read + Send + 'static) {
    from.transport.send_snapshot(snapshot(from, to.info.id), Box::new(content));
}

#[tokio::test]
async fn a_snapshot_arrives_completely() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    // Empty, exactly two parts, more than the window.
    for bytes in [0, 1, 512 << 10, (10 << 20) + 17] {
        let content = content(bytes);
        send(&a, &b, io::Cursor::new(content.clone()));
        let incoming = b.wait_for_snapshot().await;
        assert_eq!(incoming.message(), &snapshot(&a, b.info.id));
        let (incoming, read) = read_all(incoming).await;
        assert!(read.unwrap() == content, "{bytes} bytes");
        incoming.finish(true);
        assert!(a.wait_for_result().await);
    }
    let stream = b.stream(a.info.id, Class::Snapshot).unwrap();
    assert_eq!(stream.received_messages, 4);
}

#[tokio::test]
async fn the_receiver_decides_whether_it_is_installed() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    send(&a, &b, io::Cursor::new(content(100)));
    let (incoming, read) = read_all(b.wait_for_snapshot().await).await;
    assert!(read.is_ok());
    incoming.finish(false);
    assert!(!a.wait_for_result().await);
    // One that is dropped is not installed, also if most of it has not arrived.
    send(&a, &b, io::Cursor::new(content(20 << 20)));
    drop(b.wait_for_snapshot().await);
    assert!(!a.wait_for_result().await);
}

/// Content that ends with an error.
struct Failing(usize);

impl Read for Failing {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0 {
            0 => Err(io::Error::other("the disk has failed")),
            rest => {
                let count = rest.min(buf.len());
                self.0 -= count;
                Ok(count)
            }
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_breaks_off_is_an_error_for_both() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    for bytes in [0, 1 << 20] {
        send(&a, &b, Failing(bytes));
        let (_, read) = read_all(b.wait_for_snapshot().await).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(!a.wait_for_result().await);
    }
    // Also if one of them stops.
    send(&a, &b, io::Cursor::new(content(20 << 20)));
    let incoming = b.wait_for_snapshot().await;
    a.transport.stop().await;
    assert_eq!(read_all(incoming).await.1.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(!a.wait_for_result().await);
}

#[tokio::test]
async fn a_receiver_that_stops_is_noticed() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    send(&a, &b, io::Cursor::new(content(20 << 20)));
    let _incoming = b.wait_for_snapshot().await;
    b.transport.stop().await;
    assert!(!a.wait_for_result().await);
}

#[tokio::test]
async fn one_snapshot_at_a_time_is_sent_to_a_member() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    send(&a, &b, io::Cursor::new(content(10)));
    let incoming = b.wait_for_snapshot().await;
    send(&a, &b, io::Cursor::new(content(10)));
    assert!(!a.wait_for_result().await, "the second one");
    incoming.finish(true);
    assert!(a.wait_for_result().await, "the first one");
    let unknown = node::id(99);
    a.transport.send_snapshot(snapshot(&a, unknown), Box::new(io::empty()));
    assert!(!a.wait_for_result().await, "nobody is there");
}

#[tokio::test]
async fn a_removed_member_gets_no_more() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    send(&a, &b, io::Cursor::new(content(20 << 20)));
    let incoming = b.wait_for_snapshot().await;
    a.transport.set_members([&a.info]);
    assert!(!a.wait_for_result().await);
    assert!(read_all(incoming).await.1.is_err());
}

#[tokio::test]
async fn a_receiver_that_does_not_read_bounds_memory() {
    let (mut a, mut b) = pair(&Settings::default()).await;
    send(&a, &b, io::repeat(7).take(1 << 30));
    let incoming = b.wait_for_snapshot().await;
    let received = || b.stream(a.info.id, Class::Snapshot).unwrap().received_bytes;
    eventually("a full window", || received() > 3 << 20).await;
    // Messages of other classes do not wait.
    a.append(b.info.id, 1, 10);
    assert_eq!(b.wait_for(Class::Log).await.0, 1);
    a.append(b.info.id, 2, 1 << 20);
    assert_eq!(b.wait_for(Class::Log).await.0, 2);
    let received = b.stream(a.info.id, Class::Snapshot).unwrap().received_bytes;
    assert!(received <= 4 << 20, "{received} bytes");
    drop(incoming);
    assert!(!a.wait_for_result().await);
}

#[tokio::test]
async fn the_rate_is_limited() {
    let settings = Settings { snapshot_bytes_per_second: Some(4 << 20), ..Settings::default() };
    let (mut a, mut b) = pair(&settings).await;
    let start = Instant::now();
    send(&a, &b, io::Cursor::new(content(2 << 20)));
    let (incoming, read) = read_all(b.wait_for_snapshot().await).await;
    assert_eq!(read.unwrap().len(), 2 << 20);
    incoming.finish(true);
    assert!(a.wait_for_result().await);
    // The last of the eight parts is sent when the first seven have had their time.
    assert!(start.elapsed() >= Duration::from_millis(437), "{:?}", start.elapsed());
}
