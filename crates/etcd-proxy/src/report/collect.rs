//! The collector: totals over the records of traces. `lease_sum` and `limit_sum` contain
//! the totals of leases and of ranges.

use std::collections::{HashMap, HashSet};

use trace::{
    Call, Class, End, Head, Outcome, Received, Record, Request, Sent, WatchResponse, shape,
    span_kind,
};

use super::events::RecentEvents;
use super::lease_sum::LeaseSum;
use super::limit_sum::LimitSum;
use super::summary::{ErrorRow, KindRow, Summary, TraceTotals, WatchRow, Watches};
use super::sums::{
    KindSum, MAX_NAMES, MAX_TRACKED, OTHERS, ShapeSum, classes, name_or_others, sorted,
};

/// The totals of the records so far.
#[derive(Default)]
pub struct Collector {
    totals: TraceTotals,
    shapes: HashMap<String, ShapeSum>,
    kinds: HashMap<String, KindSum>,
    limits: LimitSum,
    errors: HashMap<(String, String), u64>,
    streams: HashMap<(u64, u32), OpenStream>,
    watches: Watches,
    watched: HashMap<(String, &'static str), WatchRow>,
    events: RecentEvents,
    leases: LeaseSum,
    connections: HashSet<u64>,
    /// The time of the last record of the current file.
    last: u64,
}

/// An open stream.
struct OpenStream {
    method: String,
    /// The shape of its first request.
    shape: Option<String>,
    /// Kind and span of its watches, by watch ID.
    watches: HashMap<i64, (String, &'static str)>,
    /// Kind and span of the requested watches that are not created yet. The server
    /// responds in the order of the requests.
    requested: Vec<(String, &'static str)>,
    limit: Option<i64>,
}

impl Collector {
    /// Starts a file.
    pub fn start_file(&mut self, head: &Head) {
        if self.totals.files == 0 {
            self.totals.program.clone_from(&head.program);
            self.totals.endpoints.clone_from(&head.endpoints);
            self.totals.started_unix_ns = head.started_unix_ns;
        }
        self.totals.files += 1;
        self.last = 0;
        // Connection numbers start at 1 in each file.
        self.streams.clear();
    }

    /// Ends a file.
    pub fn end_file(&mut self, is_truncated: bool) {
        self.totals.truncated_files += u64::from(is_truncated);
        self.totals.seconds += self.last as f64 / 1e9;
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
                self.note_time(open.time, open.conn);
                self.totals.streams += 1;
                if open.method.ends_with("Watch/Watch") {
                    self.watches.streams += 1;
                }
                if self.streams.len() < MAX_TRACKED {
                    self.streams.insert((open.conn, open.stream), OpenStream::new(open.method));
                }
            }
            Record::Sent(sent) => self.add_sent(sent),
            Record::Received(received) => self.add_received(received),
            Record::End(end) => self.add_end(end),
            Record::Missing(missing) => {
                self.totals.records -= 1;
                self.totals.missing_records += missing.records;
            }
        }
    }

    fn note_time(&mut self, time: u64, conn: u64) {
        self.last = self.last.max(time);
        self.connections.insert(conn);
    }

    fn add_call(&mut self, call: Call) {
        self.note_time(call.time + call.latency, call.conn);
        self.totals.calls += 1;
        let micros = call.latency / 1000;
        let failed = self.count_error(&call.method, &call.end);
        let shape = shape(&call.method, call.request.as_ref());
        let sum = self.shape_sum(&shape.text, shape.class);
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

    fn add_sent(&mut self, sent: Sent) {
        self.note_time(sent.time, sent.conn);
        self.totals.request_bytes += sent.bytes;
        let method = self.streams.get(&(sent.conn, sent.stream));
        let method = method.map_or_else(|| "stream".to_owned(), |stream| stream.method.clone());
        let shape = shape(&method, sent.request.as_ref());
        self.shape_sum(&shape.text, shape.class).add(sent.bytes, None, sent.kind.as_deref());
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
                let watched =
                    (sent.kind.unwrap_or_default(), span_kind(&create.key.0, &create.range_end.0));
                if let Some(stream) = stream {
                    stream.requested.push(watched.clone());
                }
                self.watch_row(watched).created += 1;
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

    fn add_received(&mut self, received: Received) {
        self.note_time(received.time, received.conn);
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
            self.watch_response(stream_id, response, received.bytes);
        }
    }

    fn watch_response(&mut self, stream_id: (u64, u32), response: WatchResponse, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return };
        if response.created && !stream.requested.is_empty() {
            let watched = stream.requested.remove(0);
            stream.watches.insert(response.watch_id, watched);
        }
        let watched = stream.watches.get(&response.watch_id).cloned();
        if response.canceled {
            stream.watches.remove(&response.watch_id);
            self.watches.compacted += u64::from(response.compact_revision > 0);
            self.watches.cancelled_by_server += 1;
        }
        if response.events.is_empty() && !response.created && !response.canceled {
            self.watches.progress_answers += 1;
        }
        let events = response.events.len() as u64;
        let is_new = |event: &&trace::Event| self.events.is_new(&event.key.0, event.mod_revision);
        let distinct = response.events.iter().filter(is_new).count() as u64;
        self.watches.events += events;
        self.watches.distinct_events += distinct;
        if let Some(watched) = watched {
            let row = self.kind_row(&watched.0, None);
            row.events += events;
            row.response_bytes += bytes;
            let row = self.watch_row(watched);
            row.events += events;
            row.distinct_events += distinct;
        }
    }

    fn add_end(&mut self, end: End) {
        self.note_time(end.time, end.conn);
        let Some(stream) = self.streams.remove(&(end.conn, end.stream)) else { return };
        // A watch stream that its client closes has not failed.
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

    /// Counts the error of a call or stream. Returns whether it failed.
    fn count_error(&mut self, method: &str, end: &Outcome) -> bool {
        let error = match (end.code, end.cut) {
            (Some(0), _) => return false,
            (Some(code), _) => format!("code {code}: {}", end.message),
            (None, Some(cut)) => format!("aborted by the {cut:?}").to_lowercase(),
            (None, None) => "no status".into(),
        };
        let name = method.rsplit('/').next().unwrap_or(method).to_owned();
        let key = self.error_key((name, error));
        *self.errors.entry(key).or_default() += 1;
        true
    }

    fn error_key(&mut self, key: (String, String)) -> (String, String) {
        if self.errors.len() < MAX_NAMES || self.errors.contains_key(&key) {
            return key;
        }
        self.totals.counted_as_others += 1;
        (OTHERS.into(), OTHERS.into())
    }

    fn shape_sum(&mut self, text: &str, class: Class) -> &mut ShapeSum {
        let name =
            name_or_others(&self.shapes, text, &mut self.totals.counted_as_others).to_owned();
        self.shapes.entry(name).or_insert_with(|| ShapeSum::new(class))
    }

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

    fn watch_row(&mut self, mut watched: (String, &'static str)) -> &mut WatchRow {
        if self.watched.len() >= MAX_NAMES && !self.watched.contains_key(&watched) {
            self.totals.counted_as_others += 1;
            watched = (OTHERS.into(), OTHERS);
        }
        self.watched.entry(watched).or_default()
    }

    /// The report.
    pub fn summary(mut self) -> Summary {
        self.totals.seconds = (self.totals.seconds * 1e3).round() / 1e3;
        self.watches.rows = sorted(
            self.watched,
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
            classes: classes(&shapes),
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
            requested: Vec::new(),
            limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::{Event, Open, Range, Response, WatchCreate};

    use super::*;

    fn range(limit: i64) -> Record {
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

    fn watch(stream: u32) -> [Record; 3] {
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
            Record::Sent(Sent {
                stream,
                kind: Some("pods".into()),
                request: Some(Request::WatchCreate(create)),
                ..Sent::default()
            }),
            Record::Received(Received {
                stream,
                bytes: 50,
                response: Some(Response { watch: Some(response), ..Response::default() }),
                ..Received::default()
            }),
        ]
    }

    #[test]
    fn records_are_added_up() {
        let mut collector = Collector::default();
        collector.start_file(&Head::default());
        [range(500), range(500), range(0)].into_iter().for_each(|record| collector.add(record));
        [watch(1), watch(3)].into_iter().flatten().for_each(|record| collector.add(record));
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
