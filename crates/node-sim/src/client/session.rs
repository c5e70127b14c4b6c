//! One connection of a link, from the handshake to its end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http2_socket::Channel;
use tls_socket::ClientSide;
use tokio::time::{Sleep, sleep_until};

use super::answer::{AnswerHead, Failure, Receiver};
use super::exchange::{Exchange, Queued};
use super::request::CommonFields;

/// Times that the socket is read before other links have a turn.
const MAX_ROUNDS: usize = 8;
/// The time until an alarm whose time has passed rings.
const SOON: Duration = Duration::from_millis(1);

/// Where a session gets its requests from.
pub trait Source<T> {
    /// Removes and returns the next request.
    fn next(&self, now: Instant) -> Option<Queued<T>>;

    /// Removes and returns the watches that shall end.
    fn take_cancelled(&self) -> Vec<T>;

    /// Removes and returns a request that was not sent.
    fn remove(&self, tag: T) -> Option<Queued<T>>;

    /// Whether the session must close its connection.
    fn is_closed(&self) -> bool;
}

/// How a session ended.
pub enum End {
    /// The connection takes no more requests. Its open ones go on in [`Session::poll_rest`].
    Leaving,
    /// The connection is closed, and no request is open.
    Closed(Result<()>),
}

/// A connection and its requests.
pub struct Session<T> {
    channel: Channel<ClientSide, AnswerHead>,
    exchange: Exchange<T>,
    alarm: Pin<Box<Sleep>>,
    /// Whether something was sent or received since memory was freed.
    keeps_memory: bool,
}

impl<T: Copy + PartialEq> Session<T> {
    /// Begins with a connection whose handshake is done.
    pub fn new(channel: Channel<ClientSide, AnswerHead>) -> Session<T> {
        let alarm = Box::pin(sleep_until((Instant::now() + SOON).into()));
        Session { channel, exchange: Exchange::default(), alarm, keeps_memory: true }
    }

    /// Sends requests and handles answers until the connection ends or takes no more requests.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &dyn Source<T>,
        common: &CommonFields,
        receiver: &dyn Receiver<T>,
    ) -> Poll<End> {
        let result = self.drive(cx, source, Some(common), receiver);
        if result.is_pending() && self.channel.http.is_ending() {
            return Poll::Ready(End::Leaving);
        }
        result.map(|result| self.end(result, receiver))
    }

    /// Handles answers after [`End::Leaving`], until the last request has one.
    pub fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        source: &dyn Source<T>,
        receiver: &dyn Receiver<T>,
    ) -> Poll<End> {
        self.drive(cx, source, None, receiver).map(|result| self.end(result, receiver))
    }

    fn end(&mut self, result: Result<()>, receiver: &dyn Receiver<T>) -> End {
        self.exchange.fail_all(receiver);
        End::Closed(result)
    }

    /// Makes all progress that is possible. Without `common`, no new requests are sent.
    fn drive(
        &mut self,
        cx: &mut Context<'_>,
        source: &dyn Source<T>,
        common: Option<&CommonFields>,
        receiver: &dyn Receiver<T>,
    ) -> Poll<Result<()>> {
        let now = Instant::now();
        if let Err(error) = self.poll_alarm(now, receiver) {
            return Poll::Ready(Err(error));
        }
        for _ in 0..MAX_ROUNDS {
            if source.is_closed() {
                self.channel.close(cx);
                return Poll::Ready(Ok(()));
            }
            for tag in source.take_cancelled() {
                match source.remove(tag) {
                    Some(queued) => queued.fail(Failure::Reset, receiver),
                    None => self.exchange.cancel(&mut self.channel, tag, receiver),
                }
            }
            if let Some(common) = common {
                self.open(source, common, now, receiver);
            }
            let received = match self.receive(cx, now, receiver) {
                Ok(received) => received,
                Err(end) => return Poll::Ready(end),
            };
            let sent = match self.channel.send(cx) {
                Ok(sent) => sent,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            if self.channel.http.is_ending() && self.exchange.is_empty() {
                self.channel.close(cx);
                return Poll::Ready(Ok(()));
            }
            if !received && !sent {
                self.release_memory();
                self.arm(cx, now);
                return Poll::Pending;
            }
            self.keeps_memory = true;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn open(
        &mut self,
        source: &dyn Source<T>,
        common: &CommonFields,
        now: Instant,
        receiver: &dyn Receiver<T>,
    ) {
        // Before the server has said how many streams it takes, it would refuse what is too much.
        while self.channel.http.is_established() && self.channel.http.can_open() {
            let Some(queued) = source.next(now) else { return };
            match queued.is_late(now) {
                true => queued.fail(Failure::Timeout, receiver),
                false => self.exchange.open(&mut self.channel, queued, common, now),
            }
        }
    }

    /// Reads once and handles what arrived. Returns whether anything did. The error is the result of
    /// the session.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        receiver: &dyn Receiver<T>,
    ) -> Result<bool, Result<()>> {
        let received = self.channel.poll_receive(cx, now);
        while let Some(event) = self.channel.http.next_event() {
            self.exchange.handle(&mut self.channel, event, receiver);
        }
        match received {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(true)) => Ok(true),
            Poll::Ready(Ok(false)) => Err(Ok(())),
            Poll::Ready(Err(error)) => Err(Err(error)),
        }
    }

    /// Does what is due: pings, and requests that are late.
    fn poll_alarm(&mut self, now: Instant, receiver: &dyn Receiver<T>) -> Result<()> {
        if self.alarm.is_elapsed() {
            ensure!(self.channel.http.on_alarm(now), "the server does not respond");
            self.exchange.expire(&mut self.channel, now, receiver);
        }
        Ok(())
    }

    /// Frees the memory that is kept for the next frames, if no answer is expected soon. Thousands of connections
    /// have nothing to do for seconds. A timer that frees it later would wake the task once more for each request.
    fn release_memory(&mut self) {
        if self.keeps_memory && !self.exchange.expects_answer() {
            self.keeps_memory = false;
            self.channel.http.release_memory();
            self.exchange.release_memory();
        }
    }

    /// Makes sure that the task is woken when something is due. It costs little to move the alarm to a later time:
    /// tokio then only notes the time.
    fn arm(&mut self, cx: &mut Context<'_>, now: Instant) {
        let times = [self.channel.http.alarm(), self.exchange.deadline()];
        let Some(due) = times.into_iter().flatten().min() else { return };
        // A time that has passed would ring at once, and again and again.
        let due = due.max(now + SOON).into();
        if self.alarm.is_elapsed() || due != self.alarm.deadline() {
            self.alarm.as_mut().reset(due);
        }
        if self.alarm.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}
