//! The running totals of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::options::{ReplayOptions, Speed};
use super::report::{MethodRow, ReplayReport};
use crate::latency::Latency;

/// Maximum number of different methods. Further ones are counted together.
const METHODS: usize = 64;
const OTHERS: &str = "(others)";

/// The results of a replay so far.
#[derive(Default)]
pub struct Tally {
    methods: BTreeMap<String, MethodTally>,
    skipped: BTreeMap<String, u64>,
    broken: BTreeMap<String, u64>,
    late: Option<Histogram<u64>>,
    /// Replayed streams.
    pub streams: u64,
    /// Events received from watches.
    pub events: u64,
    /// Events in the trace.
    pub recorded_events: u64,
    /// Watches that the server cancelled with a reason.
    pub cancelled_watches: u64,
    /// Records that are missing from the trace.
    pub missing: u64,
    /// Whether the trace is truncated.
    pub is_truncated: bool,
}

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

/// Counts `name`, or [`OTHERS`] if there are too many names.
fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    let has_room = counts.len() < METHODS || counts.contains_key(name);
    *counts.entry(if has_room { name } else { OTHERS }.to_owned()).or_default() += 1;
}

impl Tally {
    fn method(&mut self, path: &str) -> &mut MethodTally {
        let has_room = self.methods.len() < METHODS || self.methods.contains_key(path);
        let name = if has_room { path.rsplit('/').next().unwrap_or(path) } else { OTHERS };
        self.methods.entry(name.to_owned()).or_insert_with(MethodTally::new)
    }

    /// Adds a call.
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

    /// Adds a completed stream that had one request.
    pub fn add_completed_stream(&mut self, path: &str, replayed: Duration) {
        self.method(path).replayed.saturating_record(micros(replayed));
    }

    /// Adds a stream that ended with an error.
    pub fn add_failed_stream(&mut self, path: &str, reason: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        count(&mut self.broken, &format!("{name}: {reason}"));
    }

    /// Counts a request that cannot be replayed because the trace does not contain it.
    pub fn skip(&mut self, path: &str) {
        count(&mut self.skipped, path.rsplit('/').next().unwrap_or(path));
    }

    /// Adds the delay between the due time of a record and its start.
    pub fn add_delay(&mut self, time: Duration) {
        self.late.get_or_insert_with(histogram).saturating_record(micros(time));
    }

    /// The report.
    pub fn report(
        self,
        options: &ReplayOptions,
        endpoints: &[String],
        seconds: f64,
        unknown: u64,
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
            delay_micros: self.late.as_ref().map(Latency::from),
            streams: self.streams,
            recorded_events: self.recorded_events,
            events: self.events,
            cancelled_watches: self.cancelled_watches,
            not_replayed: self.skipped,
            broken_streams: self.broken,
            untranslated: unknown,
            missing_records: self.missing,
            trace_is_truncated: self.is_truncated,
            methods,
        }
    }
}
