//! The data of a report. The name of each duration contains its unit.

use hdrhistogram::Histogram;
use serde::Serialize;
use trace::Class;

/// The whole report.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// What the traces contain in total.
    pub totals: TraceTotals,
    /// Requests by class.
    pub classes: Vec<ClassRow>,
    /// Requests by shape, most frequent first.
    pub shapes: Vec<ShapeRow>,
    /// Requests by kind of object, most frequent first.
    pub kinds: Vec<KindRow>,
    /// Watches and their events.
    pub watches: Watches,
    /// Lease requests.
    pub leases: Leases,
    /// Ranges by method and limit.
    pub limits: Vec<LimitRow>,
    /// Failed calls, most frequent first.
    pub errors: Vec<ErrorRow>,
}

/// Totals of the traces.
#[derive(Serialize, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub struct TraceTotals {
    /// Program and version that recorded the first trace.
    pub program: String,
    /// Endpoints of the proxy, from the first trace.
    pub endpoints: Vec<String>,
    /// Start of the first trace, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Recorded time over all files.
    pub seconds: f64,
    /// Number of trace files.
    pub files: u64,
    /// Truncated files: the proxy was killed or was still recording.
    pub truncated_files: u64,
    /// Records in the files.
    pub records: u64,
    /// Records that the recorder could not write.
    pub missing_records: u64,
    /// Number of unary calls.
    pub calls: u64,
    /// Number of gRPC streams.
    pub streams: u64,
    /// Number of client connections.
    pub connections: u64,
    /// Bytes of request messages.
    pub request_bytes: u64,
    /// Bytes of response messages.
    pub response_bytes: u64,
    /// Number of items (shapes, kinds, limits, errors) that were counted as `(others)`
    /// because their table was full.
    pub counted_as_others: u64,
}

/// The requests of one class.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassRow {
    /// The class.
    pub class: Class,
    /// Number of requests.
    pub count: u64,
    /// Number of different shapes in the class.
    pub shapes: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: u64,
}

/// The requests of one shape.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShapeRow {
    /// The shape, as [`trace::shape()`] formats it.
    pub shape: String,
    /// The class of the shape.
    pub class: Class,
    /// Number of requests.
    pub count: u64,
    /// Transactions whose comparisons were false.
    pub not_succeeded: u64,
    /// Calls that ended with an error or were aborted.
    pub failed: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Unset for messages on streams.
    pub latency_micros: Option<Latency>,
    /// The most frequent kinds with this shape, in descending order.
    pub kinds: Vec<String>,
}

/// Latency percentiles in microseconds.
#[derive(Serialize, Clone, Copy)]
pub struct Latency {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

impl Latency {
    /// The percentiles of a histogram; `None` if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let at = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Latency {
            p50: at(0.5),
            p99: at(0.99),
            max: histogram.max(),
        })
    }
}

/// The requests for one kind of objects.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct KindRow {
    /// The kind, or `(others)`.
    pub kind: String,
    /// Number of ranges.
    pub reads: u64,
    /// Number of creates, updates and deletes.
    pub writes: u64,
    /// Number of other unary requests.
    pub other: u64,
    /// Number of created watches.
    pub watches: u64,
    /// Number of delivered events.
    pub events: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses and events.
    pub response_bytes: u64,
    /// Number of different namespaces in the keys.
    pub namespaces: u64,
}

/// Watches and their events.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Watches {
    /// Number of watch streams.
    pub streams: u64,
    /// Number of requests that create a watch.
    pub created: u64,
    /// Number of requests that cancel a watch.
    pub cancelled_by_client: u64,
    /// Number of responses that cancel a watch.
    pub cancelled_by_server: u64,
    /// Number of watches cancelled because their revision was compacted.
    pub compacted: u64,
    /// Number of progress requests.
    pub progress_requests: u64,
    /// Number of progress notifications.
    pub progress_answers: u64,
    /// Number of delivered events.
    pub events: u64,
    /// Number of different events; an event delivered to several watches counts once.
    pub distinct_events: u64,
    /// Watches by kind and span.
    pub rows: Vec<WatchRow>,
}

/// The watches of one kind and span.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct WatchRow {
    /// The kind of object.
    pub kind: String,
    /// The kind of span: `key`, `prefix`, …
    pub span: String,
    /// Number of created watches.
    pub created: u64,
    /// Number of delivered events.
    pub events: u64,
    /// Number of different events.
    pub distinct_events: u64,
    /// Number of deliveries per distinct event.
    pub fan_out: f64,
}

/// Lease requests, and puts with leases.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Leases {
    /// Number of grant requests.
    pub granted: u64,
    /// Number of revoke requests.
    pub revoked: u64,
    /// Number of keep-alive requests.
    pub keep_alives: u64,
    /// Numbers of grants by TTL in seconds.
    pub ttls: Vec<(i64, u64)>,
    /// Puts that attach their key to a lease.
    pub attached_puts: u64,
    /// Leases to which keys were attached.
    pub attached_leases: u64,
    /// Maximum number of puts with the same lease.
    pub puts_per_lease_max: u64,
}

/// The ranges of one method with the same limit.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct LimitRow {
    /// `Range` or `RangeStream`.
    pub method: String,
    /// The limit; 0 for none.
    pub limit: i64,
    /// Number of ranges.
    pub count: u64,
    /// Number of returned key-value pairs.
    pub pairs: u64,
    /// Responses with `more` set.
    pub more: u64,
    /// The largest count in a response.
    pub count_max: i64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Histogram from which `latency_micros` is computed.
    #[serde(skip)]
    pub micros: Option<Histogram<u64>>,
    /// Latency of the ranges.
    pub latency_micros: Option<Latency>,
}

/// The calls of a method that failed with the same error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorRow {
    /// The method, without the service.
    pub method: String,
    /// The gRPC code and message, or the side that aborted the call.
    pub error: String,
    /// Number of calls.
    pub count: u64,
}
