//! Begins what was recorded, each at its time.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::io::IsTerminal;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use trace::{Call, Line, Reader, Request, Response};

use super::convert::{self, Raw};
use super::difference::{self, Answer};
use super::report::{ReplayReport, Tally};
use super::revisions::{Revisions, hash};
use super::streams;
use super::{ReplayOptions, Speed};
use crate::connection::{self, Connection, Failure};
use crate::options::Load;
use crate::run::{PROGRESS_LINE, bar};

/// A call is written down when it is over: to have all calls in the order in which they
/// began, so many lines are read ahead. One that took longer than all of these begins
/// late.
const LINES_AHEAD: usize = 50_000;
/// Calls under way at once; further ones wait.
const IN_FLIGHT: u32 = 1024;
/// Connections; more recorded ones share them.
const CONNECTIONS: u64 = 256;
/// Messages that wait on one stream; then all wait for it.
const STREAM_QUEUE: usize = 1024;
/// How long watchers may still be told of things after the last line.
const SETTLE: Duration = Duration::from_secs(1);

/// What all that is under way shares.
pub struct Shared {
    pub revisions: RefCell<Revisions>,
    pub tally: RefCell<Tally>,
    /// Of each key the call that came last, and what tells of its end.
    tails: RefCell<HashMap<u64, (u64, oneshot::Receiver<()>)>>,
    in_flight: Arc<Semaphore>,
    /// The recorded ends of the calls that are under way, with their numbers.
    ends: RefCell<BTreeSet<(u64, u64)>>,
    /// Says that there is one less of them.
    ended: Notify,
    progress: ProgressBar,
}

/// A line, in the order of times; those of one time as they were read.
struct Timed(u64, u64, Line);

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// Reads, waits, begins.
pub struct Dispatcher<'a> {
    load: &'a Load,
    speed: Speed,
    shared: Rc<Shared>,
    connections: HashMap<u64, Connection>,
    streams: HashMap<(u64, u32), Stream>,
    begun: Instant,
    /// Time of the first line.
    first: Option<u64>,
    last: u64,
    number: u64,
}

/// A stream that is open, and the way to it once it has had a message.
struct Stream {
    method: Rc<str>,
    messages: Option<mpsc::Sender<Raw>>,
}

impl<'a> Dispatcher<'a> {
    pub fn new(load: &'a Load, speed: Speed) -> Self {
        let shared = Rc::new(Shared {
            revisions: RefCell::default(),
            tally: RefCell::default(),
            tails: RefCell::default(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
            ends: RefCell::default(),
            ended: Notify::new(),
            progress: bar(None).with_message("replay"),
        });
        Dispatcher {
            load,
            speed,
            shared,
            connections: HashMap::new(),
            streams: HashMap::new(),
            begun: Instant::now(),
            first: None,
            last: 0,
            number: 0,
        }
    }

    /// Replays everything, or up to an interrupt.
    pub async fn replay(&mut self, mut reader: Reader) -> Result<()> {
        let narrator = tokio::task::spawn_local(narrate(self.shared.progress.clone()));
        let mut ahead = BinaryHeap::new();
        let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let mut is_over = false;
        while !is_over || !ahead.is_empty() {
            while !is_over && ahead.len() < LINES_AHEAD {
                match reader.next().transpose()? {
                    Some(line) => self.take(line, &mut ahead),
                    None => is_over = true,
                }
            }
            let Some(Reverse(Timed(time, _, line))) = ahead.pop() else { continue };
            tokio::select! {
                begun = self.begin(time, line) => begun?,
                _ = &mut interrupt => break,
            }
        }
        self.shared.tally.borrow_mut().is_cut = reader.is_cut();
        narrator.abort();
        Ok(())
    }

    /// Puts a line where it belongs: to be begun at its time, or to be compared with.
    fn take(&mut self, line: Line, ahead: &mut BinaryHeap<Reverse<Timed>>) {
        let time = match &line {
            Line::Call(call) => call.time,
            Line::Open(open) => open.time,
            Line::Sent(sent) => sent.time,
            Line::End(end) => end.time,
            Line::Received(received) => {
                let events = received.response.as_ref().and_then(|r| r.watch.as_ref());
                let events = events.map_or(0, |watch| watch.events.len() as u64);
                self.shared.tally.borrow_mut().recorded_events += events;
                return;
            }
            Line::Missing(missing) => {
                self.shared.tally.borrow_mut().missing += missing.lines;
                return;
            }
            Line::Head(_) => return,
        };
        self.number += 1;
        ahead.push(Reverse(Timed(time, self.number, line)));
    }

    async fn begin(&mut self, time: u64, line: Line) -> Result<()> {
        self.wait(time).await;
        self.shared.follow(time).await;
        match line {
            Line::Call(call) => self.call(call).await?,
            Line::Open(open) => {
                let stream = Stream { method: open.method.into(), messages: None };
                self.streams.insert((open.conn, open.stream), stream);
            }
            Line::Sent(sent) => {
                let place = (sent.conn, sent.stream);
                let connection = self.connection(sent.conn).await?;
                self.say(place, connection, sent.request).await;
            }
            // The task at the other end sees that nobody speaks to it any more.
            Line::End(end) => drop(self.streams.remove(&(end.conn, end.stream))),
            _ => {}
        }
        Ok(())
    }

    /// Until `time` of the recording.
    async fn wait(&mut self, time: u64) {
        let Speed::Times(times) = self.speed else { return };
        let first = *self.first.get_or_insert(time);
        self.last = self.last.max(time);
        let nanos = time.saturating_sub(first) as f64 / times;
        let due = self.begun + Duration::from_nanos(nanos as u64);
        let now = Instant::now();
        if due > now {
            tokio::time::sleep_until(due.into()).await;
        }
        self.shared.tally.borrow_mut().late(due.elapsed());
    }

    async fn connection(&mut self, recorded: u64) -> Result<Connection> {
        let number = recorded % CONNECTIONS;
        if let Some(known) = self.connections.get(&number) {
            return Ok(known.clone());
        }
        let endpoint = number as usize % self.load.endpoints.len();
        let opened = connection::open_at(self.load, endpoint).await?;
        self.connections.insert(number, opened.clone());
        Ok(opened)
    }

    async fn call(&mut self, call: Box<Call>) -> Result<()> {
        let Some(request) = call.request.clone() else {
            self.shared.tally.borrow_mut().skip(&call.method);
            return Ok(());
        };
        let connection = self.connection(call.conn).await?;
        let permit = self.shared.in_flight.clone().acquire_owned().await?;
        self.number += 1;
        let turn = single_key(&request).map(|key| self.shared.turn(key, self.number));
        let (shared, end) = (self.shared.clone(), (call.time + call.latency, self.number));
        shared.ends.borrow_mut().insert(end);
        tokio::task::spawn_local(async move {
            let _until_the_end = permit;
            perform(&shared, connection, &call, &request, turn).await;
            shared.ends.borrow_mut().remove(&end);
            shared.ended.notify_one();
        });
        // Those that have begun get to go.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Says something on a stream, which is opened with its first message.
    async fn say(&mut self, place: (u64, u32), connection: Connection, request: Option<Request>) {
        let Some(stream) = self.streams.get_mut(&place) else {
            return self.shared.tally.borrow_mut().skip("a stream whose beginning is missing");
        };
        let message = request
            .as_ref()
            .and_then(|request| convert::message(request, &mut self.shared.revisions.borrow_mut()));
        let Some(message) = message else {
            return self.shared.tally.borrow_mut().skip(&stream.method);
        };
        let messages = stream.messages.get_or_insert_with(|| {
            let (messages, queue) = mpsc::channel(STREAM_QUEUE);
            let (method, shared) = (stream.method.clone(), self.shared.clone());
            tokio::task::spawn_local(streams::run(connection, method, queue, shared));
            messages
        });
        // A stream that the store has ended takes nothing more.
        let _ = messages.send(message).await;
        self.shared.progress.inc(1);
    }

    /// Waits for what is under way, and says what came of it.
    pub async fn finish(self, options: &ReplayOptions) -> ReplayReport {
        let _all = self.shared.in_flight.acquire_many(IN_FLIGHT).await;
        let seconds = self.begun.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE).await;
        self.shared.progress.finish_and_clear();
        let unknown = self.shared.revisions.borrow().unknown;
        self.shared.tally.take().report(options, &self.load.endpoints, seconds, unknown)
    }
}

/// A place in the order of one key's calls.
struct Turn {
    key: u64,
    number: u64,
    before: Option<oneshot::Receiver<()>>,
    done: oneshot::Sender<()>,
}

impl Shared {
    /// Waits for the calls that had ended before `time` when they were recorded.
    async fn follow(&self, time: u64) {
        while self.ends.borrow().first().is_some_and(|(end, _)| *end < time) {
            self.ended.notified().await;
        }
    }

    fn turn(&self, key: &[u8], number: u64) -> Turn {
        let key = hash(key);
        let (done, end) = oneshot::channel();
        let before = self.tails.borrow_mut().insert(key, (number, end)).map(|(_, before)| before);
        Turn { key, number, before, done }
    }

    fn end_turn(&self, turn: Turn) {
        let mut tails = self.tails.borrow_mut();
        if tails.get(&turn.key).is_some_and(|(last, _)| *last == turn.number) {
            tails.remove(&turn.key);
        }
        // Nobody may wait for it.
        let _ = turn.done.send(());
    }

    /// Learns from an answer what recorded revisions and leases are here.
    fn learn(&self, request: &Request, recorded: &Response, here: &Response) {
        let mut revisions = self.revisions.borrow_mut();
        revisions.learn_header(recorded.revision, here.revision);
        let states: BTreeMap<_, _> = states(request, here).into_iter().collect();
        for (key, then) in self::states(request, recorded) {
            if let Some(now) = states.get(key) {
                revisions.learn(key, then, *now);
            }
        }
        match request {
            Request::LeaseGrant { .. } => {
                if let (Some(then), Some(now)) = (recorded.lease, here.lease) {
                    revisions.learn_lease(then.id, now.id);
                }
            }
            Request::LeaseRevoke { id } => revisions.forget_lease(*id),
            _ => {}
        }
    }
}

/// Waits for its turn, calls, learns and compares.
async fn perform(
    shared: &Shared,
    connection: Connection,
    call: &Call,
    request: &Request,
    mut turn: Option<Turn>,
) {
    if let Some(before) = turn.as_mut().and_then(|turn| turn.before.take()) {
        // An error says that it is over as well.
        let _ = before.await;
    }
    let message = convert::message(request, &mut shared.revisions.borrow_mut());
    match message {
        None => shared.tally.borrow_mut().skip(&call.method),
        Some(message) => {
            let begun = Instant::now();
            let answer = connection.call::<Raw>(&call.method, &message).await;
            let latency = begun.elapsed();
            let answer: Answer = answer
                .map(|Raw(bytes)| trace::response(&call.method, bytes))
                .map_err(|Failure(reason)| difference::code(&reason));
            if let (Some(recorded), Ok(Some(here))) = (&call.response, &answer) {
                shared.learn(request, recorded, here);
            }
            let differs = difference::difference(&call.end, call.response.as_ref(), &answer);
            let recorded = Duration::from_nanos(call.latency);
            let mut tally = shared.tally.borrow_mut();
            tally.called(&call.method, recorded, latency, differs, answer.is_err());
        }
    }
    shared.progress.inc(1);
    if let Some(turn) = turn {
        shared.end_turn(turn);
    }
}

/// The key, if a request is about one only.
fn single_key(request: &Request) -> Option<&[u8]> {
    let is_single = match request {
        Request::Range(range) => range.range_end.is_empty(),
        Request::Delete(delete) => delete.range_end.is_empty(),
        Request::Put(_) | Request::Txn(_) => true,
        _ => false,
    };
    request.key().filter(|_| is_single).map(|key| &key.0[..])
}

/// At which revisions keys came to be as they are, as far as an answer says so; 0 for a
/// key that is not there.
fn states<'a>(request: &'a Request, response: &Response) -> Vec<(&'a [u8], i64)> {
    match request {
        Request::Put(put) => vec![(&put.key.0, response.revision)],
        Request::Delete(delete) if delete.range_end.is_empty() => vec![(&delete.key.0, 0)],
        Request::Range(range) if range.range_end.is_empty() && range.revision == 0 => {
            vec![(&range.key.0, response.mod_revision)]
        }
        Request::Txn(txn) => {
            let held = response.succeeded == Some(true);
            let branch = if held { &txn.success } else { &txn.failure };
            let gets = branch.iter().filter(|request| matches!(request, Request::Range(_)));
            let is_only_get = gets.count() == 1;
            branch
                .iter()
                .filter(|request| is_only_get || !matches!(request, Request::Range(_)))
                .flat_map(|request| states(request, response))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Says how far it is where no bar can be drawn.
async fn narrate(progress: ProgressBar) {
    while !std::io::stderr().is_terminal() {
        tokio::time::sleep(PROGRESS_LINE).await;
        eprintln!("    replay {}", progress.position());
    }
}
