//! The task of a client.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Result;
use http2::{Config, ConnectMethod, Connection, Limits, Refill, StreamMap};
use tls_socket::{ServerSide, TlsSocket};
use tokio::time::{Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::channel::{self, Channel, keepalive};
use super::head::RequestHead;
use super::open_watch::OpenWatch;
use super::renewal_turns::WaitingRenewals;
use super::stream::{Stream, Turn};
use super::upstreams::{SPEAKERS, Upstreams};
use crate::forward::request::Client;
use crate::forward::watch;
use crate::node_path::leases::Serving;
use crate::node_path::watches::Mailbox;
use crate::protect::Held;

/// A connection whose PING is not answered within this time is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Limits of a client's connection. Its window bounds the bodies of all its requests together.
const LIMITS: Limits =
    Limits { connection_window: 1 << 20, refill: Refill::OnRelease, ..channel::LIMITS };
/// A client that does not read while so many framed bytes wait for it is not read either, so that its
/// frames cannot add more.
const MAX_BACKLOG: usize = 256 << 10;
/// Times that each socket is read before other clients of the thread have a turn.
const MAX_ROUNDS: usize = 8;
/// A connection that is silent for this time frees the memory that it keeps for the next frames.
const IDLE: Duration = Duration::from_secs(1);
/// An alarm that is never needed.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// A client and its requests.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) front: Channel<ServerSide, RequestHead>,
    pub(super) upstreams: Upstreams,
    /// Requests by the client's stream.
    pub(super) streams: StreamMap<Stream>,
    /// LISTs that wait for their turn.
    pub(super) turns: Vec<Turn>,
    /// Renewals of Leases whose bodies have not arrived.
    pub(super) arriving: Vec<u32>,
    /// Renewals of Leases that are being written.
    pub(super) servings: Vec<(u32, Serving)>,
    /// Renewals of Leases that wait for their turn at an API server.
    pub(super) waiting: WaitingRenewals,
    /// Whether something to wait for was added since it was last looked at.
    pub(super) is_unpolled: bool,
    /// Watches that are served from a cache, by the client's stream.
    pub(super) watches: StreamMap<OpenWatch>,
    /// Those that have events to pull.
    pub(super) pulling: Vec<u32>,
    /// When something must be done for one of them.
    pub(super) watch_due: Option<Instant>,
    /// Their events, from the first one on.
    pub(super) mailbox: Option<Arc<Mailbox>>,
    /// What waits for the client.
    held: Arc<Held>,
    /// Streams with bytes that were not released when they were last looked at.
    pub(super) unreleased: Vec<u32>,
    /// Cancelled when the client must dial again, and when the process stops.
    pub(super) moved: CancellationToken,
    /// Wakes the task then.
    signal: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether `signal` knows the task.
    is_registered: bool,
    is_moving: bool,
    /// When watches of a connection that moves are looked at again.
    next_look: Instant,
    alarm: Pin<Box<Sleep>>,
    /// When something was last sent or received, if memory is kept since.
    active: Option<Instant>,
    /// The time of this poll.
    pub(super) now: Instant,
}

/// Serves a client until its connection ends. If it must move to another API server, or `stop` is
/// cancelled, the client is told to dial again, and its running requests end as they would.
///
/// # Errors
/// If the connection fails, or the client violates HTTP/2.
pub async fn serve(
    socket: TlsSocket<ServerSide>,
    client: Client,
    max_streams: u32,
    stop: CancellationToken,
) -> Result<()> {
    let mut session = Session::new(socket, client, max_streams, stop);
    poll_fn(|cx| session.poll(cx)).await
}

impl Session {
    fn new(
        socket: TlsSocket<ServerSide>,
        client: Client,
        max_streams: u32,
        stop: CancellationToken,
    ) -> Session {
        let now = Instant::now();
        // Watches end as they do when the connection moves.
        let moved = stop.child_token();
        Session {
            held: Held::new(client.shared.protection.buffers.clone()),
            waiting: WaitingRenewals::new(&client.shared),
            is_unpolled: false,
            client,
            front: Channel::new(socket, Connection::new(&config(max_streams), now)),
            upstreams: Upstreams::default(),
            streams: StreamMap::default(),
            turns: Vec::new(),
            arriving: Vec::new(),
            servings: Vec::new(),
            watches: StreamMap::default(),
            pulling: Vec::new(),
            watch_due: None,
            mailbox: None,
            unreleased: Vec::new(),
            signal: Box::pin(moved.clone().cancelled_owned()),
            is_registered: false,
            moved,
            is_moving: false,
            next_look: now,
            alarm: Box::pin(sleep_until((now + IDLE).into())),
            active: Some(now),
            now,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.now = Instant::now();
        self.poll_signals(cx);
        self.poll_alarm()?;
        for _ in 0..MAX_ROUNDS {
            self.is_unpolled = false;
            let mut progress = self.poll_dials(cx) | self.poll_turns(cx);
            // Renewals must not be sent over a connection that has ended.
            progress |= self.receive_answers(cx);
            progress |= self.poll_renewals(cx) | self.poll_renewal_turns(cx);
            progress |= self.poll_watches(cx);
            match self.receive_requests(cx) {
                Ok(received) => progress |= received,
                Err(end) => {
                    self.close(cx);
                    return Poll::Ready(end);
                }
            }
            progress |= self.send(cx)?;
            if self.front.http.is_done() && self.front.backlog() == 0 {
                self.close(cx);
                return Poll::Ready(Ok(()));
            }
            if !progress {
                self.rest(cx);
                return Poll::Pending;
            }
            self.active = Some(self.now);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Begins to move if the connection must.
    fn poll_signals(&mut self, cx: &mut Context<'_>) {
        if !std::mem::replace(&mut self.is_registered, true) {
            // The waker of a task stays the same.
            let _ = self.signal.as_mut().poll(cx);
        }
        if !self.is_moving && self.moved.is_cancelled() {
            (self.is_moving, self.next_look) = (true, self.now);
            self.front.http.drain("the connection moves to another server", self.now);
        }
        if self.is_moving && self.now >= self.next_look {
            self.end_watches();
            self.end_served_watches(cx.waker());
            self.next_look = self.now + watch::RETRY;
        }
    }

    /// Sends pings that are due, and ends connections whose ping was not answered.
    fn poll_alarm(&mut self) -> Result<()> {
        if !self.alarm.is_elapsed() {
            return Ok(());
        }
        anyhow::ensure!(self.front.http.on_alarm(self.now), "the client does not respond");
        let now = self.now;
        if self.active.is_some_and(|active| now >= active + IDLE) {
            self.active = None;
            self.release_memory();
        }
        let silent: Vec<u64> = self
            .upstreams
            .open
            .iter_mut()
            .filter_map(|it| (!it.channel.http.on_alarm(now)).then_some(it.number))
            .collect();
        for number in silent {
            self.lose(number, anyhow::anyhow!("the API server does not respond"));
        }
        Ok(())
    }

    fn release_memory(&mut self) {
        self.front.http.release_memory();
        for upstream in &mut self.upstreams.open {
            upstream.channel.http.release_memory();
            upstream.streams.shrink_to_fit();
        }
        // A watch is not young after so long a silence.
        self.streams.values_mut().for_each(Stream::forget_request);
        self.streams.shrink_to_fit();
        self.watches.shrink_to_fit();
        self.unreleased.shrink_to_fit();
    }

    /// Reads from the client and handles what it sent. Returns whether it sent anything. The error is
    /// the result of the session.
    fn receive_requests(&mut self, cx: &mut Context<'_>) -> Result<bool, Result<()>> {
        if self.front.backlog() > MAX_BACKLOG {
            return Ok(false);
        }
        let open = match self.front.poll_receive(cx, self.now) {
            Poll::Pending => return Ok(false),
            Poll::Ready(received) => received.map_err(Err)?,
        };
        while let Some(event) = self.front.http.next_event() {
            self.on_request_event(event);
        }
        if open { Ok(true) } else { Err(Ok(())) }
    }

    /// Reads from the API servers, unless too much waits for clients.
    fn receive_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let (mut progress, mut at) = (false, 0);
        if self.upstreams.open.is_empty() || !self.held.may_read(cx.waker()) {
            return progress;
        }
        while let Some(upstream) = self.upstreams.open.get_mut(at) {
            at += 1;
            let number = upstream.number;
            let received = match upstream.channel.poll_receive(cx, self.now) {
                Poll::Pending => continue,
                Poll::Ready(received) => received,
            };
            progress = true;
            self.handle_answer_events(number);
            match received {
                Ok(true) => self.drop_if_done(number),
                Ok(false) => self.lose(number, anyhow::anyhow!("closed by the API server")),
                Err(error) => self.lose(number, error),
            }
        }
        progress
    }

    fn handle_answer_events(&mut self, number: u64) {
        loop {
            let Some(upstream) = self.upstreams.get(number) else { return };
            let Some(event) = upstream.channel.http.next_event() else { return };
            self.on_answer_event(number, event);
        }
    }

    /// Drops a connection that takes no more requests and has none.
    fn drop_if_done(&mut self, number: u64) {
        if self.upstreams.get(number).is_some_and(|it| it.channel.http.is_done()) {
            self.upstreams.remove(number);
        }
    }

    /// Sends to all, and releases what was sent to those from whom it came. Returns whether the client
    /// took anything.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        self.start_queued();
        self.send_requests(cx);
        let sent = self.front.send(cx)?;
        if !self.unreleased.is_empty() {
            self.release();
            // Updates of windows.
            self.send_requests(cx);
            self.front.send(cx)?;
        }
        Ok(sent)
    }

    fn send_requests(&mut self, cx: &mut Context<'_>) {
        let mut failed = Vec::new();
        for upstream in &mut self.upstreams.open {
            if let Err(error) = upstream.channel.send(cx) {
                failed.push((upstream.number, error));
            }
        }
        for (number, error) in failed {
            // What has arrived before may have answers.
            self.handle_answer_events(number);
            self.lose(number, error.into());
        }
    }

    /// Prepares to wait: publishes what is held, and sets the alarm.
    fn rest(&mut self, cx: &mut Context<'_>) {
        let mut held = self.front.http.held_bytes() + self.front.backlog();
        let never = self.now + NEVER;
        let mut next = self.front.http.alarm().unwrap_or(never);
        for upstream in &mut self.upstreams.open {
            held += upstream.channel.http.queued_bytes();
            next = next.min(upstream.channel.http.alarm().unwrap_or(never));
        }
        self.held.set(held);
        if self.is_moving && !(self.streams.is_empty() && self.watches.is_empty()) {
            next = next.min(self.next_look);
        }
        for due in [self.late_renewal(), self.watch_due].into_iter().flatten() {
            next = next.min(due);
        }
        if let Some(active) = self.active {
            next = next.min(active + IDLE);
        }
        let next = next.into();
        // One that is too early is corrected when it fires.
        if next < self.alarm.deadline() || self.alarm.is_elapsed() {
            self.alarm.as_mut().reset(next);
        }
        if self.alarm.as_mut().poll(cx).is_ready() || self.is_unpolled {
            cx.waker().wake_by_ref();
        }
    }

    /// Closes all connections.
    fn close(&mut self, cx: &mut Context<'_>) {
        self.front.close(cx);
        for upstream in &mut self.upstreams.open {
            upstream.channel.close(cx);
        }
    }

    fn poll_dials(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        for speaker in SPEAKERS {
            match self.upstreams.poll_dial(speaker, self.now, cx) {
                None => {}
                Some(Ok(())) => progress = true,
                Some(Err(error)) => {
                    progress = true;
                    self.refuse_queued(speaker, &error);
                }
            }
        }
        progress
    }
}

fn config(max_streams: u32) -> Config {
    Config {
        max_streams,
        keepalive: keepalive(PING_TIMEOUT),
        connect_method: ConnectMethod::DeliverPlain,
        limits: LIMITS,
    }
}
