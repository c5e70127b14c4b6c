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
use crate::trace_writer::{IDLE, TraceWriter};

/// Maximum bytes of messages that wait to be written. For further messages, only the size
/// is recorded.
const KEPT_BYTES: usize = 256 << 20;
/// How long the shutdown waits for the queue to be written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);

/// Accepts events without blocking. Events that do not fit into the queue are counted.
#[derive(Clone)]
pub struct Recorder {
    queue: Sender<Event>,
    budget: Budget,
    missing: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder without a thread. The test receives the events.
    #[cfg(test)]
    pub fn for_tests(queue: usize) -> (Recorder, crossbeam_channel::Receiver<Event>) {
        let (queue, events) = bounded(queue);
        (Recorder { queue, budget: Budget::new(KEPT_BYTES), missing: Arc::default() }, events)
    }

    /// Queues `event`, or counts it as missing if the queue is full.
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

/// Creates the trace file and starts the recorder thread.
pub fn start(
    serve: &Serve,
    path: &Path,
    metrics: Arc<Metrics>,
) -> Result<(Recorder, RecorderThread)> {
    let (file, path) =
        trace_file::create(path).with_context(|| format!("record to {}", path.display()))?;
    let compression = serve.compress.unwrap_or(Compression::of(&path));
    let (queue, events) = bounded(serve.record_queue);
    let missing = Arc::new(AtomicU64::new(0));
    let recorder = Recorder { queue, budget: Budget::new(KEPT_BYTES), missing: missing.clone() };
    let stop = Arc::new(AtomicBool::new(false));
    let head = head(serve);
    tracing::info!(file = %path.display(), values = %serve.values, "recording");
    let mut writer = TraceWriter {
        output: Some(Writer::new(file, compression)?),
        events,
        missing,
        start: Instant::now(),
        values: serve.values,
        metrics,
        flushed: Instant::now(),
        warned: None,
        missing_unreported: 0,
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
    /// Writes the queued events and completes the file. Gives up after a timeout if the
    /// disk blocks.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + FINISH_TIMEOUT;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                return tracing::warn!(
                    "timed out writing the trace file; its last records are missing"
                );
            }
            std::thread::sleep(IDLE);
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

    fn opened(number: u32) -> Event {
        Event::Open { time: Instant::now(), conn: 1, stream: number, method: "/a.B/C".into() }
    }

    #[test]
    fn events_are_written_and_existing_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl.zst");
        for name in ["trace.jsonl.zst", "trace-2.jsonl.zst"] {
            let metrics = Arc::new(Metrics::new());
            let (recorder, thread) = start(&serve(&[]), &path, metrics).unwrap();
            recorder.record(opened(1));
            recorder.record(opened(3));
            thread.finish();
            let records: Vec<_> = Reader::open(&dir.path().join(name)).unwrap().collect();
            assert!(
                matches!(&records[..], [Ok(Record::Open(_)), Ok(Record::Open(open))] if open.stream == 3)
            );
        }
        let failed = start(&serve(&[]), &dir.path().join("no/where"), Arc::new(Metrics::new()));
        assert!(format!("{:#}", failed.err().unwrap()).starts_with("record to "));
    }

    /// While the disk blocks, events are counted and recording does not block. After the
    /// disk accepts data again, the file contains the number of missing records.
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
        for number in 0..EVENTS {
            recorder.record(opened(number as u32));
        }
        assert!(started.elapsed() < Duration::from_secs(2), "recording blocked on the disk");
        // Every event is in the pipe, as a record or counted as missing.
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
                let count = |record| match record {
                    Record::Missing(missing) => missing.records,
                    Record::Head(_) => 0,
                    _ => 1,
                };
                let (all, missing) = records.fold((0, 0), |(all, missing), record| {
                    let is_missing = matches!(record, Record::Missing(_));
                    let count = count(record);
                    (all + count, missing + if is_missing { count } else { 0 })
                });
                if all == EVENTS {
                    return missing;
                }
            }
        });
        thread.finish();
        let missing = reader.join().unwrap();
        assert!(missing > 0 && missing < EVENTS, "{missing} are missing");
        assert_eq!(metrics.record_counts(), (EVENTS - missing, missing));
    }
}
