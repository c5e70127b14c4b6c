//! Connects a [`GrpcConnection`] and its calls to a socket.
//!
//! One task serves a connection: it reads, starts handlers, polls them, and writes. A
//! handler that completes within two polls needs no wake-up. The first poll starts it.
//! The second poll follows after the task has started the handlers of all requests
//! that arrived in the same read from the socket.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::admission::UNCOUNTED_BYTES;
use crate::calls::Calls;
use crate::config::ServerConfig;
use crate::connection::GrpcConnection;
use crate::routes::{Routes, Service};
use crate::stall::StallTimer;
use crate::turn::Turn;

/// Size of the buffer for one read from the socket.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Reading from a client pauses while more than this many bytes wait only to be written to the
/// client: the output, and the heads of responses.
const MAX_UNWRITTEN_BYTES: usize = 256 << 10;
/// Maximum number of pieces in one vectored write.
const MAX_WRITE_PIECES: usize = 64;
/// Number of rounds of reading, responding and writing before other connections have a
/// turn.
const ROUNDS_PER_TURN: usize = 16;
/// Number of written bytes after which other connections have a turn.
const WRITTEN_BYTES_PER_TURN: usize = 512 << 10;
/// How long the last write and the shutdown of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves an HTTP/2 connection until the client closes it. `head` contains the bytes that
/// have already been read from `io`. After `stop` is cancelled, the client is asked to open
/// no more calls, streaming calls end with an error, and unary calls finish. A call that the
/// client started before it got the request is served like these. `client_name` is the name that
/// the client has proved by its certificate.
pub async fn serve<S: Service>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    head: &[u8],
    routes: Arc<Routes<S>>,
    client_name: Option<Arc<str>>,
    config: &ServerConfig,
    stop: CancellationToken,
) -> io::Result<()> {
    let now = Instant::now();
    let mut connection = GrpcConnection::new(config, client_name, now);
    let closing = connection.receive(head, &routes.methods, now).is_err();
    let timer = Box::pin(tokio::time::sleep_until(or_far_future(connection.alarm(), now).into()));
    let calls = Calls::new(routes.clone(), connection.admission().clone());
    let stopped = Some(Box::pin(stop.cancelled_owned()));
    let (stall, written, events_left) = (StallTimer::new(config.stall_timeout), 0, false);
    let driver = Driver {
        io,
        connection,
        calls,
        routes,
        timer,
        stopped,
        stall,
        written,
        closing,
        events_left,
    };
    driver.await
}

/// Returns the time of the alarm; a time in a year if there is none.
fn or_far_future(alarm: Option<Instant>, now: Instant) -> Instant {
    alarm.unwrap_or(now + Duration::from_secs(365 * 24 * 60 * 60))
}

/// The task of one connection.
struct Driver<I, S: Service> {
    io: I,
    connection: GrpcConnection,
    calls: Calls<S>,
    routes: Arc<Routes<S>>,
    /// Expires at the next alarm of the connection, or at the end of [`CLOSE_TIMEOUT`].
    timer: Pin<Box<tokio::time::Sleep>>,
    /// Resolves when the server stops; `None` after that has been handled.
    stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    stall: StallTimer,
    /// Number of bytes written to the client.
    written: u64,
    /// Whether the connection closes as soon as the output is written. Nothing is read
    /// then.
    closing: bool,
    /// Whether the last turn may have left events. Nothing is read before they are handled.
    events_left: bool,
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: Service> Future for Driver<I, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let driver = &mut *self;
        let (mut written, mut turn) = (0, Turn::start(Instant::now()));
        for _ in 0..ROUNDS_PER_TURN {
            driver.check_stop(cx);
            let read = match driver.events_left {
                true => ReadResult::Later,
                false => driver.read(cx, &mut turn)?,
            };
            if read == ReadResult::Closed {
                return Poll::Ready(Ok(()));
            }
            let responded = driver.respond(cx, &mut turn);
            let wrote = driver.write(cx)?;
            written += wrote;
            if driver.connection.is_done() && driver.connection.output().is_empty() {
                return driver.poll_close(cx);
            }
            if read == ReadResult::Nothing && !responded && wrote == 0 && !turn.was_over() {
                return driver.wait(cx);
            }
            if turn.was_over() || written >= WRITTEN_BYTES_PER_TURN {
                break;
            }
        }
        driver.check_stall(cx);
        match turn.was_over() {
            // A task that only wakes itself runs again before the worker thread looks at the
            // sockets, up to 61 times. Yielding lets the thread look first.
            true => drop(std::pin::pin!(tokio::task::yield_now()).poll(cx)),
            false => cx.waker().wake_by_ref(),
        }
        Poll::Pending
    }
}

/// Result of reading from the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadResult {
    Bytes,
    /// Nothing can be read. The task is woken when that changes.
    Nothing,
    /// Events are handled first. The task is not woken by the socket.
    Later,
    /// The client closed the connection.
    Closed,
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: Service> Driver<I, S> {
    fn check_stop(&mut self, cx: &mut Context<'_>) {
        let Some(stopped) = &mut self.stopped else { return };
        if stopped.as_mut().poll(cx).is_ready() {
            self.stopped = None;
            self.connection.drain("the server is stopping", Instant::now());
            self.calls.stop_streaming(&mut self.connection);
            self.reset_timer();
        }
    }

    /// Closes the connection if it holds much for a client that does not read. Ends incomplete
    /// requests if they occupy scarce memory for long.
    fn check_stall(&mut self, cx: &mut Context<'_>) {
        let bytes = self.connection.unread().bytes;
        let holds_unread = !self.closing && bytes > UNCOUNTED_BYTES;
        let holds_requests = !self.closing && self.connection.request_bytes() > UNCOUNTED_BYTES;
        let tick = self.stall.poll_tick(holds_unread, holds_requests, self.written, cx);
        let Some(idle) = tick else { return };
        let requests = self.connection.end_overdue(Instant::now(), self.stall.short_timeout());
        if requests > 0 {
            tracing::warn!(requests, "ended incomplete requests because memory is scarce");
            cx.waker().wake_by_ref();
        }
        let patience = self.calls.patience(&self.connection);
        if holds_unread && self.stall.is_exhausted(patience, idle) {
            tracing::warn!(
                bytes,
                "closing the connection of a client that does not read responses"
            );
            self.connection.go_away("the client does not read its responses");
            self.start_closing();
            cx.waker().wake_by_ref();
        }
    }

    /// Reads once from the socket. Ends the turn if the rounds before took long: a read takes
    /// time even if it yields no events.
    fn read(&mut self, cx: &mut Context<'_>, turn: &mut Turn) -> io::Result<ReadResult> {
        let unwritten = self.connection.output().len() + self.connection.head_bytes();
        if self.closing || unwritten > MAX_UNWRITTEN_BYTES {
            return Ok(ReadResult::Nothing);
        }
        let mut buffer = [std::mem::MaybeUninit::uninit(); READ_BUFFER_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(ReadResult::Nothing),
            Poll::Ready(read) => read?,
        }
        if buffer.filled().is_empty() {
            return Ok(ReadResult::Closed);
        }
        self.routes.service.bytes_received(buffer.filled().len());
        let now = Instant::now();
        turn.check(now);
        let received = self.connection.receive(buffer.filled(), &self.routes.methods, now);
        if let Err(error) = received {
            tracing::debug!(%error, "closing connection after protocol error");
            self.start_closing();
        }
        Ok(ReadResult::Bytes)
    }

    /// Shuts the socket down, with a timeout.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.start_closing();
        }
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Pending => self.timer.as_mut().poll(cx).map(|()| Ok(())),
            Poll::Ready(_) => Poll::Ready(Ok(())),
        }
    }

    /// Drops all calls, and lets the connection close when the output is written or the
    /// timeout expires.
    fn start_closing(&mut self) {
        self.closing = true;
        self.calls.drop_all();
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        self.timer.as_mut().reset(deadline);
    }

    /// Starts and polls handlers until none makes progress, or the turn is over. Returns
    /// whether any made progress.
    fn respond(&mut self, cx: &mut Context<'_>, turn: &mut Turn) -> bool {
        self.events_left = false;
        if self.closing {
            return false;
        }
        let mut any = false;
        loop {
            let started = self.calls.handle_events(&mut self.connection, turn);
            let polled = self.calls.poll(&mut self.connection, cx);
            self.events_left = turn.was_over();
            if (!started && !polled) || self.events_left {
                return any || started || polled;
            }
            any = true;
        }
    }

    /// Frames and writes responses until nothing is left, the socket is full, or the
    /// limit is reached. Returns the number of bytes written.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        let mut wrote = 0;
        while wrote < WRITTEN_BYTES_PER_TURN {
            if !self.closing {
                self.connection.fill_output();
            }
            let output = self.connection.output();
            if output.is_empty() {
                return Ok(wrote);
            }
            let mut slices = [IoSlice::new(&[]); MAX_WRITE_PIECES];
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
                    self.routes.service.bytes_sent(written);
                    self.written += written as u64;
                    wrote += written;
                }
            }
        }
        Ok(wrote)
    }

    /// Registers the task to be woken by the socket or by the alarm. Handles an alarm
    /// that has expired.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx)?;
        if self.closing && self.connection.output().is_empty() && flushed.is_ready() {
            return Poll::Ready(Ok(()));
        }
        self.check_stall(cx);
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.closing || !self.connection.on_alarm(now) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if !self.connection.output().is_empty() {
                cx.waker().wake_by_ref();
            }
            self.reset_timer();
        }
        Poll::Pending
    }

    fn reset_timer(&mut self) {
        let alarm = or_far_future(self.connection.alarm(), Instant::now());
        self.timer.as_mut().reset(alarm.into());
    }
}
