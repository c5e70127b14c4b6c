//! Metrics of requests that are served without an API server.

use prometheus::{IntGauge, IntGaugeVec};

use super::create::Create;

/// Metrics of the detection.
pub struct NodePathMetrics {
    permitted: IntGauge,
    reads_permitted: IntGauge,
    lease_reads_permitted: IntGauge,
    refused: IntGaugeVec,
}

impl NodePathMetrics {
    /// Creates all metrics.
    pub fn new(create: &Create<'_>) -> NodePathMetrics {
        NodePathMetrics {
            permitted: create.gauge(
                "kube_gateway_node_path_permitted",
                "1 if renewals of node Leases may be served without an API server, otherwise 0.",
            ),
            reads_permitted: create.gauge(
                "kube_gateway_node_path_reads_permitted",
                "1 if watches and lists of nodes may be served without an API server, otherwise 0.",
            ),
            lease_reads_permitted: create.gauge(
                "kube_gateway_node_path_lease_reads_permitted",
                "1 if watches and lists of Leases may be served without an API server, otherwise 0.",
            ),
            refused: create.gauges_by(
                "kube_gateway_node_path_refused",
                "1 if this rule forbids to serve requests of nodes without an API server, otherwise 0.",
                &["rule"],
            ),
        }
    }

    /// Notes for each rule whether it is true, and what is permitted.
    pub fn judged(
        &self,
        rules: impl Iterator<Item = (&'static str, bool)>,
        renewals: bool,
        reads: bool,
        lease_reads: bool,
    ) {
        for (rule, is_true) in rules {
            self.refused.with_label_values(&[rule]).set(i64::from(is_true));
        }
        self.permitted.set(i64::from(renewals));
        self.reads_permitted.set(i64::from(reads));
        self.lease_reads_permitted.set(i64::from(lease_reads));
    }
}
