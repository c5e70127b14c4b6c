//! A member for tests: a transport, and what it has received.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consensus::entry::{Content, Data, Entry};
use consensus::id::{ClusterId, MemberId, Position};
use consensus::membership::MemberInfo;
use consensus::message::{Body, Message};
use peer::{
    Class, Config, Event, IncomingSnapshot, Listeners, PeerTls, PeerUrl, StreamStatus, Timeouts,
    Transport,
};
use tokio::sync::Notify;

/// The cluster of all members.
pub const CLUSTER: ClusterId = ClusterId(0x1234);
/// A test that has waited for so long has failed.
const DEADLINE: Duration = Duration::from_secs(120);

/// A member.
pub struct Node {
    pub transport: Transport,
    pub info: MemberInfo,
    wake: Arc<Notify>,
    /// Events that no test has asked for yet.
    events: VecDeque<Event>,
}

/// How a member is started.
#[derive(Clone)]
pub struct Settings {
    pub cluster: ClusterId,
    pub tls: Option<Arc<PeerTls>>,
    pub timeouts: Timeouts,
    /// Where it listens.
    pub url: String,
    pub snapshot_bytes_per_second: Option<u64>,
}

impl Default for Settings {
    /// No test fails only because the machine is slow: streams do not time out.
    fn default() -> Settings {
        let timeouts = Timeouts {
            connect: DEADLINE,
            ping_interval: Duration::from_millis(20),
            silence: DEADLINE,
            first_retry: Duration::from_millis(10),
            max_retry: Duration::from_millis(50),
        };
        let url = "http://127.0.0.1:0".to_owned();
        Settings { cluster: CLUSTER, tls: None, timeouts, url, snapshot_bytes_per_second: None }
    }
}

impl Settings {
    /// Settings with which a silent peer is noticed soon. On a slow machine, others may be taken
    /// for silent too.
    pub fn impatient() -> Settings {
        let mut settings = Settings::default();
        settings.timeouts.connect = Duration::from_millis(500);
        settings.timeouts.silence = Duration::from_millis(500);
        settings
    }
}

pub fn id(number: u64) -> MemberId {
    MemberId::new(number).unwrap()
}

impl Node {
    /// Starts a member, at a free port or at that of `settings`.
    pub async fn start(number: u64, name: &str, settings: &Settings) -> Node {
        let url: PeerUrl = settings.url.parse().unwrap();
        let listeners = Listeners::bind(&[url]).await.unwrap();
        let port = listeners.addresses().unwrap()[0].port();
        let (host, _) = settings.url.rsplit_once(':').unwrap();
        let peer_urls = vec![format!("{host}:{port}")];
        let info =
            MemberInfo { id: id(number), name: name.to_owned(), peer_urls, client_urls: vec![] };
        let wake = Arc::new(Notify::new());
        let config = Config {
            cluster: settings.cluster,
            member: info.clone(),
            max_message_bytes: 64 << 20,
            snapshot_bytes_per_second: settings
                .snapshot_bytes_per_second
                .map(|rate| rate.try_into().unwrap()),
            timeouts: settings.timeouts.clone(),
        };
        let notify = wake.clone();
        let wake_up = move || notify.notify_one();
        let transport = Transport::start(config, listeners, settings.tls.clone(), wake_up).unwrap();
        Node { transport, info, wake, events: VecDeque::new() }
    }

    pub fn url(&self) -> PeerUrl {
        self.info.peer_urls[0].parse().unwrap()
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> String {
        self.info.peer_urls[0].split_once("://").unwrap().1.to_owned()
    }

    /// Returns a message to another member.
    pub fn message(&self, to: MemberId, body: Body) -> Message {
        Message { cluster: CLUSTER, from: self.info.id, to, term: 1, body }
    }

    fn send(&self, message: Message) {
        self.transport.send(message);
        self.transport.flush();
    }

    /// Sends a heartbeat with this number.
    pub fn heartbeat(&self, to: MemberId, number: u64) {
        self.send(self.message(to, Body::Heartbeat { commit: number, read: Bytes::new() }));
    }

    /// Sends an entry with this number.
    pub fn append(&self, to: MemberId, number: u64, bytes: usize) {
        let payload = Bytes::from(vec![7; bytes]);
        let content = Content::Data(Data { term: 1, previous: 0, payload });
        let entries = vec![Entry { position: Position { term: 1, index: number }, content }];
        let previous = Position { term: 1, index: number - 1 };
        self.send(self.message(to, Body::Append { previous, commit: number, entries }));
    }

    /// Waits for an event for which `choose` returns something. Drops the others.
    pub async fn wait<T>(&mut self, what: &str, mut choose: impl FnMut(Event) -> Option<T>) -> T {
        let found = tokio::time::timeout(DEADLINE, async {
            loop {
                while let Some(event) = self.events.pop_front() {
                    if let Some(found) = choose(event) {
                        return found;
                    }
                }
                let events = self.transport.events();
                if events.is_empty() {
                    self.wake.notified().await;
                }
                self.events.extend(events);
            }
        });
        found.await.unwrap_or_else(|_| panic!("no {what}: {:#?}", self.transport.status()))
    }

    /// Waits for a message, and returns its number and its sender.
    pub async fn wait_for(&mut self, class: Class) -> (u64, MemberId) {
        self.wait("message", |event| match event {
            Event::Message(message) if Class::of(&message) == class => {
                Some((number(&message), message.from))
            }
            _ => None,
        })
        .await
    }

    /// Sends heartbeats to `other` until one arrives: the first ones may be lost.
    pub async fn reach(&mut self, other: &mut Node) {
        let reached = tokio::time::timeout(DEADLINE, async {
            loop {
                self.heartbeat(other.info.id, 1);
                let events = other.transport.events();
                let is_from = |e: &Event| matches!(e, Event::Message(m) if m.from == self.info.id);
                if events.iter().any(is_from) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let status = || (self.transport.status(), other.transport.status());
        reached.await.unwrap_or_else(|_| panic!("not reached: {:#?}", status()));
    }

    pub async fn wait_for_snapshot(&mut self) -> IncomingSnapshot {
        let choose = |event| match event {
            Event::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        };
        self.wait("snapshot", choose).await
    }

    /// Waits until a sent snapshot is installed or has failed.
    pub async fn wait_for_result(&mut self) -> bool {
        let choose = |event| match event {
            Event::SnapshotSent { delivered, .. } => Some(delivered),
            _ => None,
        };
        self.wait("result", choose).await
    }

    /// Returns the state of the streams of a class; `None` if the peer is not known.
    pub fn stream(&self, peer: MemberId, class: Class) -> Option<StreamStatus> {
        let status = self.transport.status();
        let peer = status.peers.into_iter().find(|status| status.info.id == peer)?;
        peer.streams.into_iter().find(|(of, _)| *of == class).map(|(_, stream)| stream)
    }
}

/// Returns the number of a message that [`Node::heartbeat`] or [`Node::append`] has sent.
pub fn number(message: &Message) -> u64 {
    match &message.body {
        Body::Heartbeat { commit, .. } | Body::Append { commit, .. } => *commit,
        other => panic!("unexpected {other:?}"),
    }
}

/// Starts two members that know each other.
pub async fn pair(settings: &Settings) -> (Node, Node) {
    let a = Node::start(1, "a", settings).await;
    let b = Node::start(2, "b", settings).await;
    a.transport.set_members([&a.info, &b.info]);
    b.transport.set_members([&a.info, &b.info]);
    (a, b)
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let held = tokio::time::timeout(DEADLINE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    held.await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Reads a snapshot to its end on a thread that may block.
pub async fn read_all(
    mut snapshot: IncomingSnapshot,
) -> (IncomingSnapshot, std::io::Result<Vec<u8>>) {
    let read = tokio::task::spawn_blocking(move || {
        let mut content = Vec::new();
        let read = snapshot.read_to_end(&mut content);
        (snapshot, read.map(|_| content))
    });
    tokio::time::timeout(DEADLINE, read).await.expect("the snapshot does not end").unwrap()
}
