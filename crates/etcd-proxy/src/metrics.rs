//! What the proxy counts.

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};

use crate::tap::Side;

/// Everything that is counted.
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
    pub fn new() -> Self {
        let registry = Registry::new();
        let process: Box<dyn Collector> = Box::new(ProcessCollector::for_self());
        registry.register(process).expect("names differ");
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("etcd_proxy_{name}"), help);
            let counter = counter.expect("a valid name");
            registry.register(Box::new(counter.clone())).expect("names differ");
            counter
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("etcd_proxy_{name}"), help);
            let gauge = gauge.expect("a valid name");
            registry.register(Box::new(gauge.clone())).expect("names differ");
            gauge
        };
        Metrics {
            connections: gauge("connections", "Client connections that are forwarded."),
            calls: counter("calls_total", "Calls and streams that were forwarded."),
            in_flight: gauge("calls_in_flight", "Calls and streams that are not over."),
            from_clients: counter("client_bytes_total", "Bytes forwarded from clients."),
            from_endpoints: counter("endpoint_bytes_total", "Bytes forwarded from endpoints."),
            refused: counter("refused_calls_total", "Calls answered UNAVAILABLE by the proxy."),
            unreachable: counter("unreachable_total", "Times that no endpoint was reached."),
            written: counter("records_written_total", "Lines that were recorded."),
            missing: counter("records_missing_total", "Lines that were not recorded."),
            recorder_failed: gauge("recorder_failed", "Whether the recording has ended early."),
            registry,
        }
    }

    pub fn connected(&self) {
        self.connections.inc();
    }

    pub fn disconnected(&self) {
        self.connections.dec();
    }

    pub fn begun(&self) {
        self.calls.inc();
        self.in_flight.inc();
    }

    pub fn ended(&self) {
        self.in_flight.dec();
    }

    pub fn forwarded(&self, side: Side, bytes: usize) {
        match side {
            Side::Client => self.from_clients.inc_by(bytes as u64),
            Side::Server => self.from_endpoints.inc_by(bytes as u64),
        }
    }

    pub fn refused(&self) {
        self.refused.inc();
    }

    pub fn unreachable(&self) {
        self.unreachable.inc();
    }

    pub fn written(&self, lines: u64) {
        self.written.inc_by(lines);
    }

    pub fn missing(&self, lines: u64) {
        self.missing.inc_by(lines);
    }

    pub fn recorder_failed(&self) {
        self.recorder_failed.set(1);
    }

    /// Lines that were recorded, and those that were not.
    #[cfg(test)]
    pub fn records(&self) -> (u64, u64) {
        (self.written.get(), self.missing.get())
    }

    /// In Prometheus' text form.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
