//! Metrics in the format of Prometheus.

use anyhow::Result;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::client::Outcome;

/// Upper bounds of the latency of heartbeats, in seconds. The last one is near the time limit.
const LATENCY_BUCKETS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

/// The metrics of the process.
pub struct Metrics {
    registry: Registry,
    /// Nodes by state.
    pub nodes: IntGaugeVec,
    /// Pods by phase.
    pub pods: IntGaugeVec,
    /// Requests by verb, resource and status code.
    pub requests: IntCounterVec,
    /// Open connections.
    pub connections: IntGauge,
    /// Connections that could not be opened.
    pub dial_failures: IntCounter,
    /// Open watches by resource.
    pub watches: IntGaugeVec,
    /// Events of watches by resource.
    pub watch_events: IntCounterVec,
    heartbeats: IntCounter,
    failed_heartbeats: IntCounterVec,
    heartbeat_seconds: Histogram,
}

impl Metrics {
    /// Creates all metrics.
    ///
    /// # Errors
    /// If two have the same name.
    pub fn new() -> Result<Metrics> {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let gauges = |name: &str, help: &str, label: &str| {
            register(&registry, IntGaugeVec::new(opts(name, help), &[label])?)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntCounterVec::new(opts(name, help), labels)?)
        };
        let counter =
            |name: &str, help: &str| register(&registry, IntCounter::with_opts(opts(name, help))?);
        let connections = IntGauge::with_opts(opts("connections", "Open connections."))?;
        let latency = opts("heartbeat_duration_seconds", "Time from a renewal to its answer.");
        let latency = HistogramOpts::from(latency).buckets(LATENCY_BUCKETS.to_vec());
        let failures = "Renewals of Leases that failed, by status code or failure.";
        let requests = "Requests by verb, resource, and status code or failure.";
        let metrics = Metrics {
            nodes: gauges("nodes", "Simulated nodes by state.", "state")?,
            pods: gauges("pods", "Pods on simulated nodes by phase.", "phase")?,
            requests: counters("requests_total", requests, &["verb", "resource", "code"])?,
            connections: register(&registry, connections)?,
            dial_failures: counter("dial_failures_total", "Connections that were not opened.")?,
            watches: gauges("watches", "Open watches by resource.", "resource")?,
            watch_events: counters("watch_events_total", "Events of watches.", &["resource"])?,
            heartbeats: counter("heartbeats_total", "Leases that were renewed.")?,
            failed_heartbeats: counters("heartbeat_failures_total", failures, &["code"])?,
            heartbeat_seconds: register(&registry, Histogram::with_opts(latency)?)?,
            registry,
        };
        metrics.show_zeros();
        Ok(metrics)
    }

    /// Creates the gauges that are 0 until something happens.
    fn show_zeros(&self) {
        for state in ["waiting", "starting", "running", "stopped"] {
            self.nodes.with_label_values(&[state]);
        }
        for phase in ["Pending", "Running", "Succeeded", "Failed"] {
            self.pods.with_label_values(&[phase]);
        }
    }

    /// Counts the outcome of a renewal.
    pub fn heartbeat(&self, outcome: &Outcome<'_>) {
        match outcome {
            Outcome::Answered(answer) if answer.status == 200 => {
                self.heartbeats.inc();
                self.heartbeat_seconds.observe(answer.elapsed.as_secs_f64());
            }
            outcome => self.failed_heartbeats.with_label_values(&[&*code(outcome)]).inc(),
        }
    }

    /// Counts the outcome of any request.
    pub fn request(&self, (verb, resource): (&str, &str), outcome: &Outcome<'_>) {
        self.requests.with_label_values(&[verb, resource, &*code(outcome)]).inc();
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// If a metric cannot be written.
    pub fn render(&self) -> Result<String> {
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("node_sim_{name}"), help)
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// The status code of an answer, or the name of a failure.
fn code(outcome: &Outcome<'_>) -> std::borrow::Cow<'static, str> {
    match outcome {
        Outcome::Answered(answer) if answer.status == 200 => "200".into(),
        Outcome::Answered(answer) => answer.status.to_string().into(),
        Outcome::Failed(failure) => failure.name().into(),
    }
}
