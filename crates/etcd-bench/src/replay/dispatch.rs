//! Reads a trace and starts the recorded calls and streams when they are due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use etcd_client::Connection;
use tokio::sync::mpsc;
use trace::{Call, Reader, Record, Request};

use super::call::{ordering_key, replay_call};
use super::convert::{self, Raw};
use super::options::{ReplayOptions, Speed};
use super::report::ReplayReport;
use super::state::ReplayState;
use super::streams;
use super::timed_record::TimedRecord;
use crate::load::Load;
use crate::progress::print_lines;

/// Number of records that are read ahead and sorted by time. A trace contains calls in the order
/// in which they ended, but the replay starts them in the order in which they started. A call
/// during which more than this many records were written starts late.
const READ_AHEAD: usize = 50_000;
/// Maximum number of unary calls in progress.
const MAX_IN_FLIGHT: u32 = 1024;
/// Maximum number of connections. If the trace has more, several recorded connections share one.
const MAX_CONNECTIONS: u64 = 256;
/// Maximum number of queued messages of a stream. While a queue is full, the dispatcher waits.
const STREAM_QUEUE: usize = 1024;
/// How long to wait for further watch events after the last call has ended.
const EVENT_WAIT: Duration = Duration::from_secs(1);

/// Starts the calls and streams of a trace.
pub struct Dispatcher<'a> {
    load: &'a Load,
    speed: Speed,
    state: Rc<ReplayState>,
    connections: HashMap<u64, Connection>,
    streams: HashMap<(u64, u32), OpenStream>,
    started: Instant,
    /// The trace time of the first record.
    first_time: Option<u64>,
    /// The last sequence number. Records and calls get sequence numbers.
    last_sequence: u64,
}

/// A stream that is open in the trace. The replay opens it when its first message is due.
struct OpenStream {
    method: Rc<str>,
    /// The queue of the task that replays the stream; `None` before the first message.
    messages: Option<mpsc::Sender<Raw>>,
}

impl<'a> Dispatcher<'a> {
    /// Creates a dispatcher for the endpoints of `load`.
    pub fn new(load: &'a Load, speed: Speed) -> Self {
        Dispatcher {
            load,
            speed,
            state: Rc::new(ReplayState::new(MAX_IN_FLIGHT as usize)),
            connections: HashMap::new(),
            streams: HashMap::new(),
            started: Instant::now(),
            first_time: None,
            last_sequence: 0,
        }
    }

    /// Replays the trace to its end or until SIGINT.
    pub async fn replay(&mut self, mut reader: Reader) -> Result<()> {
        let progress_lines =
            tokio::task::spawn_local(print_lines("replay", self.state.progress.clone()));
        let mut read_ahead = BinaryHeap::new();
        let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let mut is_over = false;
        while !is_over || !read_ahead.is_empty() {
            while !is_over && read_ahead.len() < READ_AHEAD {
                match reader.next().transpose()? {
                    Some(record) => self.enqueue(record, &mut read_ahead),
                    None => is_over = true,
                }
            }
            let Some(Reverse(TimedRecord { time, record, .. })) = read_ahead.pop() else {
                continue;
            };
            tokio::select! {
                result = self.start_record(time, record) => result?,
                _ = &mut interrupt => break,
            }
        }
        self.state.tally.borrow_mut().is_truncated = reader.is_truncated();
        progress_lines.abort();
        Ok(())
    }

    /// Queues a record that the replay executes. Counts the events of server messages and the
    /// missing records.
    fn enqueue(&mut self, record: Record, queue: &mut BinaryHeap<Reverse<TimedRecord>>) {
        let time = match &record {
            Record::Call(call) => call.time,
            Record::Open(open) => open.time,
            Record::ClientMessage(sent) => sent.time,
            Record::End(end) => end.time,
            Record::ServerMessage(received) => {
                let events = received.response.as_ref().and_then(|r| r.watch.as_ref());
                let events = events.map_or(0, |watch| watch.events.len() as u64);
                self.state.tally.borrow_mut().recorded_events += events;
                return;
            }
            Record::Missing(missing) => {
                self.state.tally.borrow_mut().missing_records += missing.records;
                return;
            }
            Record::Head(_) => return,
        };
        self.last_sequence += 1;
        queue.push(Reverse(TimedRecord { time, sequence: self.last_sequence, record }));
    }

    /// Waits until a record is due, and starts its call or stream, or sends its message.
    async fn start_record(&mut self, time: u64, record: Record) -> Result<()> {
        self.wait_until_due(time).await;
        self.state.wait_for_calls_before(time).await;
        match record {
            Record::Call(call) => self.start_call(call).await?,
            Record::Open(open) => {
                let stream = OpenStream { method: open.method.into(), messages: None };
                self.streams.insert((open.conn, open.stream), stream);
            }
            Record::ClientMessage(sent) => {
                let stream = (sent.conn, sent.stream);
                let connection = self.connection(sent.conn).await?;
                self.send_message(stream, connection, sent.request).await;
            }
            // Dropping the sender ends the task of the stream.
            Record::End(end) => drop(self.streams.remove(&(end.conn, end.stream))),
            _ => {}
        }
        Ok(())
    }

    /// Waits until a record with the trace time `time` is due.
    async fn wait_until_due(&mut self, time: u64) {
        let Speed::Times(times) = self.speed else { return };
        let first = *self.first_time.get_or_insert(time);
        let nanos = time.saturating_sub(first) as f64 / times;
        let due = self.started + Duration::from_nanos(nanos as u64);
        let now = Instant::now();
        if due > now {
            tokio::time::sleep_until(due.into()).await;
        }
        self.state.tally.borrow_mut().add_delay(due.elapsed());
    }

    /// Returns the connection that replaces the recorded connection. Opens it if necessary.
    async fn connection(&mut self, recorded: u64) -> Result<Connection> {
        let number = recorded % MAX_CONNECTIONS;
        if let Some(connection) = self.connections.get(&number) {
            return Ok(connection.clone());
        }
        let endpoint = number as usize % self.load.endpoints.len();
        let opened = self.load.open_to_endpoint(endpoint).await?;
        self.connections.insert(number, opened.clone());
        Ok(opened)
    }

    /// Starts a task that replays a unary call.
    async fn start_call(&mut self, call: Box<Call>) -> Result<()> {
        let Some(request) = call.request.clone() else {
            self.state.tally.borrow_mut().add_skipped(&call.method);
            return Ok(());
        };
        let connection = self.connection(call.conn).await?;
        let permit = self.state.in_flight.clone().acquire_owned().await?;
        self.last_sequence += 1;
        let turn = ordering_key(&request).map(|key| self.state.new_turn(key, self.last_sequence));
        let (state, end) = (self.state.clone(), (call.time + call.latency, self.last_sequence));
        state.recorded_ends.borrow_mut().insert(end);
        tokio::task::spawn_local(async move {
            let _permit = permit;
            replay_call(&state, connection, &call, &request, turn).await;
            state.recorded_ends.borrow_mut().remove(&end);
            state.call_ended.notify_one();
        });
        // Give the started calls a chance to run.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Queues a message for a stream. The first message opens the stream.
    async fn send_message(
        &mut self,
        stream_id: (u64, u32),
        connection: Connection,
        request: Option<Request>,
    ) {
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return self.state.tally.borrow_mut().add_skipped("a stream whose start is missing");
        };
        let message = request.as_ref().and_then(|request| {
            convert::encode_request(request, &mut self.state.revisions.borrow_mut())
        });
        let Some(message) = message else {
            return self.state.tally.borrow_mut().add_skipped(&stream.method);
        };
        let messages = stream.messages.get_or_insert_with(|| {
            let (messages, queue) = mpsc::channel(STREAM_QUEUE);
            let (method, state) = (stream.method.clone(), self.state.clone());
            tokio::task::spawn_local(streams::replay_stream(connection, method, queue, state));
            messages
        });
        // Sending fails if the server has ended the stream, which is not an error.
        let _ = messages.send(message).await;
        self.state.progress.inc(1);
    }

    /// Waits for the calls in progress and for further events, and returns the report.
    pub async fn finish(self, options: &ReplayOptions) -> ReplayReport {
        let _all = self.state.in_flight.acquire_many(MAX_IN_FLIGHT).await;
        let seconds = self.started.elapsed().as_secs_f64();
        tokio::time::sleep(EVENT_WAIT).await;
        self.state.progress.finish_and_clear();
        let untranslated = self.state.revisions.borrow().untranslated;
        self.state.tally.take().report(options, &self.load.endpoints, seconds, untranslated)
    }
}
