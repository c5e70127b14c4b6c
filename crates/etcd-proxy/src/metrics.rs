//! The metrics of the proxy.

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};

use crate::side::Side;

/// All metrics.
pub struct Metrics {
    registry: Registry,
    connections: IntGauge,
    calls: IntCounter,
    in_flight: IntGauge,
    from_clients: IntCounter,
    from_endpoints: IntCounter,
    refused: IntCounter,
    unreachable: IntCounter,
    written: IntCounter,
    missing: IntCounter,
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
            connections: gauge("connections", "Open client connections."),
            calls: counter("calls_total", "Forwarded calls and streams."),
            in_flight: gauge("calls_in_flight", "Forwarded calls and streams in progress."),
            from_clients: counter("client_bytes_total", "Bytes forwarded from clients."),
            from_endpoints: counter("endpoint_bytes_total", "Bytes forwarded from endpoints."),
            refused: counter(
                "refused_calls_total",
                "Calls that the proxy answered with UNAVAILABLE because no endpoint was reachable.",
            ),
            unreachable: counter(
                "unreachable_total",
                "Client connections for which no endpoint was reachable.",
            ),
            written: counter("records_written_total", "Records written to the trace file."),
            missing: counter(
                "records_missing_total",
                "Records that are missing from the trace file.",
            ),
            recorder_failed: gauge(
                "recorder_failed",
                "Whether recording stopped because of an I/O error (1) or not (0).",
            ),
            registry,
        }
    }

    /// A client connection was opened.
    pub fn connected(&self) {
        self.connections.inc();
    }

    /// A client connection was closed.
    pub fn disconnected(&self) {
        self.connections.dec();
    }

    /// A call or stream has started.
    pub fn call_started(&self) {
        self.calls.inc();
        self.in_flight.inc();
    }

    /// A call or stream has ended.
    pub fn call_ended(&self) {
        self.in_flight.dec();
    }

    /// Bytes sent by `side` were forwarded.
    pub fn forwarded(&self, side: Side, bytes: usize) {
        match side {
            Side::Client => self.from_clients.inc_by(bytes as u64),
            Side::Server => self.from_endpoints.inc_by(bytes as u64),
        }
    }

    /// A call was answered with UNAVAILABLE.
    pub fn call_refused(&self) {
        self.refused.inc();
    }

    /// No endpoint was reachable for a client connection.
    pub fn endpoint_unreachable(&self) {
        self.unreachable.inc();
    }

    /// Records were written.
    pub fn records_written(&self, records: u64) {
        self.written.inc_by(records);
    }

    /// Records could not be written.
    pub fn records_missing(&self, records: u64) {
        self.missing.inc_by(records);
    }

    /// Recording stopped because of an I/O error.
    pub fn recorder_failed(&self) {
        self.recorder_failed.set(1);
    }

    /// Numbers of written and missing records.
    #[cfg(test)]
    pub fn record_counts(&self) -> (u64, u64) {
        (self.written.get(), self.missing.get())
    }

    /// The metrics in the Prometheus text format.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
