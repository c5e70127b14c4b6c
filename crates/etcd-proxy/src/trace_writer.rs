//! The thread that decodes events and writes them to the trace file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use trace::{End, Missing, Open, Received, Record, Request, Sent, Values, Writer};

use crate::event::{Call, Event};
use crate::metrics::Metrics;
use crate::side::Side;

/// How long the thread sleeps when the queue is empty. Waking it for each event would
/// cost a system call in the forwarding path.
pub const IDLE: Duration = Duration::from_millis(2);
/// How often the file is flushed. A killed proxy loses at most this much of the trace.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time between warnings about missing records.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Writes events to a trace file, in a thread of its own.
pub struct TraceWriter {
    /// None after an I/O error.
    pub output: Option<Writer>,
    pub events: Receiver<Event>,
    /// Number of records that were dropped since the writer last checked.
    pub missing: Arc<AtomicU64>,
    /// The start of the trace.
    pub start: Instant,
    pub values: Values,
    pub metrics: Arc<Metrics>,
    /// The last flush.
    pub flushed: Instant,
    /// The last warning about missing records.
    pub warned: Option<Instant>,
    /// Missing records since the last warning.
    pub missing_unreported: u64,
}

impl TraceWriter {
    /// Writes until `stop` is set and the queue is empty.
    pub fn run(&mut self, head: &Record, stop: &AtomicBool) {
        self.write(head);
        self.flush();
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            // Events are dropped when the queue is full, so the missing ones come after the
            // queued ones.
            let (waiting, missing) = (self.events.len(), self.missing.swap(0, Ordering::Relaxed));
            for event in self.events.try_iter().take(waiting).collect::<Vec<_>>() {
                let record = self.record(event);
                self.write(&record);
            }
            self.report_missing(missing);
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
            tracing::error!(%error, "failed to complete the trace file");
        }
    }

    /// Reports missing records in the file and, at intervals, in the log.
    fn report_missing(&mut self, records: u64) {
        if records > 0 {
            self.metrics.records_missing(records);
            self.missing_unreported += records;
            let time = self.since(Instant::now());
            self.write(&Record::Missing(Missing { time, records }));
        }
        let may_warn = self.warned.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL);
        if self.missing_unreported > 0 && may_warn {
            let records = std::mem::take(&mut self.missing_unreported);
            tracing::warn!(records, "records are missing: the recorder cannot keep up");
            self.warned = Some(Instant::now());
        }
    }

    fn write(&mut self, record: &Record) {
        let is_counted = !matches!(record, Record::Head(_) | Record::Missing(_));
        match self.output.as_mut().map(|output| output.write(record)) {
            Some(Ok(())) => self.metrics.records_written(u64::from(is_counted)),
            Some(Err(error)) => self.fail(&error),
            None => self.metrics.records_missing(u64::from(is_counted)),
        }
    }

    fn flush(&mut self) {
        self.flushed = Instant::now();
        if let Some(Err(error)) = self.output.as_mut().map(Writer::flush) {
            self.fail(&error);
        }
    }

    /// Stops recording after an I/O error, because the state of the file is unknown.
    /// Forwarding continues.
    fn fail(&mut self, error: &io::Error) {
        tracing::error!(%error, "failed to write the trace file; forwarding continues without recording");
        self.metrics.recorder_failed();
        self.output = None;
        self.metrics.records_missing(1);
    }

    /// Nanoseconds since the start of the trace.
    fn since(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.start).as_nanos() as u64
    }

    fn record(&self, event: Event) -> Record {
        match event {
            Event::Call(call) => self.call(*call),
            Event::Open { time, conn, stream, method } => Record::Open(Open {
                time: self.since(time),
                conn,
                stream,
                method: (*method).into(),
            }),
            Event::Message { time, conn, stream, side: Side::Client, method, message } => {
                let request = self.request(&method, message.kept);
                let (kind, namespace) = kind_and_namespace(request.as_ref());
                let (time, bytes) = (self.since(time), message.size);
                Record::Sent(Sent { time, conn, stream, bytes, kind, namespace, request })
            }
            Event::Message { time, conn, stream, side: Side::Server, method, message } => {
                let response = message.kept.and_then(|bytes| trace::response(&method, bytes));
                let (time, bytes) = (self.since(time), message.size);
                Record::Received(Received { time, conn, stream, bytes, response })
            }
            Event::End { time, latency, conn, stream, outcome } => Record::End(End {
                time: self.since(time),
                latency: latency.as_nanos() as u64,
                conn,
                stream,
                end: outcome,
            }),
        }
    }

    fn call(&self, call: Call) -> Record {
        let request = self.request(&call.method, call.request.kept);
        let response = call.response.kept.and_then(|bytes| trace::response(&call.method, bytes));
        let (kind, namespace) = kind_and_namespace(request.as_ref());
        let shape = matches!(request, Some(Request::Txn(_)))
            .then(|| trace::shape(&call.method, request.as_ref()).text);
        Record::Call(Box::new(trace::Call {
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

/// The kind and namespace of the request's key.
fn kind_and_namespace(request: Option<&Request>) -> (Option<String>, Option<String>) {
    let object = request.and_then(Request::key).and_then(|key| trace::object(&key.0));
    match object {
        Some(object) => (Some(object.kind.into()), object.namespace.map(Into::into)),
        None => (None, None),
    }
}
