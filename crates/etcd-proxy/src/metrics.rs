//! The metrics of the proxy.

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};

use crate::side::Side;

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    connections: IntGauge,
    calls: IntCounter,
    in_flight: IntGauge,
    client_bytes: IntCounter,
    endpoint_bytes: IntCounter,
    refused_calls: IntCounter,
    refused_connections: IntCounter,
    records_written: IntCounter,
    records_missing: IntCounter,
    recorder_failed: IntGauge,
}

impl Metrics {
    /// Registers all metrics.
    pub fn new() -> Self {
        let registry = Registry::new();
        let process: Box<dyn Collector> = Box::new(ProcessCollector::for_self());
        registry.register(process).expect("metric names are unique");
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("etcd_proxy_{name}"), help);
            let counter = counter.expect("a valid name");
            registry.register(Box::new(counter.clone())).expect("metric names are unique");
            counter
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("etcd_proxy_{name}"), help);
            let gauge = gauge.expect("a valid name");
            registry.register(Box::new(gauge.clone())).expect("metric names are unique");
            gauge
        };
        Metrics {
            connections: gauge("connections", "Open client connections that are forwarded."),
            calls: counter("calls_total", "Forwarded calls and streams."),
            in_flight: gauge("calls_in_flight", "Forwarded calls and streams in progress."),
            client_bytes: counter("client_bytes_total", "Bytes forwarded from clients."),
            endpoint_bytes: counter("endpoint_bytes_total", "Bytes forwarded from endpoints."),
            refused_calls: counter(
                "refused_calls_total",
                "Calls that the proxy answered with UNAVAILABLE because no endpoint was reachable.",
            ),
            refused_connections: counter(
                "refused_connections_total",
                "Client connections that the proxy answered itself because no endpoint was reachable.",
            ),
            records_written: counter("records_written_total", "Records written to the trace file."),
            records_missing: counter(
                "records_missing_total",
                "Records that are missing in the trace file.",
            ),
            recorder_failed: gauge(
                "recorder_failed",
                "Whether recording stopped because of an I/O error (1) or not (0).",
            ),
            registry,
        }
    }

    /// Counts a client connection as open.
    pub fn connection_opened(&self) {
        self.connections.inc();
    }

    /// Counts a client connection as closed.
    pub fn connection_closed(&self) {
        self.connections.dec();
    }

    /// Counts the start of a call or stream.
    pub fn call_started(&self) {
        self.calls.inc();
        self.in_flight.inc();
    }

    /// Number of calls and streams in progress, over all connections.
    pub fn calls_in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// Counts the end of a call or stream.
    pub fn call_ended(&self) {
        self.in_flight.dec();
    }

    /// Counts bytes that `side` has sent.
    pub fn bytes_forwarded(&self, side: Side, bytes: usize) {
        match side {
            Side::Client => self.client_bytes.inc_by(bytes as u64),
            Side::Server => self.endpoint_bytes.inc_by(bytes as u64),
        }
    }

    /// Counts a call that the proxy answered with UNAVAILABLE.
    pub fn call_refused(&self) {
        self.refused_calls.inc();
    }

    /// Counts a client connection for which no endpoint was reachable.
    pub fn connection_refused(&self) {
        self.refused_connections.inc();
    }

    /// Counts records that were written to the trace file.
    pub fn records_written(&self, records: u64) {
        self.records_written.inc_by(records);
    }

    /// Counts records that are missing in the trace file.
    pub fn records_missing(&self, records: u64) {
        self.records_missing.inc_by(records);
    }

    /// Shows that recording stopped because of an I/O error.
    pub fn recorder_failed(&self) {
        self.recorder_failed.set(1);
    }

    /// The numbers of written and of missing records.
    #[cfg(test)]
    pub fn record_counts(&self) -> (u64, u64) {
        (self.records_written.get(), self.records_missing.get())
    }

    /// The metrics in the Prometheus text format.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
