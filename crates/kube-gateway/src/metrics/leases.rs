//! Metrics of renewals of node Leases.

use prometheus::{IntCounter, IntCounterVec, IntGauge};

use super::create::Create;

/// Metrics of renewals of node Leases.
pub struct LeaseMetrics {
    served: IntCounter,
    renewals: IntCounterVec,
    comparisons: IntCounterVec,
    waiting: IntGauge,
    state: IntGauge,
    known: IntGauge,
}

impl LeaseMetrics {
    /// Creates all metrics.
    pub fn new(create: &Create<'_>) -> LeaseMetrics {
        let renewals = create.counters(
            "kube_gateway_node_path_lease_renewals_total",
            "Renewals of node Leases that were served from the store, or forwarded to an API server for a reason.",
            &["result", "reason"],
        );
        LeaseMetrics {
            served: renewals.with_label_values(&["served", ""]),
            renewals,
            comparisons: create.counters(
                "kube_gateway_node_path_lease_comparisons_total",
                "Forwarded renewals that were compared with their prediction, by result: equal, different or unknown.",
                &["result"],
            ),
            waiting: create.gauge(
                "kube_gateway_node_path_lease_renewals_waiting",
                "Renewals of node Leases that wait until an API server executes fewer others, or until they may be served.",
            ),
            state: create.gauge(
                "kube_gateway_node_path_lease_state",
                "0: renewals are forwarded, because a comparison found a difference or nodePath.leases.mode is off; 1: they are compared; 2: they may be served.",
            ),
            known: create.gauge(
                "kube_gateway_node_path_leases_known",
                "Leases whose version is known, so that their next renewal may be served.",
            ),
        }
    }

    /// Counts a renewal that was served.
    pub fn served(&self) {
        self.served.inc();
    }

    /// Counts a renewal that was forwarded for a reason.
    pub fn forwarded(&self, reason: &str) {
        self.renewals.with_label_values(&["forwarded", reason]).inc();
    }

    /// Counts a comparison.
    pub fn compared(&self, result: &str) {
        self.comparisons.with_label_values(&[result]).inc();
    }

    /// Notes that this many more wait; fewer if it is negative.
    pub fn waiting(&self, change: i64) {
        self.waiting.add(change);
    }

    /// Notes the state.
    pub fn set_state(&self, state: i64) {
        self.state.set(state);
    }

    /// Notes how many Leases are known.
    pub fn set_known(&self, count: usize) {
        self.known.set(count as i64);
    }
}
