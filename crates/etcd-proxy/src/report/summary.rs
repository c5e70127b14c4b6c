//! The data of a report. The name of each duration contains its unit.

use hdrhistogram::Histogram;
use serde::Serialize;
use trace::Class;

/// The whole report.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// What the traces contain in total.
    #[serde(rename = "recording")]
    pub totals: TraceTotals,
    pub classes: Vec<ClassRow>,
    pub shapes: Vec<ShapeRow>,
    pub kinds: Vec<KindRow>,
    pub watches: Watches,
    pub leases: Leases,
    pub limits: Vec<LimitRow>,
    pub errors: Vec<ErrorRow>,
}

/// Totals of the traces.
#[derive(Serialize, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub struct TraceTotals {
    pub program: String,
    pub endpoints: Vec<String>,
    pub started_unix_ns: u64,
    pub seconds: f64,
    pub files: u64,
    /// Truncated files: the proxy was killed or was still recording.
    #[serde(rename = "cutFiles")]
    pub truncated_files: u64,
    /// Records in the files.
    #[serde(rename = "lines")]
    pub records: u64,
    /// Records that the recorder could not write.
    #[serde(rename = "missingLines")]
    pub missing_records: u64,
    pub calls: u64,
    pub streams: u64,
    pub connections: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Number of items (shapes, kinds, limits, errors) that were counted as `(others)`
    /// because their table was full.
    #[serde(rename = "notKeptApart")]
    pub counted_as_others: u64,
}

/// The requests of one class.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassRow {
    pub class: Class,
    pub count: u64,
    pub shapes: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

/// The requests of one shape.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShapeRow {
    pub shape: String,
    pub class: Class,
    pub count: u64,
    /// Transactions whose comparisons were false.
    pub not_succeeded: u64,
    /// Calls that ended with an error or were aborted.
    pub failed: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Unset for messages on streams.
    pub latency_micros: Option<Latency>,
    /// The most frequent kinds with this shape, in descending order.
    pub kinds: Vec<String>,
}

/// Latency percentiles in microseconds.
#[derive(Serialize, Clone, Copy)]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
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
    pub kind: String,
    pub reads: u64,
    pub writes: u64,
    pub other: u64,
    pub watches: u64,
    pub events: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub namespaces: u64,
}

/// Watches and their events.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Watches {
    pub streams: u64,
    pub created: u64,
    pub cancelled_by_client: u64,
    pub cancelled_by_server: u64,
    pub compacted: u64,
    pub progress_requests: u64,
    pub progress_answers: u64,
    pub events: u64,
    pub distinct_events: u64,
    pub rows: Vec<WatchRow>,
}

/// The watches of one kind and span.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct WatchRow {
    pub kind: String,
    /// The kind of span: `key`, `prefix`, …
    pub span: String,
    pub created: u64,
    pub events: u64,
    pub distinct_events: u64,
    /// Number of deliveries per distinct event.
    pub fan_out: f64,
}

/// Lease requests, and puts with leases.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Leases {
    pub granted: u64,
    pub revoked: u64,
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
    pub method: String,
    /// The limit; 0 for none.
    pub limit: i64,
    pub count: u64,
    pub pairs: u64,
    /// Responses with `more` set.
    pub more: u64,
    /// The largest count in a response.
    pub count_max: i64,
    pub response_bytes: u64,
    #[serde(skip)]
    pub micros: Option<Histogram<u64>>,
    pub latency_micros: Option<Latency>,
}

/// The calls of a method that failed with the same error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorRow {
    pub method: String,
    pub what: String,
    pub count: u64,
}
