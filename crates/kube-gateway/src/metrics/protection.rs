//! Metrics of what protects the API servers and the gateway.

use std::time::Instant;

use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};

use super::create::Create;
use crate::protect::{ListQueue, Protection};
use crate::upstream::Pool;

/// The label `server` of the LISTs that the gateway answers itself.
const OWN_LISTS: &str = "kube-gateway";

/// Metrics of the limits.
pub struct ProtectionMetrics {
    /// Time for which LISTs waited.
    pub list_wait: Histogram,
    /// Requests that the throttle refused.
    pub throttled: IntCounter,
    /// LISTs that got 429.
    pub lists_refused: IntCounter,
    throttle_rules: IntGauge,
    list_predicted: IntCounter,
    list_answered: IntCounter,
    list_bytes: IntGaugeVec,
    lists_running: IntGaugeVec,
    lists_waiting: IntGaugeVec,
    renewals_running: IntGaugeVec,
    buffered: IntGauge,
    stopped: IntGauge,
    stops: IntCounter,
}

impl ProtectionMetrics {
    /// Creates all metrics.
    pub fn new(create: &Create<'_>) -> ProtectionMetrics {
        ProtectionMetrics {
            list_wait: create.histogram(
                "kube_gateway_list_wait_seconds",
                "Time for which a LIST waited because of lists.maxBytes, also if it then got 429.",
            ),
            throttled: create.counter(
                "kube_gateway_throttled_requests_total",
                "Requests that got 429 from a rule of the throttle.",
            ),
            throttle_rules: create
                .gauge("kube_gateway_throttle_rules", "Rules of the throttle that are in force."),
            list_predicted: create.counter(
                "kube_gateway_list_predicted_bytes_total",
                "Bytes that were predicted for the LIST answers that then came complete.",
            ),
            list_answered: create.counter(
                "kube_gateway_list_answered_bytes_total",
                "Bytes that these answers had without compression.",
            ),
            list_bytes: create.gauges(
                "kube_gateway_list_reserved_bytes",
                "Predicted bytes of the LIST answers in progress at an API server, without compression, and bytes of those that the gateway answers itself (server kube-gateway).",
            ),
            lists_running: create
                .gauges("kube_gateway_lists_running", "LISTs in progress at an API server."),
            renewals_running: create.gauges(
                "kube_gateway_node_path_lease_renewals_running",
                "Renewals of node Leases that an API server executes, at most 256.",
            ),
            lists_waiting: create.gauges(
                "kube_gateway_lists_waiting",
                "LISTs that wait for their turn at an API server.",
            ),
            lists_refused: create.counter(
                "kube_gateway_lists_refused_total",
                "LISTs that got 429 because of lists.maxWaiting or lists.maxWait.",
            ),
            buffered: create.gauge(
                "kube_gateway_buffered_bytes",
                "Bytes of answers that were read from API servers and wait for clients.",
            ),
            stopped: create.gauge(
                "kube_gateway_buffered_stopped_connections",
                "Connections to API servers that are not read because of buffers.maxBytes.",
            ),
            stops: create.counter(
                "kube_gateway_buffered_stops_total",
                "How often the reading of a connection was stopped because of buffers.maxBytes.",
            ),
        }
    }

    /// Reads the current state.
    pub fn update(&self, pool: &Pool, protection: &Protection) {
        let Protection { lists, own_lists, throttle, buffers } = protection;
        let (predicted, answered) = lists.totals();
        advance(&self.list_predicted, predicted);
        advance(&self.list_answered, answered);
        self.throttle_rules.set(throttle.list(Instant::now()).len() as i64);
        let all = [&self.list_bytes, &self.lists_running, &self.lists_waiting];
        // Servers that left the pool disappear.
        all.iter().for_each(|gauges| gauges.reset());
        let show = |server: &str, queue: &ListQueue| {
            let lists = queue.status();
            let values = [lists.bytes, lists.running as u64, lists.waiting as u64];
            for (gauges, value) in all.iter().zip(values) {
                gauges.with_label_values(&[server]).set(value as i64);
            }
        };
        pool.servers().iter().for_each(|server| show(&server.address, &server.lists));
        show(OWN_LISTS, own_lists);
        self.renewals_running.reset();
        for server in pool.servers().iter() {
            let running = server.renewals.running() as i64;
            self.renewals_running.with_label_values(&[&server.address]).set(running);
        }
        let status = buffers.status();
        self.buffered.set(status.held as i64);
        self.stopped.set(status.stopped as i64);
        advance(&self.stops, status.stops);
    }
}

/// Sets a counter to a value that is counted elsewhere.
fn advance(counter: &IntCounter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}
