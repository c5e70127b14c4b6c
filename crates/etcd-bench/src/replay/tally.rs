//! Counts the results of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::options::{ReplayOptions, Speed};
use super::report::{MethodRow, ReplayReport};
use crate::latency::Latency;

/// Maximum number of different methods, of reasons and of errors. Further ones are counted
/// together as [`OTHERS`].
const MAX_NAMES: usize = 64;
const OTHERS: &str = "(others)";

/// The results of a replay so far.
#[derive(Default)]
pub struct Tally {
    methods: BTreeMap<String, MethodTally>,
    /// Number of requests that were not replayed, by method or reason.
    not_replayed: BTreeMap<String, u64>,
    /// Number of streams that ended with an error, by method and error.
    broken_streams: BTreeMap<String, u64>,
    /// How late records were started, in microseconds; `None` with `--speed max`.
    delays: Option<Histogram<u64>>,
    /// Number of replayed streams.
    pub streams: u64,
    /// Number of watch events that the replay received.
    pub events: u64,
    /// Number of watch events in the trace.
    pub recorded_events: u64,
    /// Number of watches that the server cancelled with a reason.
    pub cancelled_watches: u64,
    /// Number of records that are missing in the trace.
    pub missing_records: u64,
    /// Whether the trace is truncated.
    pub is_truncated: bool,
}

/// The results of the calls of a method. Latencies are in microseconds.
struct MethodTally {
    recorded: Histogram<u64>,
    replayed: Histogram<u64>,
    errors: u64,
    differences: BTreeMap<&'static str, u64>,
}

impl MethodTally {
    fn new() -> Self {
        MethodTally {
            recorded: histogram(),
            replayed: histogram(),
            errors: 0,
            differences: BTreeMap::new(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are a valid precision")
}

fn micros(time: Duration) -> u64 {
    time.as_micros().max(1) as u64
}

/// Increments the count of `name`, or of [`OTHERS`] if `name` is new and the map is full.
fn increment(counts: &mut BTreeMap<String, u64>, name: &str) {
    let has_room = counts.len() < MAX_NAMES || counts.contains_key(name);
    *counts.entry(if has_room { name } else { OTHERS }.to_owned()).or_default() += 1;
}

impl Tally {
    fn method(&mut self, path: &str) -> &mut MethodTally {
        let has_room = self.methods.len() < MAX_NAMES || self.methods.contains_key(path);
        let name = if has_room { path.rsplit('/').next().unwrap_or(path) } else { OTHERS };
        self.methods.entry(name.to_owned()).or_insert_with(MethodTally::new)
    }

    /// Adds a call with its recorded and its replayed latency.
    pub fn add_call(
        &mut self,
        path: &str,
        recorded: Duration,
        replayed: Duration,
        difference: Option<&'static str>,
        is_error: bool,
    ) {
        let method = self.method(path);
        method.recorded.saturating_record(micros(recorded));
        method.replayed.saturating_record(micros(replayed));
        method.errors += u64::from(is_error);
        if let Some(field) = difference {
            *method.differences.entry(field).or_default() += 1;
        }
    }

    /// Adds a completed RangeStream with its latency.
    pub fn add_completed_stream(&mut self, path: &str, replayed: Duration) {
        self.method(path).replayed.saturating_record(micros(replayed));
    }

    /// Adds a stream that ended with an error.
    pub fn add_failed_stream(&mut self, path: &str, reason: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        increment(&mut self.broken_streams, &format!("{name}: {reason}"));
    }

    /// Counts a request that is not replayed, by its method or by a reason.
    pub fn add_skipped(&mut self, path_or_reason: &str) {
        let name = path_or_reason.rsplit('/').next().unwrap_or(path_or_reason);
        increment(&mut self.not_replayed, name);
    }

    /// Adds the time from the due time of a record to its start.
    pub fn add_delay(&mut self, time: Duration) {
        self.delays.get_or_insert_with(histogram).saturating_record(micros(time));
    }

    /// Converts to the report.
    pub fn report(
        self,
        options: &ReplayOptions,
        endpoints: &[String],
        seconds: f64,
        untranslated: u64,
    ) -> ReplayReport {
        let row = |(method, tally): (String, MethodTally)| MethodRow {
            method,
            calls: tally.replayed.len(),
            errors: tally.errors,
            recorded_micros: (!tally.recorded.is_empty()).then(|| Latency::from(&tally.recorded)),
            replayed_micros: Latency::from(&tally.replayed),
            differences: tally.differences,
        };
        let methods: Vec<_> = self.methods.into_iter().map(row).collect();
        let calls: u64 = methods.iter().map(|row| row.calls).sum();
        ReplayReport {
            workload: "replay",
            file: options.file.display().to_string(),
            endpoints: endpoints.to_vec(),
            speed: match options.speed {
                Speed::Times(times) => times.to_string(),
                Speed::Max => "max".into(),
            },
            seconds,
            calls,
            calls_per_second: calls as f64 / seconds,
            delay_micros: self.delays.as_ref().map(Latency::from),
            streams: self.streams,
            recorded_events: self.recorded_events,
            events: self.events,
            cancelled_watches: self.cancelled_watches,
            not_replayed: self.not_replayed,
            broken_streams: self.broken_streams,
            untranslated,
            missing_records: self.missing_records,
            trace_is_truncated: self.is_truncated,
            methods,
        }
    }
}
