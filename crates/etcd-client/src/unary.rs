//! Many small unary calls of one thread over one connection.
//!
//! [`Caller::begin`] only puts a request into the state of the connection. The [`Driver`] writes the requests that began
//! within [`Options::collect`] with one system call, and wakes all tasks whose answers came with one read. The server
//! also gets many requests with one read, logs them with one write and answers them together. So the cost of all this is
//! shared.
//!
//! # Invariants
//! - A call ends once: with its answer, with an error, or when it is dropped. The server learns of the last.
//! - When the connection has ended, every call ends with an error.
//! - A call that takes longer than [`Options::timeout`] ends the connection, and so all calls.

mod answer;
mod driver;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, Data, ErrorCode, Event, Fields, Keepalive, Limits, Refill,
    StreamMap,
};
use prost::Message;

use self::answer::{Answer, Head, check_trailers};
use crate::dial::{Target, dial};
use crate::{Driver, TlsFiles, with_prefix};

/// Limits of a connection. Its answers are small.
const LIMITS: Limits = Limits {
    stream_window: 1 << 20,
    connection_window: 16 << 20,
    refill: Refill::OnArrival,
    fields_bytes: 64 << 10,
    output_bytes: 128 << 10,
};

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Calls at once. Further ones are refused.
    pub max_calls: usize,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long a call waits for others that are sent with it.
    pub collect: Duration,
    /// Calls that wait for no others any more.
    pub max_batch: usize,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Too many calls are in progress. It was not sent.
    Busy,
    /// The connection had ended before. It was not sent.
    Closed,
    /// The server answered with a status other than OK: `code CODE: MESSAGE`.
    Status(String),
    /// There is no answer. The server may have executed the call.
    Broken(String),
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Busy => f.write_str("too many calls in progress"),
            CallError::Closed => f.write_str("the connection has ended"),
            CallError::Status(text) | CallError::Broken(text) => f.write_str(text),
        }
    }
}

/// A method of the API on a connection.
#[derive(Clone, Debug)]
pub struct Method(Arc<Fields>);

/// Makes calls over a connection. Clones share it.
#[derive(Clone)]
pub struct Caller {
    target: Arc<Target>,
    shared: Arc<Shared>,
}

/// Connects to an endpoint, a URL or a host with a port. The driver must run on the thread that makes the calls.
///
/// # Errors
/// If the endpoint is not valid or does not answer, or a file cannot be read.
pub async fn connect(
    endpoint: &str,
    files: &TlsFiles,
    options: Options,
) -> Result<(Caller, Driver)> {
    let (io, target) = dial(endpoint, files).await?;
    let shared = Arc::new(Shared::new(options));
    let driver = driver::run(io, shared.clone());
    Ok((Caller { target: Arc::new(target), shared }, driver))
}

impl Caller {
    /// A method with a path such as `/etcdserverpb.KV/Txn`. It is made once for many calls.
    pub fn method(&self, path: &str) -> Method {
        let Target { scheme, authority } = &*self.target;
        let fields: [(&[u8], &[u8]); 6] = [
            (b":method", b"POST"),
            (b":scheme", scheme.as_bytes()),
            (b":path", path.as_bytes()),
            (b":authority", authority.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ];
        Method(Arc::new(Fields::from_iter(fields)))
    }

    /// Begins a call.
    ///
    /// # Errors
    /// If it is not sent.
    pub fn begin(&self, method: &Method, message: &impl Message) -> Result<Call, CallError> {
        let message = with_prefix(message);
        let mut state = self.shared.lock();
        let stream = state.begin(method, message)?;
        // The driver waits from the first one of a batch on.
        let is_told = state.unsent == 1 || state.unsent >= state.options.max_batch;
        let driver = if is_told { state.wake_driver() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
        Ok(Call { shared: self.shared.clone(), stream })
    }

    /// Makes a call, and returns the message of its answer.
    ///
    /// # Errors
    /// If there is none.
    pub async fn call<R: Message + Default>(
        &self,
        method: &Method,
        message: &impl Message,
    ) -> Result<R, CallError> {
        let answer = self.begin(method, message)?.await?;
        R::decode(answer).map_err(|error| CallError::Broken(format!("decode the answer: {error}")))
    }
}

/// A call in progress. Its result is the encoded message of the answer.
pub struct Call {
    shared: Arc<Shared>,
    stream: u32,
}

impl Future for Call {
    type Output = Result<Bytes, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.lock().poll(self.stream, cx)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let driver = if state.cancel(self.stream) { state.wake_driver() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

/// What the calls and the driver share.
struct Shared(Mutex<State>);

impl Shared {
    fn new(options: Options) -> Shared {
        // The timeout of the calls notices a server that is silent.
        let keepalive = Keepalive {
            interval: options.timeout,
            timeout: options.timeout,
            min_interval: Duration::ZERO,
        };
        let config = Config {
            max_streams: 0,
            keepalive,
            connect_method: ConnectMethod::Reject,
            limits: LIMITS,
        };
        Shared(Mutex::new(State {
            http: Connection::client(&config, Instant::now()),
            options,
            calls: StreamMap::default(),
            unsent: 0,
            collected: Instant::now(),
            deadlines: VecDeque::new(),
            driver: None,
            is_awake: true,
            woken: Vec::new(),
            has_ended: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the tasks whose calls have ended, without the lock. `woken` is empty before and after it.
    fn wake(&self, woken: &mut Vec<Waker>) {
        std::mem::swap(&mut self.lock().woken, woken);
        woken.drain(..).for_each(Waker::wake);
    }

    /// Ends all calls.
    fn end_all(&self, error: &CallError) {
        self.lock().end_all(error);
        self.wake(&mut Vec::new());
    }
}

/// The state of a connection.
struct State {
    http: Connection<Head>,
    options: Options,
    /// Calls that have begun and whose result was not taken, by stream.
    calls: StreamMap<Progress>,
    /// Calls that were not sent, and when they must be.
    unsent: usize,
    collected: Instant,
    /// When calls must have ended, in the order in which they began. Some have.
    deadlines: VecDeque<(u32, Instant)>,
    /// Wakes the driver.
    driver: Option<Waker>,
    /// Whether it will look at the state.
    is_awake: bool,
    /// Tasks whose calls have ended.
    woken: Vec<Waker>,
    has_ended: bool,
}

/// How far a call is.
enum Progress {
    /// The answer is not complete. The waker is that of the task that waits for it.
    Running(Answer, Option<Waker>),
    /// The result.
    Done(Result<Bytes, CallError>),
}

impl State {
    fn begin(&mut self, method: &Method, message: Bytes) -> Result<u32, CallError> {
        if self.has_ended {
            return Err(CallError::Closed);
        }
        if self.calls.len() >= self.options.max_calls {
            return Err(CallError::Busy);
        }
        let refusal = if self.http.is_ending() { CallError::Closed } else { CallError::Busy };
        let stream = self.http.open_repeated(&method.0).ok_or(refusal)?;
        self.http.send_data(stream, Data::Bytes(message));
        self.http.finish(stream, None);
        self.calls.insert(stream, Progress::Running(Answer::default(), None));
        let now = Instant::now();
        self.deadlines.push_back((stream, now + self.options.timeout));
        if self.unsent == 0 {
            self.collected = now + self.options.collect;
        }
        self.unsent += 1;
        Ok(stream)
    }

    /// Whether the calls that were not sent must be sent now.
    fn is_collected(&self, now: Instant) -> bool {
        self.unsent >= self.options.max_batch || (self.unsent > 0 && now >= self.collected)
    }

    /// Returns the waker of the driver, unless it is awake.
    fn wake_driver(&mut self) -> Option<Waker> {
        let was_awake = std::mem::replace(&mut self.is_awake, true);
        self.driver.clone().filter(|_| !was_awake)
    }

    fn poll(&mut self, stream: u32, cx: &Context<'_>) -> Poll<Result<Bytes, CallError>> {
        match self.calls.get_mut(&stream) {
            Some(Progress::Running(_, waker)) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            Some(Progress::Done(_)) => {}
            None => return Poll::Ready(Err(CallError::Broken("it has ended before".into()))),
        }
        match self.calls.remove(&stream) {
            Some(Progress::Done(result)) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Forgets a call. Returns whether the server must learn of it.
    fn cancel(&mut self, stream: u32) -> bool {
        let is_running = matches!(self.calls.remove(&stream), Some(Progress::Running(..)));
        if is_running {
            self.http.reset(stream, ErrorCode::Cancel);
        }
        is_running
    }

    /// Handles what has arrived.
    fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), CallError> {
        let received = self.http.receive(bytes, &(), now);
        while let Some(event) = self.http.next_event() {
            self.on_event(event);
        }
        received.map_err(|error| CallError::Broken(error.to_string()))
    }

    fn on_event(&mut self, event: Event<Option<CallError>>) {
        match event {
            Event::Response { stream, response: Some(error), .. } => {
                // Nothing else of the answer matters.
                self.http.reset(stream, ErrorCode::Cancel);
                self.end(stream, Err(error));
            }
            Event::Response { stream, response: None, end_stream } => {
                if end_stream {
                    self.end_without_status(stream);
                }
            }
            Event::Data { stream, bytes, end_stream } => {
                self.http.release(stream, bytes.len() as i64);
                if let Some(Progress::Running(answer, _)) = self.calls.get_mut(&stream) {
                    answer.push(bytes);
                }
                if end_stream {
                    self.end_without_status(stream);
                }
            }
            Event::Trailers { stream, fields } => {
                let Some(Progress::Running(answer, _)) = self.calls.get_mut(&stream) else {
                    return;
                };
                let answer = std::mem::take(answer);
                let result = check_trailers(&fields).and_then(|()| answer.message());
                self.end(stream, result);
            }
            Event::Reset { stream, code } => {
                let error = CallError::Broken(format!("the server reset the call, code {code}"));
                self.end(stream, Err(error));
            }
            Event::Unprocessed { stream } => self.end(stream, Err(CallError::Closed)),
            Event::Request { .. } => unreachable!("only a server has this event"),
        }
    }

    fn end_without_status(&mut self, stream: u32) {
        self.end(stream, Err(CallError::Broken("the answer has no status".into())));
    }

    /// Ends a call. Its task is woken by [`Shared::wake`].
    fn end(&mut self, stream: u32, result: Result<Bytes, CallError>) {
        let Some(progress) = self.calls.get_mut(&stream) else { return };
        if let Progress::Running(_, waker) = std::mem::replace(progress, Progress::Done(result)) {
            self.woken.extend(waker);
        }
    }

    /// Ends all calls.
    fn end_all(&mut self, error: &CallError) {
        self.has_ended = true;
        let running = self.calls.iter().filter(|(_, it)| matches!(it, Progress::Running(..)));
        let running: Vec<u32> = running.map(|(stream, _)| *stream).collect();
        running.into_iter().for_each(|stream| self.end(stream, Err(error.clone())));
    }

    /// When something must be done.
    fn next_alarm(&mut self) -> Option<Instant> {
        let collected = (self.unsent > 0).then_some(self.collected);
        self.deadline().into_iter().chain(collected).min()
    }

    /// When the oldest call must have ended.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((stream, deadline)) = self.deadlines.front() {
            if matches!(self.calls.get(stream), Some(Progress::Running(..))) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }
}
