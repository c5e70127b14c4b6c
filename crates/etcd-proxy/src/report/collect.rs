//! The collector: adds up the records of traces. `shape_and_kind_totals`, `limit_totals` and
//! `lease_totals` contain the totals of shapes and kinds, of ranges, and of leases.

use std::collections::{HashMap, HashSet};

use trace::{
    Call, Class, ClientMessage, End, Head, Outcome, Record, Request, ServerMessage, WatchResponse,
    shape, span_kind,
};

use super::events::RecentEvents;
use super::lease_totals::LeaseTotals;
use super::limit_totals::LimitTotals;
use super::shape_and_kind_totals::{
    KindTotals, MAX_NAMES, MAX_TRACKED, OTHERS, ShapeTotals, class_rows, name_or_others, sorted,
};
use super::summary::{ErrorRow, KindRow, Summary, TraceTotals, WatchRow, Watches};

/// The totals of the records so far.
#[derive(Default)]
pub struct Collector {
    totals: TraceTotals,
    shapes: HashMap<String, ShapeTotals>,
    kinds: HashMap<String, KindTotals>,
    limits: LimitTotals,
    /// Number of failed calls and streams by method and error.
    errors: HashMap<(String, String), u64>,
    /// The open streams by connection ID and HTTP/2 stream ID.
    streams: HashMap<(u64, u32), OpenStream>,
    watches: Watches,
    /// The watches by kind and span.
    watch_rows: HashMap<(String, &'static str), WatchRow>,
    events: RecentEvents,
    leases: LeaseTotals,
    /// The connection IDs of the current file.
    connections: HashSet<u64>,
    /// The latest time in the current file, in nanoseconds since its start.
    last_time: u64,
}

/// An open stream.
struct OpenStream {
    method: String,
    /// The shape of its first request.
    shape: Option<String>,
    /// Kind and span of its watches, by watch ID.
    watches: HashMap<i64, (String, &'static str)>,
    /// Kind and span of the watches that the client has requested and the server has not yet
    /// created, in the order of the requests. The server responds in this order.
    pending_watches: Vec<(String, &'static str)>,
    /// The limit of its range.
    limit: Option<i64>,
}

impl Collector {
    /// Starts a file: the next records are those of this file.
    pub fn start_file(&mut self, head: &Head) {
        if self.totals.files == 0 {
            self.totals.program.clone_from(&head.program);
            self.totals.endpoints.clone_from(&head.endpoints);
            self.totals.started_unix_ns = head.started_unix_ns;
        }
        self.totals.files += 1;
        self.last_time = 0;
        // Each file has its own connection IDs.
        self.streams.clear();
    }

    /// Ends a file: adds its duration and its connections to the totals.
    pub fn end_file(&mut self, is_truncated: bool) {
        self.totals.truncated_files += u64::from(is_truncated);
        self.totals.seconds += self.last_time as f64 / 1e9;
        self.totals.connections += self.connections.len() as u64;
        self.connections.clear();
    }

    /// Adds a record.
    pub fn add(&mut self, record: Record) {
        self.totals.records += 1;
        match record {
            Record::Head(_) => {}
            Record::Call(call) => self.add_call(*call),
            Record::Open(open) => {
                self.add_time_and_connection(open.time, open.conn);
                self.totals.streams += 1;
                if open.method.ends_with("Watch/Watch") {
                    self.watches.streams += 1;
                }
                if self.streams.len() < MAX_TRACKED {
                    self.streams.insert((open.conn, open.stream), OpenStream::new(open.method));
                }
            }
            Record::ClientMessage(sent) => self.add_client_message(sent),
            Record::ServerMessage(received) => self.add_server_message(received),
            Record::End(end) => self.add_end(end),
            Record::Missing(missing) => {
                self.totals.records -= 1;
                self.totals.missing_records += missing.records;
            }
        }
    }

    /// Extends the duration of the file to `time`, and counts the connection.
    fn add_time_and_connection(&mut self, time: u64, conn: u64) {
        self.last_time = self.last_time.max(time);
        self.connections.insert(conn);
    }

    fn add_call(&mut self, call: Call) {
        self.add_time_and_connection(call.time + call.latency, call.conn);
        self.totals.calls += 1;
        let micros = call.latency / 1000;
        let failed = self.count_error(&call.method, &call.end);
        let shape = shape(&call.method, call.request.as_ref());
        let sum = self.shape_totals(&shape.text, shape.class);
        sum.add(call.request_bytes, Some(call.response_bytes), call.kind.as_deref());
        sum.micros.saturating_record(micros);
        sum.failed += u64::from(failed);
        let succeeded = call.response.as_ref().and_then(|response| response.succeeded);
        sum.not_succeeded += u64::from(succeeded == Some(false));
        self.totals.request_bytes += call.request_bytes;
        self.totals.response_bytes += call.response_bytes;
        if let Some(kind) = &call.kind {
            let sum = self.kind_row(kind, call.namespace.as_deref());
            sum.request_bytes += call.request_bytes;
            sum.response_bytes += call.response_bytes;
            match (shape.class, &call.request) {
                (Class::Create | Class::Update | Class::Delete, _) => sum.writes += 1,
                (_, Some(Request::Range(_))) => sum.reads += 1,
                _ => sum.other += 1,
            }
        }
        match &call.request {
            Some(Request::Range(range)) if !range.range_end.is_empty() && !range.count_only => {
                let others = &mut self.totals.counted_as_others;
                let (limit, bytes) = (range.limit, call.response_bytes);
                self.limits.add_range("Range", limit, others);
                self.limits.add_response("Range", limit, call.response.as_ref(), bytes, others);
                self.limits.add_latency("Range", limit, micros, others);
            }
            Some(request) => self.leases.add(request),
            None => {}
        }
    }

    fn add_client_message(&mut self, sent: ClientMessage) {
        self.add_time_and_connection(sent.time, sent.conn);
        self.totals.request_bytes += sent.bytes;
        // The start of the stream may be missing in the trace.
        let stream = self.streams.get(&(sent.conn, sent.stream));
        let method = stream.map_or_else(|| "stream".to_owned(), |stream| stream.method.clone());
        let shape = shape(&method, sent.request.as_ref());
        self.shape_totals(&shape.text, shape.class).add(sent.bytes, None, sent.kind.as_deref());
        if let Some(kind) = &sent.kind {
            let is_watch = matches!(sent.request, Some(Request::WatchCreate(_)));
            let row = self.kind_row(kind, sent.namespace.as_deref());
            row.request_bytes += sent.bytes;
            if is_watch { row.watches += 1 } else { row.reads += 1 }
        }
        let stream = self.streams.get_mut(&(sent.conn, sent.stream));
        match &sent.request {
            Some(Request::WatchCreate(create)) => {
                self.watches.created += 1;
                let kind_and_span =
                    (sent.kind.unwrap_or_default(), span_kind(&create.key.0, &create.range_end.0));
                if let Some(stream) = stream {
                    stream.pending_watches.push(kind_and_span.clone());
                }
                self.watch_row(kind_and_span).created += 1;
            }
            Some(Request::WatchCancel { .. }) => self.watches.cancelled_by_client += 1,
            Some(Request::WatchProgress) => self.watches.progress_requests += 1,
            Some(Request::Range(range)) => {
                if let Some(stream) = stream {
                    stream.limit = Some(range.limit);
                }
                let others = &mut self.totals.counted_as_others;
                self.limits.add_range("RangeStream", range.limit, others);
            }
            Some(request) => self.leases.add(request),
            None => {}
        }
        if let Some(stream) = self.streams.get_mut(&(sent.conn, sent.stream)) {
            stream.shape.get_or_insert(shape.text);
        }
    }

    fn add_server_message(&mut self, received: ServerMessage) {
        self.add_time_and_connection(received.time, received.conn);
        self.totals.response_bytes += received.bytes;
        let stream_id = (received.conn, received.stream);
        let Some(stream) = self.streams.get(&stream_id) else { return };
        let limit = stream.limit;
        if let Some(shape) = stream.shape.clone()
            && let Some(sum) = self.shapes.get_mut(&shape)
        {
            sum.response_bytes += received.bytes;
        }
        let Some(response) = received.response else { return };
        if let (Some(limit), None) = (limit, &response.watch) {
            let others = &mut self.totals.counted_as_others;
            let bytes = received.bytes;
            self.limits.add_response("RangeStream", limit, Some(&response), bytes, others);
        }
        if let Some(response) = response.watch {
            self.add_watch_response(stream_id, response, received.bytes);
        }
    }

    fn add_watch_response(&mut self, stream_id: (u64, u32), response: WatchResponse, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return };
        if response.created && !stream.pending_watches.is_empty() {
            let kind_and_span = stream.pending_watches.remove(0);
            stream.watches.insert(response.watch_id, kind_and_span);
        }
        let kind_and_span = stream.watches.get(&response.watch_id).cloned();
        if response.canceled {
            stream.watches.remove(&response.watch_id);
            self.watches.compacted += u64::from(response.compact_revision > 0);
            self.watches.cancelled_by_server += 1;
        }
        if response.events.is_empty() && !response.created && !response.canceled {
            self.watches.progress_notifications += 1;
        }
        let events = response.events.len() as u64;
        let is_new = |event: &&trace::Event| self.events.insert(&event.key.0, event.mod_revision);
        let distinct = response.events.iter().filter(is_new).count() as u64;
        self.watches.events += events;
        self.watches.distinct_events += distinct;
        if let Some(kind_and_span) = kind_and_span {
            let row = self.kind_row(&kind_and_span.0, None);
            row.events += events;
            row.response_bytes += bytes;
            let row = self.watch_row(kind_and_span);
            row.events += events;
            row.distinct_events += distinct;
        }
    }

    fn add_end(&mut self, end: End) {
        self.add_time_and_connection(end.time, end.conn);
        let Some(stream) = self.streams.remove(&(end.conn, end.stream)) else { return };
        // Code 1 is CANCELLED. A stream that its client has cancelled or closed has not failed,
        // except a RangeStream.
        let is_range = stream.method.ends_with("RangeStream");
        if is_range || end.end.code.is_some_and(|code| code > 1) {
            let failed = self.count_error(&stream.method, &end.end);
            if let Some(sum) = stream.shape.and_then(|shape| self.shapes.get_mut(&shape)) {
                sum.failed += u64::from(failed);
                if is_range {
                    sum.micros.saturating_record(end.latency / 1000);
                }
            }
        }
        if let (true, Some(limit)) = (is_range, stream.limit) {
            let (micros, others) = (end.latency / 1000, &mut self.totals.counted_as_others);
            self.limits.add_latency("RangeStream", limit, micros, others);
        }
    }

    /// Counts the error of a call or stream that has failed. Returns whether it has failed.
    fn count_error(&mut self, method: &str, end: &Outcome) -> bool {
        let error = match (end.code, end.aborted_by) {
            (Some(0), _) => return false,
            (Some(code), _) => format!("code {code}: {}", end.message),
            (None, Some(side)) => format!("aborted by the {side:?}").to_lowercase(),
            (None, None) => "no status".into(),
        };
        let name = method.rsplit('/').next().unwrap_or(method).to_owned();
        let key = self.error_key_or_others((name, error));
        *self.errors.entry(key).or_default() += 1;
        true
    }

    /// Returns `key`, or [`OTHERS`] if `key` is new and the table is full.
    fn error_key_or_others(&mut self, key: (String, String)) -> (String, String) {
        if self.errors.len() < MAX_NAMES || self.errors.contains_key(&key) {
            return key;
        }
        self.totals.counted_as_others += 1;
        (OTHERS.into(), OTHERS.into())
    }

    /// The totals of a shape. Creates them if the shape is new.
    fn shape_totals(&mut self, text: &str, class: Class) -> &mut ShapeTotals {
        let name =
            name_or_others(&self.shapes, text, &mut self.totals.counted_as_others).to_owned();
        self.shapes.entry(name).or_insert_with(|| ShapeTotals::new(class))
    }

    /// The totals of a kind. Creates them if the kind is new, and adds the namespace to them.
    fn kind_row(&mut self, kind: &str, namespace: Option<&str>) -> &mut KindRow {
        let name = name_or_others(&self.kinds, kind, &mut self.totals.counted_as_others).to_owned();
        let sum = self.kinds.entry(name).or_default();
        if let Some(namespace) = namespace.filter(|_| sum.namespaces.len() < MAX_TRACKED)
            && !sum.namespaces.contains(namespace)
        {
            sum.namespaces.insert(namespace.to_owned());
        }
        &mut sum.row
    }

    /// The totals of the watches of a kind and span. Creates them if there are none.
    fn watch_row(&mut self, mut kind_and_span: (String, &'static str)) -> &mut WatchRow {
        if self.watch_rows.len() >= MAX_NAMES && !self.watch_rows.contains_key(&kind_and_span) {
            self.totals.counted_as_others += 1;
            kind_and_span = (OTHERS.into(), OTHERS);
        }
        self.watch_rows.entry(kind_and_span).or_default()
    }

    /// Converts to the report.
    pub fn summary(mut self) -> Summary {
        self.totals.seconds = (self.totals.seconds * 1e3).round() / 1e3;
        self.watches.rows = sorted(
            self.watch_rows,
            |((kind, span), row)| {
                let fan_out = row.events as f64 / row.distinct_events.max(1) as f64;
                let fan_out = (fan_out * 100.0).round() / 100.0;
                WatchRow { kind, span: span.into(), fan_out, ..row }
            },
            |row| (row.created, row.events),
        );
        let shapes = sorted(self.shapes, |(shape, sum)| sum.row(shape), |row| (row.count, 0));
        let kinds = sorted(
            self.kinds,
            |(kind, sum)| KindRow { kind, namespaces: sum.namespaces.len() as u64, ..sum.row },
            |row| (row.reads + row.writes + row.other, row.events),
        );
        let error = |((method, error), count)| ErrorRow { method, error, count };
        Summary {
            classes: class_rows(&shapes),
            totals: self.totals,
            shapes,
            kinds,
            watches: self.watches,
            leases: self.leases.finish(),
            limits: self.limits.finish(),
            errors: sorted(self.errors, error, |row| (row.count, 0)),
        }
    }
}

impl OpenStream {
    fn new(method: String) -> Self {
        OpenStream {
            method,
            shape: None,
            watches: HashMap::new(),
            pending_watches: Vec::new(),
            limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::{Event, Open, Range, Response, WatchCreate};

    use super::*;

    /// A call that lists pods with `limit`. The response has 100 bytes, and the call takes 5 ms.
    fn range_call(limit: i64) -> Record {
        let request = Range {
            key: "/registry/pods/".into(),
            range_end: "/registry/pods0".into(),
            limit,
            ..Range::default()
        };
        Record::Call(Box::new(Call {
            latency: 5_000_000,
            method: "/etcdserverpb.KV/Range".into(),
            request_bytes: 10,
            response_bytes: 100,
            kind: Some("pods".into()),
            request: Some(Request::Range(request)),
            response: Some(Response { kvs: 3, more: true, count: Some(9), ..Response::default() }),
            end: Outcome { code: Some(0), ..Outcome::default() },
            ..Call::default()
        }))
    }

    /// The records of a watch on pods that receives one event.
    fn watch_records(stream: u32) -> [Record; 3] {
        let create = WatchCreate {
            key: "/registry/pods/".into(),
            range_end: "/registry/pods0".into(),
            ..WatchCreate::default()
        };
        let event = Event { key: "/registry/pods/a/b".into(), mod_revision: 5, ..Event::default() };
        let method = "/etcdserverpb.Watch/Watch".into();
        let response =
            WatchResponse { created: true, events: vec![event], ..WatchResponse::default() };
        [
            Record::Open(Open { stream, method, ..Open::default() }),
            Record::ClientMessage(ClientMessage {
                stream,
                kind: Some("pods".into()),
                request: Some(Request::WatchCreate(create)),
                ..ClientMessage::default()
            }),
            Record::ServerMessage(ServerMessage {
                stream,
                bytes: 50,
                response: Some(Response { watch: Some(response), ..Response::default() }),
                ..ServerMessage::default()
            }),
        ]
    }

    #[test]
    fn records_are_added_up() {
        let mut collector = Collector::default();
        collector.start_file(&Head::default());
        for record in [range_call(500), range_call(500), range_call(0)] {
            collector.add(record);
        }
        for record in [watch_records(1), watch_records(3)].into_iter().flatten() {
            collector.add(record);
        }
        collector.add(Record::Missing(trace::Missing { time: 1, records: 7 }));
        collector.end_file(true);
        let summary = collector.summary();
        assert_eq!((summary.totals.missing_records, summary.totals.truncated_files), (7, 1));
        let list =
            summary.shapes.iter().find(|row| row.shape == "Range: list(prefix, limit)").unwrap();
        assert_eq!((list.count, list.class, list.response_bytes), (2, Class::List, 200));
        assert!((4900..5100).contains(&list.latency_micros.unwrap().p50));
        let limits: Vec<_> =
            summary.limits.iter().map(|row| (row.limit, row.count, row.pairs)).collect();
        assert_eq!(limits, [(0, 1, 3), (500, 2, 6)]);
        let pods = &summary.kinds[0];
        assert_eq!((pods.reads, pods.watches, pods.events), (3, 2, 2));
        let row = &summary.watches.rows[0];
        assert_eq!((row.created, row.events, row.distinct_events, row.fan_out), (2, 2, 1, 2.0));
        assert!(super::super::text::render(&summary).contains("7 records are missing"));
        assert!(super::super::page::html(&summary).contains("<td class=\"t\">pods</td>"));
    }
}
