//! Metrics in the format of Prometheus.

mod create;
mod leases;
mod node_path;
mod protection;
mod reads;

use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use http::StatusCode;
use prometheus::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};

use self::create::Create;
use self::leases::LeaseMetrics;
use self::node_path::NodePathMetrics;
use self::protection::ProtectionMetrics;
pub use self::reads::CacheState;
use self::reads::ReadMetrics;
use crate::protect::Protection;
use crate::request_info::RequestInfo;
use crate::upstream::Pool;

/// The metrics of the process.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    duration: HistogramVec,
    bytes: IntCounter,
    broken: IntCounter,
    moved: IntCounter,
    handshake_failures: IntCounter,
    handshake_wait: Histogram,
    client_connections: IntGauge,
    server_ready: IntGaugeVec,
    server_connections: IntGaugeVec,
    server_requests: IntGaugeVec,
    server_watches: IntGaugeVec,
    protection: ProtectionMetrics,
    /// Renewals of node Leases.
    pub leases: LeaseMetrics,
    /// Watches and lists of nodes.
    pub reads: ReadMetrics,
    node_path: NodePathMetrics,
    reloads: IntCounterVec,
    reload_failed: IntGauge,
    restart_needed: IntGauge,
}

impl Metrics {
    /// Creates all metrics.
    pub fn new() -> Metrics {
        let registry = Registry::new();
        let create = Create(&registry);
        #[cfg(target_os = "linux")]
        create.register(prometheus::process_collector::ProcessCollector::for_self());
        Metrics {
            requests: create.counters(
                "kube_gateway_requests_total",
                "Requests by verb and status code. The verb is Kubernetes', such as list.",
                &["verb", "code"],
            ),
            duration: create.histograms(
                "kube_gateway_request_duration_seconds",
                "Time from the request to the end of the answer, without watches and tunnels.",
                &["verb"],
            ),
            bytes: create
                .counter("kube_gateway_answer_bytes_total", "Bytes of the bodies of answers."),
            broken: create.counter(
                "kube_gateway_broken_answers_total",
                "Answers that broke off because the API server's connection ended.",
            ),
            moved: create.counter(
                "kube_gateway_connections_moved_total",
                "Client connections that were told to dial again, for an even load.",
            ),
            handshake_failures: create.counter(
                "kube_gateway_tls_handshake_failures_total",
                "Failed TLS handshakes of clients.",
            ),
            handshake_wait: create.histogram(
                "kube_gateway_tls_handshake_wait_seconds",
                "Time for which a client waited because of listen.handshakesPerSecond.",
            ),
            client_connections: create
                .gauge("kube_gateway_client_connections", "Open connections of clients."),
            server_ready: create
                .gauges("kube_gateway_server_ready", "1 if the API server is ready, otherwise 0."),
            server_connections: create.gauges(
                "kube_gateway_server_connections",
                "Client connections of an API server, without those that were told to dial again.",
            ),
            server_requests: create.gauges(
                "kube_gateway_server_requests_in_flight",
                "Requests in flight at an API server, without watches and tunnels.",
            ),
            server_watches: create.gauges(
                "kube_gateway_server_watches",
                "Running watches and tunnels of an API server.",
            ),
            protection: ProtectionMetrics::new(&create),
            leases: LeaseMetrics::new(&create),
            reads: ReadMetrics::new(&create),
            node_path: NodePathMetrics::new(&create),
            reloads: create.counters(
                "kube_gateway_config_reloads_total",
                "Changes of the configuration file, by result: applied or rejected.",
                &["result"],
            ),
            reload_failed: create.gauge(
                "kube_gateway_config_rejected",
                "1 if the configuration file is not valid and the previous one is in force, otherwise 0.",
            ),
            restart_needed: create.gauge(
                "kube_gateway_config_restart_needed",
                "Changed fields of the configuration file that apply only after a restart.",
            ),
            registry: registry.clone(),
        }
    }

    /// Counts the end of a request.
    pub fn exchange_ended(
        &self,
        info: &RequestInfo,
        code: StatusCode,
        seconds: f64,
        bytes: u64,
        failed: bool,
    ) {
        self.requests.with_label_values(&[info.verb, code.as_str()]).inc();
        if !info.long_running {
            self.duration.with_label_values(&[info.verb]).observe(seconds);
        }
        self.bytes.inc_by(bytes);
        if failed {
            self.broken.inc();
        }
    }

    /// Counts client connections that were told to dial again.
    pub fn connections_moved(&self, count: usize) {
        self.moved.inc_by(count as u64);
    }

    /// Counts a failed TLS handshake.
    pub fn handshake_failed(&self) {
        self.handshake_failures.inc();
    }

    /// Notes how long a client waited for its TLS handshake.
    pub fn handshake_waited(&self, seconds: f64) {
        self.handshake_wait.observe(seconds);
    }

    /// Counts a client connection until the returned value is dropped.
    pub fn client_connected(&self) -> impl Drop + use<> {
        self.client_connections.inc();
        Decrement(self.client_connections.clone())
    }

    /// Notes how long a LIST waited for its turn.
    pub fn list_waited(&self, seconds: f64) {
        self.protection.list_wait.observe(seconds);
    }

    /// Counts a LIST that got 429 instead of its turn.
    pub fn list_refused(&self) {
        self.protection.lists_refused.inc();
    }

    /// Counts a request that the throttle refused.
    pub fn throttled(&self) {
        self.protection.throttled.inc();
    }

    /// Notes for each rule whether it forbids to serve requests of nodes without an API server, and
    /// whether renewals and reads are permitted.
    pub fn node_path_judged(
        &self,
        rules: impl Iterator<Item = (&'static str, bool)>,
        renewals: bool,
        reads: bool,
        lease_reads: bool,
    ) {
        self.node_path.judged(rules, renewals, reads, lease_reads);
    }

    /// Notes that a changed configuration file was applied, without `restart` fields that need a
    /// restart.
    pub fn config_applied(&self, restart: usize) {
        self.reloads.with_label_values(&["applied"]).inc();
        self.reload_failed.set(0);
        self.restart_needed.set(restart as i64);
    }

    /// Notes that a changed configuration file is not valid.
    pub fn config_rejected(&self) {
        self.reloads.with_label_values(&["rejected"]).inc();
        self.reload_failed.set(1);
    }

    /// Returns the page, with the current state of the API servers and of the limits.
    pub fn render(&self, pool: &Pool, protection: &Protection) -> Result<String> {
        self.protection.update(pool, protection);
        let all = [
            &self.server_ready,
            &self.server_connections,
            &self.server_requests,
            &self.server_watches,
        ];
        // Servers that left the pool disappear.
        all.iter().for_each(|gauges| gauges.reset());
        for server in pool.servers().iter() {
            let values = [
                usize::from(server.is_ready()),
                server.connections(),
                server.requests.load(Relaxed),
                server.watches.load(Relaxed),
            ];
            for (gauges, value) in all.iter().zip(values) {
                gauges.with_label_values(&[&server.address]).set(value as i64);
            }
        }
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }
}

struct Decrement(IntGauge);

impl Drop for Decrement {
    fn drop(&mut self) {
        self.0.dec();
    }
}
