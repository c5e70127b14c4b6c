//! What a report says, as data. Times are in the unit that the name says.

use hdrhistogram::Histogram;
use serde::Serialize;
use trace::Class;

/// Everything.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub recording: Recording,
    pub classes: Vec<ClassRow>,
    pub shapes: Vec<ShapeRow>,
    pub kinds: Vec<KindRow>,
    pub watches: Watches,
    pub leases: Leases,
    pub limits: Vec<LimitRow>,
    pub errors: Vec<ErrorRow>,
}

/// What was recorded, and how much of it.
#[derive(Serialize, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    pub program: String,
    pub endpoints: Vec<String>,
    pub started_unix_ns: u64,
    pub seconds: f64,
    pub files: u64,
    /// Files that end in the middle: the proxy was killed, or still records.
    pub cut_files: u64,
    pub lines: u64,
    pub missing_lines: u64,
    pub calls: u64,
    pub streams: u64,
    pub connections: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Shapes, kinds and the like beyond what a report keeps apart.
    pub not_kept_apart: u64,
}

/// One of the five, or what is beside them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassRow {
    pub class: Class,
    pub count: u64,
    pub shapes: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

/// A shape of requests.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShapeRow {
    pub shape: String,
    pub class: Class,
    pub count: u64,
    /// Transactions whose comparison did not hold.
    pub not_succeeded: u64,
    /// Ended with an error, or were cut off.
    pub failed: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Missing for messages on streams.
    pub latency_micros: Option<Latency>,
    /// Kinds that it is used for, the most frequent first.
    pub kinds: Vec<String>,
}

/// Percentiles.
#[derive(Serialize, Clone, Copy)]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Latency {
    /// Of so many microseconds; `None` if nothing was measured.
    pub fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let at = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Latency {
            p50: at(0.5),
            p99: at(0.99),
            max: histogram.max(),
        })
    }
}

/// A kind of objects.
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

/// Watches and what they were told.
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

/// Watches of one kind.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct WatchRow {
    pub kind: String,
    /// `key`, `prefix`, …
    pub span: String,
    pub created: u64,
    pub events: u64,
    pub distinct_events: u64,
    /// Events for each distinct one.
    pub fan_out: f64,
}

/// etcd's leases.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Leases {
    pub granted: u64,
    pub revoked: u64,
    pub keep_alives: u64,
    /// Time to live in seconds, and how many were granted with it.
    pub ttls: Vec<(i64, u64)>,
    /// Writes that attach their key to a lease.
    pub attached_puts: u64,
    /// Leases to which such writes attach.
    pub attached_leases: u64,
    pub puts_per_lease_max: u64,
}

/// Ranges with one limit.
#[derive(Serialize, Default, Clone)]
#[serde(rename_all = "camelCase")]
pub struct LimitRow {
    pub method: String,
    /// 0 for none.
    pub limit: i64,
    pub count: u64,
    pub pairs: u64,
    /// Answers that say that there is more.
    pub more: u64,
    /// Largest number of keys that an answer counted.
    pub count_max: i64,
    pub response_bytes: u64,
    #[serde(skip)]
    pub micros: Option<Histogram<u64>>,
    pub latency_micros: Option<Latency>,
}

/// Calls that failed alike.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorRow {
    pub method: String,
    pub what: String,
    pub count: u64,
}
