//! Metrics of requests that are served without an API server.

use prometheus::{IntGauge, IntGaugeVec};

use super::create::Create;

/// Metrics of the detection.
pub struct NodePathMetrics {
    permitted: IntGauge,
    refused: IntGaugeVec,
}

impl NodePathMetrics {
    /// Creates all metrics.
    pub fn new(create: &Create<'_>) -> NodePathMetrics {
        NodePathMetrics {
            permitted: create.gauge(
                "kube_gateway_node_path_permitted",
                "1 if requests of nodes may be served without an API server, otherwise 0.",
            ),
            refused: create.gauges_by(
                "kube_gateway_node_path_refused",
                "1 if this rule forbids to serve requests of nodes without an API server, otherwise 0.",
                &["rule"],
            ),
        }
    }

    /// Notes for each rule whether it is true.
    pub fn judged(&self, rules: impl Iterator<Item = (&'static str, bool)>) {
        let mut permitted = true;
        for (rule, is_true) in rules {
            self.refused.with_label_values(&[rule]).set(i64::from(is_true));
            permitted &= !is_true;
        }
        self.permitted.set(i64::from(permitted));
    }
}
