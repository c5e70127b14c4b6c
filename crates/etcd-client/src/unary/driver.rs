//! The input and output of a connection.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use super::error::CallError;
use super::state::Shared;
use crate::Driver;
use crate::dial::Io;

/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Slices of the output that are written at once.
const MAX_SLICES: usize = 16;
/// Rounds of reading and writing before other tasks have a turn.
const MAX_ROUNDS: usize = 8;

/// Runs a connection until it ends.
pub fn run(io: Box<dyn Io>, shared: Arc<Shared>) -> Driver {
    let alarm = Box::pin(sleep_until(Instant::now().into()));
    let mut task = Task {
        io,
        shared,
        buffer: vec![0; READ],
        is_flushed: true,
        is_sending: false,
        woken: Vec::new(),
        alarm,
    };
    Box::pin(async move {
        let error = poll_fn(|cx| task.poll(cx)).await;
        task.shared.end_all(&error);
    })
}

/// The task of a connection.
struct Task {
    io: Box<dyn Io>,
    shared: Arc<Shared>,
    buffer: Vec<u8>,
    is_flushed: bool,
    /// Whether calls are being sent.
    is_sending: bool,
    /// The tasks to wake; empty between two reads.
    woken: Vec<Waker>,
    /// Expires when calls must be sent, or one has taken too long, or earlier.
    alarm: Pin<Box<Sleep>>,
}

/// The calls end with the task, also if it is dropped.
impl Drop for Task {
    fn drop(&mut self) {
        self.shared.end_all(&CallError::Broken("the connection was given up".into()));
    }
}

impl Task {
    /// Reads and writes until there is nothing to do. The result is the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        self.register(cx);
        for _ in 0..MAX_ROUNDS {
            let progress = self.receive(cx).and_then(|received| Ok(received | self.send(cx)?));
            match progress {
                Ok(true) => {}
                Ok(false) => return self.rest(cx),
                Err(error) => return Poll::Ready(error),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Lets calls that begin from now on wake the task.
    fn register(&self, cx: &Context<'_>) {
        let mut state = self.shared.lock();
        state.is_awake = false;
        match &mut state.driver {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.driver = Some(cx.waker().clone()),
        }
    }

    /// Reads once. Returns whether there was anything.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, CallError> {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        let Poll::Ready(read) = Pin::new(&mut self.io).poll_read(cx, &mut buffer) else {
            return Ok(false);
        };
        read.map_err(broken)?;
        if buffer.filled().is_empty() {
            return Err(CallError::Broken("closed by the server".into()));
        }
        let received = self.shared.lock().receive(buffer.filled(), Instant::now());
        self.shared.wake(&mut self.woken);
        received.map(|()| true)
    }

    /// Writes what there is, as far as the socket takes it. Returns whether it took anything.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, CallError> {
        let mut state = self.shared.lock();
        let mut has_sent = false;
        if state.is_collected(Instant::now()) {
            state.unsent = 0;
            self.is_sending = true;
        }
        loop {
            // Control frames are in the output already.
            if self.is_sending {
                state.http.fill_output();
            }
            let output = state.http.output();
            if output.is_empty() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = output.slices(&mut slices);
            let io = Pin::new(&mut self.io);
            match io.poll_write_vectored(cx, &slices[..count]) {
                Poll::Pending => return Ok(has_sent),
                Poll::Ready(Ok(0)) => return Err(broken(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => output.advance(written.map_err(broken)?),
            }
            (has_sent, self.is_flushed) = (true, false);
        }
        drop(state);
        self.is_sending = false;
        if !self.is_flushed {
            self.is_flushed = match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(flushed) => flushed.map(|()| true).map_err(broken)?,
                Poll::Pending => false,
            };
        }
        Ok(has_sent)
    }

    /// Prepares to wait. Ends the connection if a call has taken too long, or the server accepts no more calls and none
    /// is in progress.
    fn rest(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let mut state = self.shared.lock();
        if state.http.is_done() {
            return Poll::Ready(CallError::Broken("the server ends the connection".into()));
        }
        let now = Instant::now();
        if state.deadline().is_some_and(|deadline| deadline <= now) {
            let seconds = state.options.timeout.as_secs_f64();
            return Poll::Ready(CallError::Broken(format!("no answer within {seconds} s")));
        }
        let Some(next) = state.next_alarm() else { return Poll::Pending };
        drop(state);
        // One that is too early is corrected when it fires.
        if self.alarm.is_elapsed() || self.alarm.deadline() > next.into() {
            self.alarm.as_mut().reset(next.into());
        }
        if self.alarm.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

fn broken(error: io::Error) -> CallError {
    CallError::Broken(format!("connection: {error}"))
}
