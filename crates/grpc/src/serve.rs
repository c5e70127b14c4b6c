//! A connection and its calls, driven by a socket.
//!
//! One task does everything for a connection: it reads, starts handlers, polls
//! them, and writes. A handler that completes within two polls costs no wake-up: the
//! first poll starts it, and the second one follows when the handlers of all other
//! requests of the same read have been started.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::calls::Calls;
use crate::connection::Connection;
use crate::frame::Reason;
use crate::liveness::Keepalive;
use crate::message::Budget;
use crate::routes::{Routes, Service};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// A client that does not take what is framed already is not listened to.
const UNWRITTEN_BYTES: usize = 256 << 10;
/// Pieces handed to the socket at a time.
const PIECES: usize = 64;
/// Rounds of reading, answering and writing before other connections get a turn,
/// and bytes written by then.
const ROUNDS: usize = 16;
const WRITTEN_BYTES: usize = 512 << 10;
/// How long the last words to a client may take.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);

/// How connections are served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Streams that a client may have open at a time.
    pub max_streams: u32,
    /// The largest message that is taken, in bytes.
    pub message_bytes: usize,
    /// Bytes of unfinished messages, over all connections.
    pub budget: Arc<Budget>,
    /// Signs of life.
    pub keepalive: Keepalive,
}

/// A socket.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Serves a client that speaks HTTP/2, of which `head` has been read already,
/// until it is gone. After `stop` no new calls are taken, streams are told to
/// end, and what is left is finished.
pub async fn serve<S: Service>(
    io: impl Io,
    head: &[u8],
    routes: Arc<Routes<S>>,
    options: &Options,
    stop: CancellationToken,
) -> io::Result<()> {
    let now = Instant::now();
    let mut connection = Connection::new(options, now);
    let broken = connection.receive(head, &routes.methods, now).is_err();
    let alarm = Box::pin(tokio::time::sleep_until(far(connection.alarm(), now).into()));
    let calls = Calls::new(routes.clone());
    let stopped = Some(stop.cancelled_owned());
    Driver { io, connection, calls, routes, alarm, stopped: stopped.map(Box::pin), closing: broken }
        .await
}

fn far(alarm: Option<Instant>, now: Instant) -> Instant {
    alarm.unwrap_or(now + Duration::from_secs(365 * 24 * 60 * 60))
}

struct Driver<I, S> {
    io: I,
    connection: Connection,
    calls: Calls<S>,
    routes: Arc<Routes<S>>,
    alarm: Pin<Box<tokio::time::Sleep>>,
    /// Until it is cancelled.
    stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Nothing is read any more; what is in the output is the last word.
    closing: bool,
}

impl<I: Io, S: Service> Future for Driver<I, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let driver = &mut *self;
        let mut written = 0;
        for _ in 0..ROUNDS {
            driver.look_at_stop(cx);
            let read = driver.read(cx)?;
            if read == Read::End {
                return Poll::Ready(Ok(()));
            }
            let answered = driver.answer(cx);
            let wrote = driver.write(cx)?;
            written += wrote;
            if driver.connection.is_done() && driver.connection.output().is_empty() {
                return driver.part(cx);
            }
            if read == Read::Nothing && !answered && wrote == 0 {
                return driver.keep_time(cx);
            }
            if written >= WRITTEN_BYTES {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// What came of a look at the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Something,
    Nothing,
    End,
}

impl<I: Io, S: Service> Driver<I, S> {
    fn look_at_stop(&mut self, cx: &mut Context<'_>) {
        let Some(stopped) = &mut self.stopped else { return };
        if stopped.as_mut().poll(cx).is_ready() {
            self.stopped = None;
            self.connection.go_away(Reason::NoError, "the server is stopping");
            self.calls.stop(&mut self.connection);
        }
    }

    /// Reads what has come and starts the calls in it.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<Read> {
        if self.closing || self.connection.output().len() > UNWRITTEN_BYTES {
            return Ok(Read::Nothing);
        }
        let mut buffer = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(Read::Nothing),
            Poll::Ready(read) => read?,
        }
        if buffer.filled().is_empty() {
            return Ok(Read::End);
        }
        self.routes.service.received(buffer.filled().len());
        let received =
            self.connection.receive(buffer.filled(), &self.routes.methods, Instant::now());
        if let Err(broken) = received {
            tracing::debug!(%broken, "connection lost");
            self.close();
        }
        Ok(Read::Something)
    }

    /// Ends the connection in good order, if that does not take long.
    fn part(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.close();
        }
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Pending => self.alarm.as_mut().poll(cx).map(|()| Ok(())),
            Poll::Ready(_) => Poll::Ready(Ok(())),
        }
    }

    /// What is in the output is still sent, but not waited for long.
    fn close(&mut self) {
        self.closing = true;
        self.calls.abandon();
        let deadline = tokio::time::Instant::now() + LAST_WORDS_TIMEOUT;
        self.alarm.as_mut().reset(deadline);
    }

    /// Starts and polls handlers, and takes their answers; whether anything came
    /// of it.
    fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing {
            return false;
        }
        let mut any = false;
        loop {
            let started = self.calls.start(&mut self.connection);
            let polled = self.calls.poll(&mut self.connection, cx);
            if !started && !polled {
                return any;
            }
            any = true;
        }
    }

    /// Writes what there is, up to a bound; how many bytes the socket took.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        let mut wrote = 0;
        while wrote < WRITTEN_BYTES {
            if !self.closing {
                self.connection.fill();
            }
            let output = self.connection.output();
            if output.is_empty() {
                return Ok(wrote);
            }
            let mut slices = [IoSlice::new(&[]); PIECES];
            let count = output.slices(&mut slices);
            let written = match count {
                1 => Pin::new(&mut self.io).poll_write(cx, &slices[0]),
                _ => Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]),
            };
            match written {
                Poll::Pending => return Ok(wrote),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => {
                    let written = written?;
                    output.advance(written);
                    self.routes.service.sent(written);
                    wrote += written;
                }
            }
        }
        Ok(wrote)
    }

    /// Waits, if not for the client then for the clock.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx)?;
        if self.closing && self.connection.output().is_empty() && flushed.is_ready() {
            return Poll::Ready(Ok(()));
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.closing || !self.connection.on_time(now) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if !self.connection.output().is_empty() {
                cx.waker().wake_by_ref();
            }
            self.alarm.as_mut().reset(far(self.connection.alarm(), now).into());
        }
        Poll::Pending
    }
}
