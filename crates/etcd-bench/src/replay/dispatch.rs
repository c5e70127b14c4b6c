//! Reads a trace and starts the recorded requests at their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::mpsc;
use trace::{Call, Reader, Record, Request};

use super::call::{perform, single_key};
use super::convert::{self, Raw};
use super::options::{ReplayOptions, Speed};
use super::report::ReplayReport;
use super::state::ReplayState;
use super::streams;
use super::timed_record::TimedRecord;
use crate::connection::{self, Connection};
use crate::load::Load;
use crate::progress::print_lines;

/// Number of records read ahead. A trace contains calls in the order in which they ended;
/// reading ahead sorts them by start. A call that lasted longer than the records read
/// ahead starts late.
const READ_AHEAD: usize = 50_000;
/// Maximum number of calls in progress.
const MAX_IN_FLIGHT: u32 = 1024;
/// Maximum number of connections. Further recorded connections share them.
const MAX_CONNECTIONS: u64 = 256;
/// Maximum number of queued messages of a stream. If the queue is full, the replay waits.
const STREAM_QUEUE: usize = 1024;
/// How long to wait for events after the last record.
const EVENT_WAIT: Duration = Duration::from_secs(1);

/// Starts the requests of a trace.
pub struct Dispatcher<'a> {
    load: &'a Load,
    speed: Speed,
    state: Rc<ReplayState>,
    connections: HashMap<u64, Connection>,
    streams: HashMap<(u64, u32), OpenStream>,
    started: Instant,
    /// The time of the first record.
    first: Option<u64>,
    /// Number of records and calls so far.
    number: u64,
}

/// An open stream of the trace. It is opened in the replay with its first message.
struct OpenStream {
    method: Rc<str>,
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
            first: None,
            number: 0,
        }
    }

    /// Replays the trace to its end or until SIGINT.
    pub async fn replay(&mut self, mut reader: Reader) -> Result<()> {
        let progress_lines =
            tokio::task::spawn_local(print_lines("replay", self.state.progress.clone()));
        let mut ahead = BinaryHeap::new();
        let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let mut is_over = false;
        while !is_over || !ahead.is_empty() {
            while !is_over && ahead.len() < READ_AHEAD {
                match reader.next().transpose()? {
                    Some(record) => self.enqueue(record, &mut ahead),
                    None => is_over = true,
                }
            }
            let Some(Reverse(TimedRecord(time, _, record))) = ahead.pop() else { continue };
            tokio::select! {
                result = self.start(time, record) => result?,
                _ = &mut interrupt => break,
            }
        }
        self.state.tally.borrow_mut().is_truncated = reader.is_truncated();
        progress_lines.abort();
        Ok(())
    }

    /// Queues a record that can be replayed, and counts all others as not replayed.
    fn enqueue(&mut self, record: Record, ahead: &mut BinaryHeap<Reverse<TimedRecord>>) {
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
                self.state.tally.borrow_mut().missing += missing.records;
                return;
            }
            Record::Head(_) => return,
        };
        self.number += 1;
        ahead.push(Reverse(TimedRecord(time, self.number, record)));
    }

    /// Waits until a record is due and starts it.
    async fn start(&mut self, time: u64, record: Record) -> Result<()> {
        self.wait(time).await;
        self.state.wait_for_calls_before(time).await;
        match record {
            Record::Call(call) => self.call(call).await?,
            Record::Open(open) => {
                let stream = OpenStream { method: open.method.into(), messages: None };
                self.streams.insert((open.conn, open.stream), stream);
            }
            Record::ClientMessage(sent) => {
                let stream = (sent.conn, sent.stream);
                let connection = self.connection(sent.conn).await?;
                self.send(stream, connection, sent.request).await;
            }
            // Dropping the sender ends the task of the stream.
            Record::End(end) => drop(self.streams.remove(&(end.conn, end.stream))),
            _ => {}
        }
        Ok(())
    }

    /// Waits until `time` of the trace.
    async fn wait(&mut self, time: u64) {
        let Speed::Times(times) = self.speed else { return };
        let first = *self.first.get_or_insert(time);
        let nanos = time.saturating_sub(first) as f64 / times;
        let due = self.started + Duration::from_nanos(nanos as u64);
        let now = Instant::now();
        if due > now {
            tokio::time::sleep_until(due.into()).await;
        }
        self.state.tally.borrow_mut().add_delay(due.elapsed());
    }

    /// The connection for a recorded connection.
    async fn connection(&mut self, recorded: u64) -> Result<Connection> {
        let number = recorded % MAX_CONNECTIONS;
        if let Some(connection) = self.connections.get(&number) {
            return Ok(connection.clone());
        }
        let endpoint = number as usize % self.load.endpoints.len();
        let opened = connection::open_at(self.load, endpoint).await?;
        self.connections.insert(number, opened.clone());
        Ok(opened)
    }

    /// Starts a unary call.
    async fn call(&mut self, call: Box<Call>) -> Result<()> {
        let Some(request) = call.request.clone() else {
            self.state.tally.borrow_mut().skip(&call.method);
            return Ok(());
        };
        let connection = self.connection(call.conn).await?;
        let permit = self.state.in_flight.clone().acquire_owned().await?;
        self.number += 1;
        let turn = single_key(&request).map(|key| self.state.turn(key, self.number));
        let (state, end) = (self.state.clone(), (call.time + call.latency, self.number));
        state.ends.borrow_mut().insert(end);
        tokio::task::spawn_local(async move {
            let _permit = permit;
            perform(&state, connection, &call, &request, turn).await;
            state.ends.borrow_mut().remove(&end);
            state.ended.notify_one();
        });
        // Let the started calls make progress.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Sends a message on a stream.
    async fn send(
        &mut self,
        stream_id: (u64, u32),
        connection: Connection,
        request: Option<Request>,
    ) {
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return self.state.tally.borrow_mut().skip("a stream whose start is missing");
        };
        let message = request
            .as_ref()
            .and_then(|request| convert::message(request, &mut self.state.revisions.borrow_mut()));
        let Some(message) = message else {
            return self.state.tally.borrow_mut().skip(&stream.method);
        };
        let messages = stream.messages.get_or_insert_with(|| {
            let (messages, queue) = mpsc::channel(STREAM_QUEUE);
            let (method, state) = (stream.method.clone(), self.state.clone());
            tokio::task::spawn_local(streams::run(connection, method, queue, state));
            messages
        });
        // Fails if the store has ended the stream.
        let _ = messages.send(message).await;
        self.state.progress.inc(1);
    }

    /// Waits for the calls in progress and returns the report.
    pub async fn finish(self, options: &ReplayOptions) -> ReplayReport {
        let _all = self.state.in_flight.acquire_many(MAX_IN_FLIGHT).await;
        let seconds = self.started.elapsed().as_secs_f64();
        tokio::time::sleep(EVENT_WAIT).await;
        self.state.progress.finish_and_clear();
        let unknown = self.state.revisions.borrow().unknown;
        self.state.tally.take().report(options, &self.load.endpoints, seconds, unknown)
    }
}
