//! What came of a replay, beside what was recorded.

use std::collections::BTreeMap;
use std::fmt::{Error, Write};
use std::time::Duration;

use hdrhistogram::Histogram;
use output::Output;
use serde::Serialize;

use super::{ReplayOptions, Speed};
use crate::report::Latency;

/// A share of calls that fail here and did not when they were recorded, or the other
/// way round, beyond which the replay as a whole has failed.
const TOLERATED_CODES: f64 = 0.01;
/// Methods that are kept apart; further ones are counted together.
const METHODS: usize = 64;
const OTHERS: &str = "(others)";

/// Adds up while the replay runs.
#[derive(Default)]
pub struct Tally {
    methods: BTreeMap<String, MethodTally>,
    skipped: BTreeMap<String, u64>,
    broken: BTreeMap<String, u64>,
    late: Option<Histogram<u64>>,
    pub streams: u64,
    pub events: u64,
    pub recorded_events: u64,
    pub cancelled_watches: u64,
    /// Lines that the recorder could not write.
    pub missing: u64,
    /// The recording ends in the middle.
    pub is_cut: bool,
}

struct MethodTally {
    recorded: Histogram<u64>,
    here: Histogram<u64>,
    errors: u64,
    differences: BTreeMap<&'static str, u64>,
}

impl MethodTally {
    fn new() -> Self {
        MethodTally {
            recorded: histogram(),
            here: histogram(),
            errors: 0,
            differences: BTreeMap::new(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

fn micros(time: Duration) -> u64 {
    time.as_micros().max(1) as u64
}

/// Counts under `name`, or together with others if there are many.
fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    let known = counts.len() < METHODS || counts.contains_key(name);
    *counts.entry(if known { name } else { OTHERS }.to_owned()).or_default() += 1;
}

impl Tally {
    fn method(&mut self, path: &str) -> &mut MethodTally {
        let known = self.methods.len() < METHODS || self.methods.contains_key(path);
        let name = if known { path.rsplit('/').next().unwrap_or(path) } else { OTHERS };
        self.methods.entry(name.to_owned()).or_insert_with(MethodTally::new)
    }

    /// A call is over.
    pub fn called(
        &mut self,
        path: &str,
        recorded: Duration,
        here: Duration,
        difference: Option<&'static str>,
        is_error: bool,
    ) {
        let method = self.method(path);
        method.recorded.saturating_record(micros(recorded));
        method.here.saturating_record(micros(here));
        method.errors += u64::from(is_error);
        if let Some(what) = difference {
            *method.differences.entry(what).or_default() += 1;
        }
    }

    /// A stream of answers to one request is over.
    pub fn streamed(&mut self, path: &str, here: Duration) {
        self.method(path).here.saturating_record(micros(here));
    }

    /// A stream ended with an error.
    pub fn broke(&mut self, path: &str, reason: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        count(&mut self.broken, &format!("{name}: {reason}"));
    }

    /// Something is not replayed: it has nothing in it that could be asked again.
    pub fn skip(&mut self, path: &str) {
        count(&mut self.skipped, path.rsplit('/').next().unwrap_or(path));
    }

    /// How long after its time a line was begun.
    pub fn late(&mut self, time: Duration) {
        self.late.get_or_insert_with(histogram).saturating_record(micros(time));
    }

    /// All of it.
    pub fn report(
        self,
        options: &ReplayOptions,
        endpoints: &[String],
        seconds: f64,
        unknown: u64,
    ) -> ReplayReport {
        let row = |(method, tally): (String, MethodTally)| MethodRow {
            method,
            calls: tally.here.len(),
            errors: tally.errors,
            recorded_micros: (!tally.recorded.is_empty()).then(|| Latency::from(&tally.recorded)),
            here_micros: Latency::from(&tally.here),
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
            late_micros: self.late.as_ref().map(Latency::from),
            streams: self.streams,
            recorded_events: self.recorded_events,
            events: self.events,
            cancelled_watches: self.cancelled_watches,
            not_replayed: self.skipped,
            broken_streams: self.broken,
            unknown_revisions: unknown,
            missing_lines: self.missing,
            recording_is_cut: self.is_cut,
            methods,
        }
    }
}

/// The result of a replay. Times are in the unit that the name says.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    pub workload: &'static str,
    pub file: String,
    pub endpoints: Vec<String>,
    pub speed: String,
    pub seconds: f64,
    pub calls: u64,
    pub calls_per_second: f64,
    /// How long after their time requests began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_micros: Option<Latency>,
    pub streams: u64,
    pub recorded_events: u64,
    pub events: u64,
    pub cancelled_watches: u64,
    pub not_replayed: BTreeMap<String, u64>,
    pub broken_streams: BTreeMap<String, u64>,
    /// Revisions and leases that could not be translated.
    pub unknown_revisions: u64,
    pub missing_lines: u64,
    pub recording_is_cut: bool,
    pub methods: Vec<MethodRow>,
}

/// Calls of one method.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MethodRow {
    pub method: String,
    pub calls: u64,
    pub errors: u64,
    /// Missing for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_micros: Option<Latency>,
    pub here_micros: Latency,
    /// Answers that differ from the recorded ones in kind, by what differs.
    pub differences: BTreeMap<&'static str, u64>,
}

impl ReplayReport {
    /// Whether too much went wrong for the figures to mean what they say.
    pub fn failed(&self) -> bool {
        let other_codes = self.methods.iter().filter_map(|row| row.differences.get("code"));
        self.calls == 0 || other_codes.sum::<u64>() as f64 / self.calls as f64 > TOLERATED_CODES
    }

    /// To standard output.
    pub fn print(&self, output: Output) -> std::io::Result<()> {
        output.print(self, |report| report.render().expect("a String takes everything"))
    }

    fn render(&self) -> Result<String, Error> {
        let mut text = String::new();
        writeln!(text, "{:<18} {} at speed {}", "replayed", self.file, self.speed)?;
        let rate = self.calls_per_second;
        writeln!(text, "{:<18} {} in {:.2} s, {rate:.0}/s", "calls", self.calls, self.seconds)?;
        if let Some(late) = &self.late_micros {
            writeln!(
                text,
                "{:<18} p50 {} µs, p99 {} µs, max {} µs",
                "late", late.p50, late.p99, late.max
            )?;
        }
        let (here, recorded) = (self.events, self.recorded_events);
        writeln!(
            text,
            "{:<18} {} with {here} events; {recorded} were recorded",
            "streams", self.streams
        )?;
        self.render_methods(&mut text)?;
        for (what, counts) in
            [("not replayed", &self.not_replayed), ("broken", &self.broken_streams)]
        {
            for (name, count) in counts {
                writeln!(text, "{what:<18} {count} × {name}")?;
            }
        }
        if self.unknown_revisions > 0 {
            writeln!(
                text,
                "{:<18} {} revisions or leases",
                "not translated", self.unknown_revisions
            )?;
        }
        if self.missing_lines > 0 {
            writeln!(text, "{:<18} {} lines of the recording", "missing", self.missing_lines)?;
        }
        if self.recording_is_cut {
            writeln!(text, "{:<18} the recording ends in the middle", "cut")?;
        }
        Ok(text)
    }

    fn render_methods(&self, text: &mut String) -> Result<(), Error> {
        writeln!(
            text,
            "{:<18} {:>9} {:>8} {:>22} {:>22}  differ",
            "method", "calls", "errors", "recorded p50/p99 µs", "here p50/p99 µs"
        )?;
        let both = |latency: &Latency| format!("{}/{}", latency.p50, latency.p99);
        for row in &self.methods {
            let recorded = row.recorded_micros.as_ref().map_or("–".into(), both);
            let differ = row.differences.iter().map(|(what, count)| format!("{count} {what}"));
            let differ = differ.collect::<Vec<_>>().join(", ");
            writeln!(
                text,
                "{:<18} {:>9} {:>8} {recorded:>22} {:>22}  {}",
                row.method,
                row.calls,
                row.errors,
                both(&row.here_micros),
                if differ.is_empty() { "none" } else { &differ },
            )?;
        }
        Ok(())
    }
}
