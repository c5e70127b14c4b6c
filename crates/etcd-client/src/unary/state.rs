//! The state of a connection, which the calls and the driver share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{
    Config, ConnectMethod, Connection, Data, ErrorCode, Event, Fields, Keepalive, Limits, Refill,
    StreamMap,
};

use super::answer::{Answer, Head, check_trailers};
use super::error::CallError;

/// Limits of a connection. Its answers are small.
pub const LIMITS: Limits = Limits {
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

/// What the calls and the driver share.
pub struct Shared(Mutex<State>);

impl Shared {
    pub fn new(options: Options) -> Shared {
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

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the tasks whose calls have ended, without the lock. `woken` is empty before and after it.
    pub fn wake(&self, woken: &mut Vec<Waker>) {
        std::mem::swap(&mut self.lock().woken, woken);
        woken.drain(..).for_each(Waker::wake);
    }

    /// Ends all calls.
    pub fn end_all(&self, error: &CallError) {
        self.lock().end_all(error);
        self.wake(&mut Vec::new());
    }
}

/// The state of a connection.
pub struct State {
    pub http: Connection<Head>,
    pub options: Options,
    /// Calls that have begun and whose result was not taken, by stream.
    pub calls: StreamMap<Progress>,
    /// Calls that were not sent, and when they must be.
    pub unsent: usize,
    pub collected: Instant,
    /// When calls must have ended, in the order in which they began. Some have.
    pub deadlines: VecDeque<(u32, Instant)>,
    /// Wakes the driver.
    pub driver: Option<Waker>,
    /// Whether it will look at the state.
    pub is_awake: bool,
    /// Tasks whose calls have ended.
    pub woken: Vec<Waker>,
    pub has_ended: bool,
}

/// How far a call is.
pub enum Progress {
    /// The answer is not complete. The waker is that of the task that waits for it.
    Running(Answer, Option<Waker>),
    /// The result.
    Done(Result<Bytes, CallError>),
}

impl State {
    pub fn begin(&mut self, method: &Arc<Fields>, message: Bytes) -> Result<u32, CallError> {
        if self.has_ended {
            return Err(CallError::Closed);
        }
        if self.calls.len() >= self.options.max_calls {
            return Err(CallError::Busy);
        }
        let refusal = if self.http.is_ending() { CallError::Closed } else { CallError::Busy };
        let stream = self.http.open_repeated(method).ok_or(refusal)?;
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
    pub fn is_collected(&self, now: Instant) -> bool {
        self.unsent >= self.options.max_batch || (self.unsent > 0 && now >= self.collected)
    }

    /// Returns the waker of the driver, unless it is awake.
    pub fn wake_driver(&mut self) -> Option<Waker> {
        let was_awake = std::mem::replace(&mut self.is_awake, true);
        self.driver.clone().filter(|_| !was_awake)
    }

    pub fn poll(&mut self, stream: u32, cx: &Context<'_>) -> Poll<Result<Bytes, CallError>> {
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
    pub fn cancel(&mut self, stream: u32) -> bool {
        let is_running = matches!(self.calls.remove(&stream), Some(Progress::Running(..)));
        if is_running {
            self.http.reset(stream, ErrorCode::Cancel);
        }
        is_running
    }

    /// Handles what has arrived.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), CallError> {
        let received = self.http.receive(bytes, &(), now);
        while let Some(event) = self.http.next_event() {
            self.on_event(event);
        }
        received.map_err(|error| CallError::Broken(error.to_string()))
    }

    pub fn on_event(&mut self, event: Event<Option<CallError>>) {
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

    pub fn end_without_status(&mut self, stream: u32) {
        self.end(stream, Err(CallError::Broken("the answer has no status".into())));
    }

    /// Ends a call. Its task is woken by [`Shared::wake`].
    pub fn end(&mut self, stream: u32, result: Result<Bytes, CallError>) {
        let Some(progress) = self.calls.get_mut(&stream) else { return };
        if let Progress::Running(_, waker) = std::mem::replace(progress, Progress::Done(result)) {
            self.woken.extend(waker);
        }
    }

    /// Ends all calls.
    pub fn end_all(&mut self, error: &CallError) {
        self.has_ended = true;
        let running = self.calls.iter().filter(|(_, it)| matches!(it, Progress::Running(..)));
        let running: Vec<u32> = running.map(|(stream, _)| *stream).collect();
        running.into_iter().for_each(|stream| self.end(stream, Err(error.clone())));
    }

    /// When something must be done.
    pub fn next_alarm(&mut self) -> Option<Instant> {
        let collected = (self.unsent > 0).then_some(self.collected);
        self.deadline().into_iter().chain(collected).min()
    }

    /// When the oldest call must have ended.
    pub fn deadline(&mut self) -> Option<Instant> {
        while let Some((stream, deadline)) = self.deadlines.front() {
            if matches!(self.calls.get(stream), Some(Progress::Running(..))) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }
}
