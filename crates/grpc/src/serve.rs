//! Drives a connection and its calls with a socket.
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
use crate::config::ServerConfig;
use crate::connection::GrpcConnection;
use crate::routes::{Routes, Service};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Reading from a client pauses while this many framed bytes wait to be written to it.
const UNWRITTEN_BYTES: usize = 256 << 10;
/// Pieces passed to the socket in one write.
const WRITE_PIECES: usize = 64;
/// Rounds of reading, responding and writing before other connections have a turn.
const ROUNDS: usize = 16;
/// Bytes written before other connections have a turn.
const WRITTEN_BYTES: usize = 512 << 10;
/// How long the last write and the shutdown of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection of HTTP/2 until the client closes it. `head` contains the bytes
/// that have already been read from it. After `stop` is cancelled, new calls are refused,
/// streaming calls end, and unary calls finish.
pub async fn serve<S: Service>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    head: &[u8],
    routes: Arc<Routes<S>>,
    config: &ServerConfig,
    stop: CancellationToken,
) -> io::Result<()> {
    let now = Instant::now();
    let mut connection = GrpcConnection::new(config, now);
    let closing = connection.receive(head, &routes.methods, now).is_err();
    let alarm = Box::pin(tokio::time::sleep_until(far(connection.alarm(), now).into()));
    let calls = Calls::new(routes.clone());
    let stopped = Some(stop.cancelled_owned());
    Driver { io, connection, calls, routes, alarm, stopped: stopped.map(Box::pin), closing }.await
}

fn far(alarm: Option<Instant>, now: Instant) -> Instant {
    alarm.unwrap_or(now + Duration::from_secs(365 * 24 * 60 * 60))
}

struct Driver<I, S> {
    io: I,
    connection: GrpcConnection,
    calls: Calls<S>,
    routes: Arc<Routes<S>>,
    alarm: Pin<Box<tokio::time::Sleep>>,
    /// `None` after the stop has been handled.
    stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Whether nothing is read any more and the connection closes after the output.
    closing: bool,
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: Service> Future for Driver<I, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let driver = &mut *self;
        let mut written = 0;
        for _ in 0..ROUNDS {
            driver.check_stop(cx);
            let read = driver.read(cx)?;
            if read == ReadResult::Closed {
                return Poll::Ready(Ok(()));
            }
            let responded = driver.respond(cx);
            let wrote = driver.write(cx)?;
            written += wrote;
            if driver.connection.is_done() && driver.connection.output().is_empty() {
                return driver.poll_close(cx);
            }
            if read == ReadResult::Nothing && !responded && wrote == 0 {
                return driver.wait(cx);
            }
            if written >= WRITTEN_BYTES {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Result of reading from the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadResult {
    Bytes,
    Nothing,
    /// The client closed the connection.
    Closed,
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: Service> Driver<I, S> {
    fn check_stop(&mut self, cx: &mut Context<'_>) {
        let Some(stopped) = &mut self.stopped else { return };
        if stopped.as_mut().poll(cx).is_ready() {
            self.stopped = None;
            self.connection.drain("the server is stopping");
            self.calls.stop(&mut self.connection);
        }
    }

    /// Reads once from the socket.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<ReadResult> {
        if self.closing || self.connection.output().len() > UNWRITTEN_BYTES {
            return Ok(ReadResult::Nothing);
        }
        let mut buffer = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(ReadResult::Nothing),
            Poll::Ready(read) => read?,
        }
        if buffer.filled().is_empty() {
            return Ok(ReadResult::Closed);
        }
        self.routes.service.received(buffer.filled().len());
        let received =
            self.connection.receive(buffer.filled(), &self.routes.methods, Instant::now());
        if let Err(error) = received {
            tracing::debug!(%error, "closing connection after protocol error");
            self.close();
        }
        Ok(ReadResult::Bytes)
    }

    /// Shuts the connection down, with a timeout.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.close();
        }
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Pending => self.alarm.as_mut().poll(cx).map(|()| Ok(())),
            Poll::Ready(_) => Poll::Ready(Ok(())),
        }
    }

    /// Closes the connection after the output, with a timeout.
    fn close(&mut self) {
        self.closing = true;
        self.calls.abandon();
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        self.alarm.as_mut().reset(deadline);
    }

    /// Starts and polls handlers until none can make progress. Returns whether any did.
    fn respond(&mut self, cx: &mut Context<'_>) -> bool {
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

    /// Frames and writes responses, up to a limit. Returns the number of bytes written.
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
            let mut slices = [IoSlice::new(&[]); WRITE_PIECES];
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

    /// Waits for the client or for the next alarm.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
