//! The stream on which this member sends the messages of a class to another member. It is opened
//! again whenever it ends.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::{sleep, sleep_until};

use crate::backoff::Backoff;
use crate::class::Class;
use crate::connection::{DialError, Opened, Reader, Writer};
use crate::frame::{HEADER_BYTES, Kind, invalid, numbers, put_numbers, write_all};
use crate::hello::Answer;
use crate::peer::{Lane, Peer, count};
use crate::shared::Shared;
use crate::url::PeerUrl;
use crate::window::SendWindow;

/// Number of bytes that are written at once, unless a message is larger.
const WRITE_BYTES: usize = 256 << 10;
/// A larger buffer is not kept.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// Keeps the stream open until the peer is stopped.
pub(crate) async fn run(shared: Arc<Shared>, peer: Arc<Peer>, class: Class) {
    tokio::select! {
        never = keep_open(&shared, &peer, class) => match never {},
        () = peer.stop.cancelled() => {}
    }
    let lane = peer.lane(class);
    lane.queue.close();
    lane.counters.is_connected.store(false, Ordering::Relaxed);
}

async fn keep_open(shared: &Shared, peer: &Peer, class: Class) -> Infallible {
    let lane = peer.lane(class);
    let timeouts = &shared.config.timeouts;
    let mut backoff = Backoff::new(timeouts.first_retry, timeouts.max_retry);
    let mut urls = Urls::default();
    let mut was_connected = true;
    loop {
        lane.queue.open();
        let started = Instant::now();
        let opened = open(shared, peer, class, &mut urls).await;
        let is_connected = opened.is_ok();
        let error = match opened {
            Ok(opened) => {
                tracing::info!(peer = %peer.id, class = class.name(), "connected to peer");
                serve(shared, peer, class, opened).await
            }
            Err(error) => {
                note_refusal(shared, peer, &error);
                error.into_io()
            }
        };
        count(&lane.counters.dropped_messages, lane.queue.close());
        note_loss(shared, peer, class);
        // A peer that stays away is reported once.
        if is_connected || was_connected {
            tracing::warn!(peer = %peer.id, class = class.name(), %error, "not connected to peer");
        }
        was_connected = is_connected;
        if is_connected && started.elapsed() > timeouts.max_retry {
            backoff.reset();
        }
        sleep(backoff.next(rand::random())).await;
    }
}

/// The URLs of a peer, which are tried in turn.
#[derive(Default)]
pub(crate) struct Urls {
    attempts: usize,
}

impl Urls {
    fn next(&mut self, urls: &[String]) -> io::Result<PeerUrl> {
        let url = urls.get(self.attempts % urls.len().max(1));
        self.attempts += 1;
        let url = url.ok_or_else(|| invalid("the peer has no URL"))?;
        url.parse().map_err(|error| invalid(format!("peer URL {url} {error}")))
    }
}

/// Opens a stream of the class to the peer.
pub(crate) async fn open(
    shared: &Shared,
    peer: &Peer,
    class: Class,
    urls: &mut Urls,
) -> Result<Opened, DialError> {
    let url = urls.next(&peer.info().peer_urls)?;
    shared.dialer.open(&url, &shared.hello(class, peer)).await
}

/// Tells the member what a refusal says about the peer or about itself.
fn note_refusal(shared: &Shared, peer: &Peer, error: &DialError) {
    match error {
        DialError::Refused(Answer::OtherMember, identity)
            if identity.cluster == shared.cluster() && identity.member.id != peer.id =>
        {
            shared.inbox.found(peer.id, identity.clone());
        }
        DialError::Refused(Answer::Removed, identity) if identity.member.id == peer.id => {
            shared.inbox.removed_by(peer.id);
        }
        _ => {}
    }
}

/// Sends messages until the stream fails. Returns why.
async fn serve(shared: &Shared, peer: &Peer, class: Class, opened: Opened) -> io::Error {
    let lane = peer.lane(class);
    let Opened { reader, writer, window } = opened;
    let window = Mutex::new(SendWindow::new(window));
    let pings = Mutex::new(Pings::default());
    lane.counters.is_connected.store(true, Ordering::Relaxed);
    count(&lane.counters.connects, 1);
    let both = async {
        tokio::try_join!(
            send(shared, peer, class, writer, &window, &pings),
            read_acknowledgements(peer, lane, reader, &window, &pings),
        )
    };
    let Err(error) = both.await;
    lane.counters.is_connected.store(false, Ordering::Relaxed);
    error
}

/// The last ping: its number, and when it was sent.
#[derive(Default)]
struct Pings {
    last: u64,
    sent: Option<Instant>,
}

async fn send(
    shared: &Shared,
    peer: &Peer,
    class: Class,
    mut writer: Writer,
    window: &Mutex<SendWindow>,
    pings: &Mutex<Pings>,
) -> io::Result<Infallible> {
    let lane = peer.lane(class);
    let timeouts = &shared.config.timeouts;
    let mut out = Vec::new();
    let mut next = Vec::new();
    let mut next_ping = Instant::now();
    loop {
        fill(shared, peer, class, window, &mut next, &mut out);
        if Instant::now() >= next_ping {
            put_ping(&mut pings.lock(), &mut out);
            next_ping = Instant::now() + timeouts.ping_interval;
        }
        if out.is_empty() {
            tokio::select! {
                () = lane.queue.changed.notified() => {}
                () = sleep_until(next_ping.into()) => {}
            }
            continue;
        }
        write_all(&mut writer, &out, timeouts.silence).await?;
        count(&lane.counters.sent_bytes, out.len());
        out.clear();
        out.shrink_to(MAX_KEPT_BYTES);
    }
}

fn put_ping(pings: &mut Pings, out: &mut Vec<u8>) {
    pings.last += 1;
    pings.sent = Some(Instant::now());
    put_numbers(Kind::Ping, &[pings.last], out);
}

/// Moves messages from the queue to `out`. `next` is a message that has to wait for the window.
fn fill(
    shared: &Shared,
    peer: &Peer,
    class: Class,
    window: &Mutex<SendWindow>,
    next: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let lane = peer.lane(class);
    while out.len() < WRITE_BYTES {
        if next.is_empty() {
            let Some(message) = lane.queue.pop() else { return };
            message.put(next);
            if next.len() - HEADER_BYTES > shared.config.max_frame_bytes(class) {
                drop_too_large(shared, peer, class, next);
                continue;
            }
        }
        if !window.lock().take(next.len()) {
            return;
        }
        count(&lane.counters.sent_messages, 1);
        if out.is_empty() {
            std::mem::swap(out, next);
        } else {
            out.extend_from_slice(next);
            next.clear();
        }
    }
}

/// The receiver would close the stream.
fn drop_too_large(shared: &Shared, peer: &Peer, class: Class, message: &mut Vec<u8>) {
    let (bytes, limit) = (message.len(), shared.config.max_frame_bytes(class));
    tracing::error!(peer = %peer.id, bytes, limit, "a message is too large for the peer, dropped it");
    count(&peer.lane(class).counters.dropped_messages, 1);
    note_loss(shared, peer, class);
    message.clear();
}

/// Tells the member that messages of the class are probably lost.
fn note_loss(shared: &Shared, peer: &Peer, class: Class) {
    match class {
        Class::Log => shared.inbox.unreachable(peer.id),
        Class::Forward => shared.inbox.forward_lost(peer.id),
        Class::Control | Class::Snapshot => {}
    }
}

async fn read_acknowledgements(
    peer: &Peer,
    lane: &Lane,
    mut reader: Reader,
    window: &Mutex<SendWindow>,
    pings: &Mutex<Pings>,
) -> io::Result<Infallible> {
    loop {
        let (taken, ping) = next_acknowledgement(&mut reader).await?;
        window.lock().acknowledge(taken).map_err(invalid)?;
        lane.queue.changed.notify_one();
        if let Some(round_trip) = pings.lock().on_answer(ping) {
            *peer.round_trip.lock() = Some(round_trip);
        }
    }
}

/// Reads an acknowledgement: the number of bytes that the receiver has taken, and the last ping.
async fn next_acknowledgement(reader: &mut Reader) -> io::Result<(u64, u64)> {
    match reader.next(16).await? {
        Some(frame) if frame.kind == Kind::Acknowledgement => {
            let [taken, ping] = numbers(frame.body)?;
            Ok((taken, ping))
        }
        Some(_) => Err(invalid("not an acknowledgement")),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has closed the stream")),
    }
}

impl Pings {
    /// Returns how long the answer to the last ping took; `None` if it is known already.
    fn on_answer(&mut self, ping: u64) -> Option<Duration> {
        let sent = self.sent.filter(|_| ping == self.last)?;
        self.sent = None;
        Some(sent.elapsed())
    }
}

impl DialError {
    fn into_io(self) -> io::Error {
        match self {
            DialError::Connection(error) => error,
            DialError::Refused(answer, _) => io::Error::other(answer),
        }
    }
}
