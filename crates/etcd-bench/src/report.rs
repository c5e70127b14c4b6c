//! The report of a run.

use std::collections::BTreeMap;
use std::fmt::Write;

use output::Output;
use serde::Serialize;

use crate::latency::Latency;

/// Maximum share of failed operations. If the share is larger, the run has failed.
const TOLERATED_ERRORS: f64 = 0.01;

/// The report of a run. The name of each duration contains its unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// The configured endpoints.
    pub endpoints: Vec<String>,
    /// Number of client connections.
    pub connections: usize,
    /// Number of concurrent clients.
    pub clients: usize,
    /// Key size in bytes.
    pub key_size: usize,
    /// Value size in bytes.
    pub val_size: usize,
    /// Number of different keys in the key space.
    pub key_space_size: u64,
    /// The configured number of operations per second; 0 for as many as possible.
    pub rate: u64,
    /// Number of successful operations.
    pub ops: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Number of failed operations by error text.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Successful operations per second.
    pub ops_per_second: f64,
    /// Latency of the successful operations.
    pub latency_micros: Latency,
    /// CPU time of this process during the measurement, divided by the number of successful
    /// operations.
    pub client_cpu_micros_per_op: f64,
    /// CPU time of the server process during the measurement, divided by the number of
    /// successful operations. Set only with `--server-pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_micros_per_op: Option<f64>,
    /// The events that the watchers received, for the watch workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchReport>,
    /// Bytes of the keys and values in the puts that `fill` tried, including failed puts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled_bytes: Option<u64>,
}

/// The events that the watchers received.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    /// Number of watchers.
    pub watchers: usize,
    /// Number of events that all watchers together received.
    pub events: u64,
    /// Events per second that all watchers together received.
    pub events_per_second: f64,
    /// Whether every watcher received every event. The wait ends when no watcher has received
    /// an event for 10 s.
    pub complete: bool,
}

impl Report {
    /// Whether the run has failed: no operation succeeded, too many operations failed, or events
    /// are missing.
    pub fn failed(&self) -> bool {
        let tried = (self.ops + self.errors).max(1);
        let incomplete = self.watch.as_ref().is_some_and(|watch| !watch.complete);
        self.ops == 0 || self.errors as f64 / tried as f64 > TOLERATED_ERRORS || incomplete
    }

    /// Prints the report to standard output.
    ///
    /// # Errors
    /// Fails if standard output cannot be written.
    pub fn print(&self, output: Output) -> std::io::Result<()> {
        output.print(self, |report| report.render().expect("writing to a String cannot fail"))
    }

    fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let Latency { p50, p90, p99, p999, max } = self.latency_micros;
        writeln!(text, "{:<18} {}", "workload", self.workload)?;
        writeln!(text, "{:<18} {} in {:.2} s", "operations", self.ops, self.seconds)?;
        writeln!(text, "{:<18} {:.0}/s", "throughput", self.ops_per_second)?;
        writeln!(
            text,
            "{:<18} p50 {p50} µs, p90 {p90} µs, p99 {p99} µs, p99.9 {p999} µs, max {max} µs",
            "latency"
        )?;
        writeln!(
            text,
            "{:<18} {:.1} µs per operation",
            "client CPU", self.client_cpu_micros_per_op
        )?;
        if let Some(watch) = &self.watch {
            writeln!(
                text,
                "{:<18} {} to {} watchers, {:.0}/s",
                "events", watch.events, watch.watchers, watch.events_per_second
            )?;
            if !watch.complete {
                writeln!(
                    text,
                    "{:<18} some watchers did not receive every event; the wait ended after 10 s without an event",
                    ""
                )?;
            }
        }
        if let Some(bytes) = self.filled_bytes {
            writeln!(
                text,
                "{:<18} {bytes} bytes of keys and values, including failed puts",
                "filled"
            )?;
        }
        writeln!(text, "{:<18} {}", "errors", self.errors)?;
        for (kind, count) in &self.errors_by_kind {
            writeln!(text, "{:<18} {count} × {kind}", "")?;
        }
        Ok(text)
    }
}
