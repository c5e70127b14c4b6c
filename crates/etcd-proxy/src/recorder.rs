//! The recorder: a bounded queue from the taps to the thread that writes the trace.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use crossbeam_channel::{Sender, bounded};
use trace::{Compression, Head, Record, Writer};

use crate::event::Event;
use crate::messages::Budget;
use crate::metrics::Metrics;
use crate::options::Serve;
use crate::trace_file;
use crate::trace_writer::{IDLE_SLEEP, TraceWriter};

/// The memory budget in bytes for messages that are incomplete or not yet written. Of further
/// messages, only the size is recorded.
const MESSAGE_BUDGET_BYTES: usize = 256 << 20;
/// How long the shutdown waits until the queued events are written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);

/// Queues events without blocking. Events that do not fit into the queue are dropped and
/// counted.
#[derive(Clone)]
pub struct Recorder {
    queue: Sender<Event>,
    budget: Budget,
    missing: Arc<AtomicU64>,
}

impl Recorder {
    /// Creates a recorder without a thread, and returns it with the receiver of its events.
    #[cfg(test)]
    pub fn for_tests(capacity: usize) -> (Recorder, crossbeam_channel::Receiver<Event>) {
        let (queue, events) = bounded(capacity);
        (
            Recorder { queue, budget: Budget::new(MESSAGE_BUDGET_BYTES), missing: Arc::default() },
            events,
        )
    }

    /// Queues `event`. If the queue is full, drops it and counts a missing record.
    pub fn record(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.add_missing(1);
        }
    }

    /// Counts records as missing.
    pub fn add_missing(&self, records: u64) {
        self.missing.fetch_add(records, Ordering::Relaxed);
    }

    /// The memory budget for messages.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

/// The running recorder thread.
pub struct RecorderThread {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

/// Creates the trace file and starts the recorder's thread.
pub fn start(
    serve: &Serve,
    path: &Path,
    metrics: Arc<Metrics>,
) -> Result<(Recorder, RecorderThread)> {
    let (file, path) =
        trace_file::create(path).with_context(|| format!("record to {}", path.display()))?;
    let compression = serve.compress.unwrap_or(Compression::for_path(&path));
    let (queue, events) = bounded(serve.record_queue);
    let missing = Arc::new(AtomicU64::new(0));
    let recorder =
        Recorder { queue, budget: Budget::new(MESSAGE_BUDGET_BYTES), missing: missing.clone() };
    let stop = Arc::new(AtomicBool::new(false));
    let head = head(serve);
    tracing::info!(file = %path.display(), values = %serve.values, "recording a trace");
    let mut writer = TraceWriter {
        output: Some(Writer::new(file, compression)?),
        events,
        missing,
        start: Instant::now(),
        values: serve.values,
        metrics,
        last_flush: Instant::now(),
        last_warning: None,
        missing_since_warning: 0,
    };
    let stop_writer = stop.clone();
    let thread = std::thread::Builder::new()
        .name("recorder".into())
        .spawn(move || writer.run(&head, &stop_writer))?;
    Ok((recorder, RecorderThread { thread, stop }))
}

/// The first record of the trace.
fn head(serve: &Serve) -> Record {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Record::Head(Head {
        version: trace::VERSION,
        program: concat!("etcd-proxy ", env!("CARGO_PKG_VERSION")).into(),
        started_unix_ns: since_1970.as_nanos() as u64,
        endpoints: serve.endpoints.iter().map(ToString::to_string).collect(),
        values: serve.values,
    })
}

impl RecorderThread {
    /// Waits until the queued events are written and the file is completed, but at most
    /// [`FINISH_TIMEOUT`].
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + FINISH_TIMEOUT;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                return tracing::warn!(
                    "timed out writing the trace file; its last records are missing"
                );
            }
            std::thread::sleep(IDLE_SLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use clap::Parser;
    use trace::Reader;

    use super::*;
    use crate::options::Options;

    fn serve(flags: &[&str]) -> Serve {
        let args = ["etcd-proxy"].iter().chain(flags);
        Options::try_parse_from(args).unwrap().serve
    }

    fn open_event(stream: u32) -> Event {
        Event::Open { time: Instant::now(), conn: 1, stream, method: "/a.B/C".into() }
    }

    #[test]
    fn events_are_written_and_existing_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl.zst");
        for name in ["trace.jsonl.zst", "trace-2.jsonl.zst"] {
            let metrics = Arc::new(Metrics::new());
            let (recorder, thread) = start(&serve(&[]), &path, metrics).unwrap();
            recorder.record(open_event(1));
            recorder.record(open_event(3));
            thread.finish();
            let records: Vec<_> = Reader::open(&dir.path().join(name)).unwrap().collect();
            assert!(
                matches!(&records[..], [Ok(Record::Open(_)), Ok(Record::Open(open))] if open.stream == 3)
            );
        }
        let failed = start(&serve(&[]), &dir.path().join("no/where"), Arc::new(Metrics::new()));
        assert!(format!("{:#}", failed.err().unwrap()).starts_with("record to "));
    }

    /// While writing to the file blocks, [`Recorder::record`] does not block, and counts the
    /// events that do not fit into the queue. After the file accepts data again, it contains the
    /// number of missing records. The file is a pipe that nobody reads at first.
    #[test]
    fn a_blocked_writer_counts_missing_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let metrics = Arc::new(Metrics::new());
        let serve = serve(&["--record", "x", "--record-queue", "100", "--compress", "none"]);
        let (recorder, thread) = start(&serve, &path, metrics.clone()).unwrap();
        const EVENTS: u64 = 20_000;
        let started = Instant::now();
        for stream in 0..EVENTS {
            recorder.record(open_event(stream as u32));
        }
        assert!(started.elapsed() < Duration::from_secs(60), "recording blocked on the pipe");
        // Reads until the records and the numbers of missing records add up to all events.
        let mut pipe = File::open(&path).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
            loop {
                let read = pipe.read(&mut buffer).unwrap();
                text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
                if !text.ends_with('\n') {
                    continue;
                }
                let records =
                    text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap());
                let (written, missing) =
                    records.fold((0, 0), |(written, missing), record| match record {
                        Record::Missing(record) => (written, missing + record.records),
                        Record::Head(_) => (written, missing),
                        _ => (written + 1, missing),
                    });
                if written + missing == EVENTS {
                    return missing;
                }
            }
        });
        thread.finish();
        let missing = reader.join().unwrap();
        assert!(
            missing > 0 && missing < EVENTS,
            "{missing} of {EVENTS} records are missing; want some but not all"
        );
        assert_eq!(metrics.record_counts(), (EVENTS - missing, missing));
    }
}
