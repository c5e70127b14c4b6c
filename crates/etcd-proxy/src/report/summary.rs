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
    /// Requests by kind, most frequent first.
    pub kinds: Vec<KindRow>,
    /// Watches and their events.
    pub watches: Watches,
    /// Lease requests.
    pub leases: Leases,
    /// Ranges over several keys, by method and limit.
    pub limits: Vec<LimitRow>,
    /// Failed calls and streams by method and error, most frequent first.
    pub errors: Vec<ErrorRow>,
}

/// Totals of the traces.
#[derive(Serialize, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub struct TraceTotals {
    /// Program and version that recorded the first trace.
    pub program: String,
    /// Endpoints of the proxy that recorded the first trace.
    pub endpoints: Vec<String>,
    /// Start of the first trace, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Sum of the durations of the files, in seconds.
    pub seconds: f64,
    /// Number of trace files.
    pub files: u64,
    /// Number of truncated files: the proxy was killed or was still recording.
    pub truncated_files: u64,
    /// Number of records in the files, without those of type `head` and `missing`.
    pub records: u64,
    /// Number of records that are missing in the files.
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
    /// How many times something was counted under `(others)`, because the table of shapes,
    /// kinds, limits, watches or errors was full.
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
    /// Number of transactions with a false comparison.
    pub not_succeeded: u64,
    /// Number of calls and streams that ended with an error or were aborted.
    pub failed: u64,
    /// Bytes of the requests.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Latency of the calls; unset for messages on streams other than RangeStream.
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
    /// The percentiles of a histogram of microseconds; `None` if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let at = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Latency {
            p50: at(0.5),
            p99: at(0.99),
            max: histogram.max(),
        })
    }
}

/// The requests for one kind.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct KindRow {
    /// The kind, or `(others)`.
    pub kind: String,
    /// Number of Range and RangeStream requests.
    pub reads: u64,
    /// Number of requests of the classes create, update and delete.
    pub writes: u64,
    /// Number of other unary requests, such as puts outside a transaction.
    pub other: u64,
    /// Number of requests that create a watch.
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
    #[serde(rename = "progressAnswers")]
    pub progress_notifications: u64,
    /// Number of delivered events.
    pub events: u64,
    /// Number of distinct events: an event that was delivered to several watches counts once.
    pub distinct_events: u64,
    /// Watches by kind and span.
    pub rows: Vec<WatchRow>,
}

/// The watches of one kind and span.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct WatchRow {
    /// The Kubernetes kind of the watched keys, or `(others)`.
    pub kind: String,
    /// The kind of the watched span, as [`trace::span_kind`] names it.
    pub span: String,
    /// Number of requests that create a watch.
    pub created: u64,
    /// Number of delivered events.
    pub events: u64,
    /// Number of distinct events.
    pub distinct_events: u64,
    /// Delivered events divided by distinct events.
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
    /// TTLs in seconds, each with its number of grants. The grants with a TTL beyond the first
    /// 2,000 different TTLs are counted under 0.
    pub ttls: Vec<(i64, u64)>,
    /// Number of puts with a lease.
    pub attached_puts: u64,
    /// Number of different leases in these puts.
    pub attached_leases: u64,
    /// Maximum number of puts with the same lease.
    pub puts_per_lease_max: u64,
}

/// The ranges of one method with the same limit.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct LimitRow {
    /// `Range`, `RangeStream` or `(others)`.
    pub method: String,
    /// The limit; 0 for none.
    pub limit: i64,
    /// Number of ranges.
    pub count: u64,
    /// Number of returned key-value pairs.
    pub pairs: u64,
    /// Number of responses with `more` set.
    pub more: u64,
    /// The largest `count` in a response.
    pub count_max: i64,
    /// Bytes of the responses.
    pub response_bytes: u64,
    /// Histogram from which `latency_micros` is computed.
    #[serde(skip)]
    pub micros: Option<Histogram<u64>>,
    /// Latency of the ranges.
    pub latency_micros: Option<Latency>,
}

/// The calls and streams of a method that failed with the same error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorRow {
    /// The method without its service, or `(others)`.
    pub method: String,
    /// The gRPC code and message, or the side that aborted the call.
    pub error: String,
    /// Number of failed calls and streams.
    pub count: u64,
}
