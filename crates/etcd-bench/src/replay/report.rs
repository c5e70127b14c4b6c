//! The report of a replay, with a comparison to the trace.

use std::collections::BTreeMap;
use std::fmt::{Error, Write};

use output::Output;
use serde::Serialize;

use crate::latency::Latency;

/// Maximum share of calls whose gRPC code differs from the trace. If the share is larger, the
/// replay has failed.
const TOLERATED_CODE_DIFFERENCES: f64 = 0.01;

/// The report of a replay. The name of each duration contains its unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    /// Always `replay`.
    pub workload: &'static str,
    /// Path of the trace.
    pub file: String,
    /// The configured endpoints.
    pub endpoints: Vec<String>,
    /// The configured speed.
    pub speed: String,
    /// Duration of the replay.
    pub seconds: f64,
    /// Number of replayed unary calls and completed RangeStreams.
    pub calls: u64,
    /// `calls` per second.
    pub calls_per_second: f64,
    /// The time from the due time of a record to its start; unset with `--speed max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_micros: Option<Latency>,
    /// Number of replayed streams.
    pub streams: u64,
    /// Number of watch events in the trace.
    pub recorded_events: u64,
    /// Number of watch events that the replay received.
    pub events: u64,
    /// Number of watches that the server cancelled with a reason.
    pub cancelled_watches: u64,
    /// Number of requests that could not be replayed, by method or reason.
    pub not_replayed: BTreeMap<String, u64>,
    /// Number of streams that ended with an error, by method and error.
    pub broken_streams: BTreeMap<String, u64>,
    /// Number of revisions and lease IDs that could not be translated.
    pub untranslated: u64,
    /// Number of records that are missing in the trace.
    pub missing_records: u64,
    /// Whether the trace is truncated.
    pub trace_is_truncated: bool,
    /// The calls by method.
    pub methods: Vec<MethodRow>,
}

/// The replayed calls of one method.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MethodRow {
    /// The method without its service, or `(others)`.
    pub method: String,
    /// Number of replayed calls, or of completed RangeStreams.
    pub calls: u64,
    /// Number of replayed calls that failed.
    pub errors: u64,
    /// Latency in the trace; unset for RangeStream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_micros: Option<Latency>,
    /// Latency in the replay.
    pub replayed_micros: Latency,
    /// Number of responses that differ from the trace, by differing field.
    pub differences: BTreeMap<&'static str, u64>,
}

impl ReplayReport {
    /// Whether the replay has failed: no call was replayed, or too many gRPC codes differ from
    /// the trace.
    pub fn failed(&self) -> bool {
        let different_codes = self.methods.iter().filter_map(|row| row.differences.get("code"));
        self.calls == 0
            || different_codes.sum::<u64>() as f64 / self.calls as f64 > TOLERATED_CODE_DIFFERENCES
    }

    /// Prints the report to standard output.
    ///
    /// # Errors
    /// Fails if standard output cannot be written.
    pub fn print(&self, output: Output) -> std::io::Result<()> {
        output.print(self, |report| report.render().expect("writing to a String cannot fail"))
    }

    fn render(&self) -> Result<String, Error> {
        let mut text = String::new();
        writeln!(text, "{:<18} {} at speed {}", "replayed", self.file, self.speed)?;
        let rate = self.calls_per_second;
        writeln!(text, "{:<18} {} in {:.2} s, {rate:.0}/s", "calls", self.calls, self.seconds)?;
        if let Some(delay) = &self.delay_micros {
            writeln!(
                text,
                "{:<18} p50 {} µs, p99 {} µs, max {} µs",
                "start delay", delay.p50, delay.p99, delay.max
            )?;
        }
        let (replayed, recorded) = (self.events, self.recorded_events);
        writeln!(
            text,
            "{:<18} {} with {replayed} watch events; the trace has {recorded} watch events",
            "streams", self.streams
        )?;
        self.render_methods(&mut text)?;
        for (label, counts) in
            [("not replayed", &self.not_replayed), ("broken stream", &self.broken_streams)]
        {
            for (name, count) in counts {
                writeln!(text, "{label:<18} {count} × {name}")?;
            }
        }
        if self.untranslated > 0 {
            writeln!(
                text,
                "{:<18} {} revisions or lease IDs",
                "not translated", self.untranslated
            )?;
        }
        if self.missing_records > 0 {
            writeln!(text, "{:<18} {} records of the trace", "missing", self.missing_records)?;
        }
        if self.trace_is_truncated {
            writeln!(
                text,
                "{:<18} the proxy was killed, or was still recording",
                "trace truncated"
            )?;
        }
        Ok(text)
    }

    fn render_methods(&self, text: &mut String) -> Result<(), Error> {
        writeln!(
            text,
            "{:<18} {:>9} {:>8} {:>22} {:>22}  differences",
            "method", "calls", "errors", "recorded p50/p99 µs", "replay p50/p99 µs"
        )?;
        let percentiles = |latency: &Latency| format!("{}/{}", latency.p50, latency.p99);
        for row in &self.methods {
            let recorded = row.recorded_micros.as_ref().map_or("–".into(), percentiles);
            let differences = row.differences.iter();
            let differences = differences.map(|(field, count)| format!("{count} {field}"));
            let differences = differences.collect::<Vec<_>>().join(", ");
            writeln!(
                text,
                "{:<18} {:>9} {:>8} {recorded:>22} {:>22}  {}",
                row.method,
                row.calls,
                row.errors,
                percentiles(&row.replayed_micros),
                if differences.is_empty() { "none" } else { &differences },
            )?;
        }
        Ok(())
    }
}
