//! Metrics in the format of Prometheus.

use anyhow::Result;
use http::StatusCode;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use std::sync::atomic::Ordering::Relaxed;

use crate::request_info::RequestInfo;
use crate::upstream::Pool;

/// Upper bounds of the duration of a request, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

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

    /// Returns the page, with the state of the API servers.
    pub fn render(&self, pool: &Pool) -> Result<String> {
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

/// Creates and registers metrics. Their names are constants of this file, so that an error is a
/// mistake in it.
struct Create<'a>(&'a Registry);

impl Create<'_> {
    fn register(&self, metric: impl prometheus::core::Collector + 'static) {
        self.0.register(Box::new(metric)).expect("each metric is registered once");
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        let metric = IntCounter::new(name, help).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let metric = IntCounterVec::new(Opts::new(name, help), labels).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        let metric = IntGauge::new(name, help).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    fn gauges(&self, name: &str, help: &str) -> IntGaugeVec {
        let metric =
            IntGaugeVec::new(Opts::new(name, help), &["server"]).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let metric = Histogram::with_opts(options).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let metric = HistogramVec::new(options, labels).expect("the name is valid");
        self.register(metric.clone());
        metric
    }
}
