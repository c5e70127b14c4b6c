//! The thread that decodes events and writes them to the trace file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use trace::{ClientMessage, End, Missing, Open, Record, Request, ServerMessage, Values, Writer};

use crate::event::{Call, Event};
use crate::metrics::Metrics;
use crate::side::Side;

/// How long the thread sleeps when the queue is empty. If the tap woke the thread for each
/// event, forwarding would cost an additional system call.
pub const IDLE_SLEEP: Duration = Duration::from_millis(2);
/// Interval between flushes of the file. If the proxy is killed, the trace lacks the events of
/// about the last interval.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time between warnings about missing records.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Writes events to a trace file, in a thread of its own.
pub struct TraceWriter {
    /// The trace file; `None` after an I/O error.
    pub output: Option<Writer>,
    /// The recorder's queue.
    pub events: Receiver<Event>,
    /// Number of missing records that the trace does not contain yet.
    pub missing: Arc<AtomicU64>,
    /// The start of the trace.
    pub start: Instant,
    pub values: Values,
    pub metrics: Arc<Metrics>,
    /// When the file was last flushed.
    pub last_flush: Instant,
    /// When the last warning about missing records was logged.
    pub last_warning: Option<Instant>,
    /// Number of missing records since the last warning.
    pub missing_since_warning: u64,
}

impl TraceWriter {
    /// Writes `head` and then the events, until `stop` is set and the queue is empty.
    pub fn run(&mut self, head: &Record, stop: &AtomicBool) {
        self.write(head);
        self.flush();
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            // An event is dropped when the queue is full. The missing events are therefore
            // newer than the queued ones, and are reported after them.
            let (queued, missing) = (self.events.len(), self.missing.swap(0, Ordering::Relaxed));
            for event in self.events.try_iter().take(queued).collect::<Vec<_>>() {
                let record = self.record(event);
                self.write(&record);
            }
            self.report_missing(missing);
            if self.last_flush.elapsed() >= FLUSH_INTERVAL {
                self.flush();
            }
            if queued == 0 && stopping {
                break;
            }
            if queued == 0 {
                std::thread::sleep(IDLE_SLEEP);
            }
        }
        if let Some(output) = self.output.take()
            && let Err(error) = output.finish()
        {
            tracing::error!(%error, "failed to complete the trace file");
        }
    }

    /// Reports missing records in the trace and the metrics, and at most once per
    /// [`WARNING_INTERVAL`] in the log.
    fn report_missing(&mut self, records: u64) {
        if records > 0 {
            self.metrics.records_missing(records);
            self.missing_since_warning += records;
            let time = self.trace_time(Instant::now());
            self.write(&Record::Missing(Missing { time, records }));
        }
        let may_warn = self.last_warning.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL);
        if self.missing_since_warning > 0 && may_warn {
            let records = std::mem::take(&mut self.missing_since_warning);
            tracing::warn!(
                records,
                "records are missing in the trace: the recorder cannot keep up, or stopped recording a connection"
            );
            self.last_warning = Some(Instant::now());
        }
    }

    /// Writes a record and updates the metrics, which do not count [`Record::Head`] and
    /// [`Record::Missing`].
    fn write(&mut self, record: &Record) {
        let is_counted = !matches!(record, Record::Head(_) | Record::Missing(_));
        match self.output.as_mut().map(|output| output.write(record)) {
            Some(Ok(())) => self.metrics.records_written(u64::from(is_counted)),
            Some(Err(error)) => self.fail(&error),
            None => self.metrics.records_missing(u64::from(is_counted)),
        }
    }

    fn flush(&mut self) {
        self.last_flush = Instant::now();
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

    /// The nanoseconds from the start of the trace to `time`.
    fn trace_time(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// Decodes the messages of an event and converts it to a record.
    fn record(&self, event: Event) -> Record {
        match event {
            Event::Call(call) => self.call_record(*call),
            Event::Open { time, conn, stream, method } => Record::Open(Open {
                time: self.trace_time(time),
                conn,
                stream,
                method: (*method).into(),
            }),
            Event::Message { time, conn, stream, side: Side::Client, method, message } => {
                let request = self.decode_request(&method, message.content);
                let (kind, namespace) = kind_and_namespace(request.as_ref());
                let (time, bytes) = (self.trace_time(time), message.size);
                Record::ClientMessage(ClientMessage {
                    time,
                    conn,
                    stream,
                    bytes,
                    kind,
                    namespace,
                    request,
                })
            }
            Event::Message { time, conn, stream, side: Side::Server, method, message } => {
                let response =
                    message.content.and_then(|bytes| trace::decode_response(&method, bytes));
                let (time, bytes) = (self.trace_time(time), message.size);
                Record::ServerMessage(ServerMessage { time, conn, stream, bytes, response })
            }
            Event::End { time, latency, conn, stream, outcome } => Record::End(End {
                time: self.trace_time(time),
                latency: latency.as_nanos() as u64,
                conn,
                stream,
                end: outcome,
            }),
        }
    }

    fn call_record(&self, call: Call) -> Record {
        let request = self.decode_request(&call.method, call.request.content);
        let response =
            call.response.content.and_then(|bytes| trace::decode_response(&call.method, bytes));
        let (kind, namespace) = kind_and_namespace(request.as_ref());
        let shape = matches!(request, Some(Request::Txn(_)))
            .then(|| trace::shape(&call.method, request.as_ref()).text);
        Record::Call(Box::new(trace::Call {
            time: self.trace_time(call.time),
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

    fn decode_request(&self, method: &str, message: Option<Bytes>) -> Option<Request> {
        trace::decode_request(method, message?, self.values)
    }
}

/// The kind and namespace of the request's key.
fn kind_and_namespace(request: Option<&Request>) -> (Option<String>, Option<String>) {
    let object = request.and_then(Request::key).and_then(|key| trace::object_of_key(&key.0));
    match object {
        Some(object) => (Some(object.kind.into()), object.namespace.map(Into::into)),
        None => (None, None),
    }
}
