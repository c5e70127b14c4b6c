//! The recorder: a bounded queue, a thread that decodes and writes, and an account of
//! what did not fit.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use trace::{
    Compression, End, Head, Line, Missing, Open, Outcome, Received, Request, Sent, Values, Writer,
};

use crate::messages::{Budget, Message};
use crate::metrics::Metrics;
use crate::options::Serve;
use crate::tap::Side;

/// Bytes of messages that are kept until they are written; larger ones, and those that
/// come when so many wait, are recorded by their sizes.
const KEPT_BYTES: usize = 256 << 20;
/// How long the thread sleeps when there is nothing to write. Nobody wakes it: that
/// would be a system call for each event, on the way of what is forwarded.
const IDLE: Duration = Duration::from_millis(2);
/// What a killed proxy may leave unwritten.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// How often it says that lines are missing.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end waits for what is in the queue.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);
/// Recordings of one name.
const FILES: u32 = 10_000;

/// What a tap has heard.
pub enum Event {
    Call(Box<Call>),
    Open {
        time: Instant,
        conn: u64,
        stream: u32,
        method: Arc<str>,
    },
    Message {
        time: Instant,
        conn: u64,
        stream: u32,
        side: Side,
        method: Arc<str>,
        message: Message,
    },
    End {
        time: Instant,
        latency: Duration,
        conn: u64,
        stream: u32,
        outcome: Outcome,
    },
}

/// A call that is over.
pub struct Call {
    pub time: Instant,
    pub latency: Duration,
    pub conn: u64,
    pub stream: u32,
    pub method: Arc<str>,
    pub request: Message,
    pub response: Message,
    pub outcome: Outcome,
}

/// Takes events, and never waits.
#[derive(Clone)]
pub struct Recorder {
    queue: Sender<Event>,
    budget: Budget,
    missing: Arc<AtomicU64>,
}

impl Recorder {
    /// Without a thread: whoever holds the other end sees what comes.
    #[cfg(test)]
    pub fn for_tests(queue: usize) -> (Recorder, Receiver<Event>) {
        let (queue, events) = bounded(queue);
        (Recorder { queue, budget: Budget::new(KEPT_BYTES), missing: Arc::default() }, events)
    }

    /// Has `event` written, or counts it.
    pub fn record(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.lost(1);
        }
    }

    /// Counts so many lines as missing.
    pub fn lost(&self, lines: u64) {
        self.missing.fetch_add(lines, Ordering::Relaxed);
    }

    /// What messages are kept within.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

/// The thread that writes.
pub struct Recording {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

/// Opens the file and begins.
pub fn start(serve: &Serve, path: &Path, metrics: Arc<Metrics>) -> Result<(Recorder, Recording)> {
    let (file, path) = create(path).with_context(|| format!("record to {}", path.display()))?;
    let compression = serve.compress.unwrap_or(Compression::of(&path));
    let (queue, events) = bounded(serve.record_queue);
    let missing = Arc::new(AtomicU64::new(0));
    let recorder = Recorder { queue, budget: Budget::new(KEPT_BYTES), missing: missing.clone() };
    let stop = Arc::new(AtomicBool::new(false));
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let head = Line::Head(Head {
        version: trace::VERSION,
        program: concat!("etcd-proxy ", env!("CARGO_PKG_VERSION")).into(),
        started_unix_ns: since_1970.as_nanos() as u64,
        endpoints: serve.endpoints.iter().map(ToString::to_string).collect(),
        values: serve.values,
    });
    tracing::info!(file = %path.display(), values = %serve.values, "recording");
    let mut scribe = Scribe {
        output: Some(Writer::new(file, compression)?),
        events,
        missing,
        start: Instant::now(),
        values: serve.values,
        metrics,
        flushed: Instant::now(),
        complained: None,
        unsaid: 0,
    };
    let stopping = stop.clone();
    let thread = std::thread::Builder::new()
        .name("recorder".into())
        .spawn(move || scribe.run(&head, &stopping))?;
    Ok((recorder, Recording { thread, stop }))
}

impl Recording {
    /// Writes what is in the queue and ends the file; gives up after a while, should
    /// the disk not take it.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + FINISH_TIMEOUT;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                return tracing::warn!("the disk takes no more; the recording has no end");
            }
            std::thread::sleep(IDLE);
        }
    }
}

/// A file that was not there before, or a pipe.
fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_file()) {
        // Opened for reading as well, a pipe that nobody reads from does not make us wait.
        return Ok((OpenOptions::new().read(true).write(true).open(path)?, path.into()));
    }
    for number in 1..FILES {
        let path = numbered(path, number);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `a/trace.jsonl.zst` is `a/trace-2.jsonl.zst` the second time.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, ends) = name.split_once('.').map_or((&*name, ""), |(stem, ends)| (stem, ends));
    match number {
        1 => path.into(),
        _ if ends.is_empty() => path.with_file_name(format!("{stem}-{number}")),
        _ => path.with_file_name(format!("{stem}-{number}.{ends}")),
    }
}

/// What the thread works with.
struct Scribe {
    /// None after the disk has failed.
    output: Option<Writer>,
    events: Receiver<Event>,
    missing: Arc<AtomicU64>,
    start: Instant,
    values: Values,
    metrics: Arc<Metrics>,
    flushed: Instant,
    complained: Option<Instant>,
    /// Lines that are missing and of which nothing was said yet.
    unsaid: u64,
}

impl Scribe {
    fn run(&mut self, head: &Line, stop: &AtomicBool) {
        self.write(head);
        self.flush();
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            // What is missing came after what is in the queue now.
            let (waiting, missing) = (self.events.len(), self.missing.swap(0, Ordering::Relaxed));
            for event in self.events.try_iter().take(waiting).collect::<Vec<_>>() {
                let line = self.line(event);
                self.write(&line);
            }
            self.confess(missing);
            if self.flushed.elapsed() >= FLUSH_INTERVAL {
                self.flush();
            }
            if waiting == 0 && stopping {
                break;
            }
            if waiting == 0 {
                std::thread::sleep(IDLE);
            }
        }
        if let Some(output) = self.output.take()
            && let Err(error) = output.finish()
        {
            tracing::error!(%error, "the recording could not be ended");
        }
    }

    /// Says that lines are missing: in the file, and now and then in the log.
    fn confess(&mut self, lines: u64) {
        if lines > 0 {
            self.metrics.missing(lines);
            self.unsaid += lines;
            let time = self.since(Instant::now());
            self.write(&Line::Missing(Missing { time, lines }));
        }
        let quiet = self.complained.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL);
        if self.unsaid > 0 && quiet {
            let lines = std::mem::take(&mut self.unsaid);
            tracing::warn!(lines, "not recorded: the recorder cannot keep up");
            self.complained = Some(Instant::now());
        }
    }

    fn write(&mut self, line: &Line) {
        let is_record = !matches!(line, Line::Head(_) | Line::Missing(_));
        match self.output.as_mut().map(|output| output.line(line)) {
            Some(Ok(())) => self.metrics.written(u64::from(is_record)),
            Some(Err(error)) => self.fail(&error),
            None => self.missing_for_good(u64::from(is_record)),
        }
    }

    fn flush(&mut self) {
        self.flushed = Instant::now();
        if let Some(Err(error)) = self.output.as_mut().map(Writer::flush) {
            self.fail(&error);
        }
    }

    /// The disk has failed: nothing more is written, as nobody could tell what is there
    /// of it. Forwarding goes on.
    fn fail(&mut self, error: &io::Error) {
        tracing::error!(%error, "the recording ends here; what is forwarded is not recorded");
        self.metrics.recorder_failed();
        self.output = None;
        self.missing_for_good(1);
    }

    fn missing_for_good(&mut self, lines: u64) {
        self.metrics.missing(lines);
    }

    fn since(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.start).as_nanos() as u64
    }

    fn line(&self, event: Event) -> Line {
        match event {
            Event::Call(call) => self.call(*call),
            Event::Open { time, conn, stream, method } => {
                Line::Open(Open { time: self.since(time), conn, stream, method: (*method).into() })
            }
            Event::Message { time, conn, stream, side: Side::Client, method, message } => {
                let request = self.request(&method, message.kept);
                let (kind, namespace) = about(request.as_ref());
                let (time, bytes) = (self.since(time), message.size);
                Line::Sent(Sent { time, conn, stream, bytes, kind, namespace, request })
            }
            Event::Message { time, conn, stream, side: Side::Server, method, message } => {
                let response = message.kept.and_then(|bytes| trace::response(&method, bytes));
                let (time, bytes) = (self.since(time), message.size);
                Line::Received(Received { time, conn, stream, bytes, response })
            }
            Event::End { time, latency, conn, stream, outcome } => Line::End(End {
                time: self.since(time),
                latency: latency.as_nanos() as u64,
                conn,
                stream,
                end: outcome,
            }),
        }
    }

    fn call(&self, call: Call) -> Line {
        let request = self.request(&call.method, call.request.kept);
        let response = call.response.kept.and_then(|bytes| trace::response(&call.method, bytes));
        let (kind, namespace) = about(request.as_ref());
        let shape = matches!(request, Some(Request::Txn(_)))
            .then(|| trace::shape(&call.method, request.as_ref()).text);
        Line::Call(Box::new(trace::Call {
            time: self.since(call.time),
            latency: call.latency.as_nanos() as u64,
            conn: call.conn,
            stream: call.stream,
            method: (*call.method).into(),
            request_bytes: call.request.size,
            response_bytes: call.response.size,
            kind,
            namespace,
            shape,
            request,
            response,
            end: call.outcome,
        }))
    }

    fn request(&self, method: &str, message: Option<Bytes>) -> Option<Request> {
        trace::request(method, message?, self.values)
    }
}

/// Kind and namespace of a request.
fn about(request: Option<&Request>) -> (Option<String>, Option<String>) {
    let object = request.and_then(Request::key).and_then(|key| trace::object(&key.0));
    match object {
        Some(object) => (Some(object.kind.into()), object.namespace.map(Into::into)),
        None => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use clap::Parser;
    use trace::Reader;

    use super::*;
    use crate::options::Options;

    fn serve(flags: &[&str]) -> Serve {
        let args = ["etcd-proxy"].iter().chain(flags);
        Options::try_parse_from(args).unwrap().serve
    }

    fn opened(number: u32) -> Event {
        Event::Open { time: Instant::now(), conn: 1, stream: number, method: "/a.B/C".into() }
    }

    #[test]
    fn what_is_heard_is_written_and_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl.zst");
        for name in ["trace.jsonl.zst", "trace-2.jsonl.zst"] {
            let metrics = Arc::new(Metrics::new());
            let (recorder, recording) = start(&serve(&[]), &path, metrics).unwrap();
            recorder.record(opened(1));
            recorder.record(opened(3));
            recording.finish();
            let lines: Vec<_> = Reader::open(&dir.path().join(name)).unwrap().collect();
            assert!(
                matches!(&lines[..], [Ok(Line::Open(_)), Ok(Line::Open(open))] if open.stream == 3)
            );
        }
        let nowhere = start(&serve(&[]), &dir.path().join("no/where"), Arc::new(Metrics::new()));
        assert!(format!("{:#}", nowhere.err().unwrap()).starts_with("record to "));
    }

    /// A disk that takes nothing: events are counted, nobody waits, and once the disk
    /// takes something again the file says how many there are not.
    #[test]
    fn a_writer_that_is_blocked_loses_lines_and_counts_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let metrics = Arc::new(Metrics::new());
        let serve = serve(&["--record", "x", "--record-queue", "100", "--compress", "none"]);
        let (recorder, recording) = start(&serve, &path, metrics.clone()).unwrap();
        const EVENTS: u64 = 20_000;
        let begun = Instant::now();
        for number in 0..EVENTS {
            recorder.record(opened(number as u32));
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "it waited for the disk");
        // Whoever reads the pipe now finds every event, as a line or as missing.
        let mut pipe = File::open(&path).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
            loop {
                let read = pipe.read(&mut buffer).unwrap();
                text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
                if !text.ends_with('\n') {
                    continue;
                }
                let lines = text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap());
                let count = |line| match line {
                    Line::Missing(missing) => missing.lines,
                    Line::Head(_) => 0,
                    _ => 1,
                };
                let (all, missing) = lines.fold((0, 0), |(all, missing), line| {
                    let is_missing = matches!(line, Line::Missing(_));
                    let count = count(line);
                    (all + count, missing + if is_missing { count } else { 0 })
                });
                if all == EVENTS {
                    return missing;
                }
            }
        });
        recording.finish();
        let missing = reader.join().unwrap();
        assert!(missing > 0 && missing < EVENTS, "{missing} are missing");
        assert_eq!(metrics.records(), (EVENTS - missing, missing));
    }
}
