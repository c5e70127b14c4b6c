//! Metrics of watches and lists of nodes.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::create::Create;

/// Metrics of watches and lists of nodes.
pub struct ReadMetrics {
    reads: IntCounterVec,
    events: IntCounter,
    serving: IntGaugeVec,
    watches: IntGaugeVec,
    objects: IntGaugeVec,
}

impl ReadMetrics {
    /// Creates all metrics.
    pub fn new(create: &Create<'_>) -> ReadMetrics {
        let resource = &["resource"];
        ReadMetrics {
            reads: create.counters(
                "kube_gateway_node_path_reads_total",
                "Watches and lists of nodes that were served from a watch cache, forwarded to an API server for a reason, or continued after an API server had begun the watch.",
                &["resource", "verb", "result", "reason"],
            ),
            events: create.counter(
                "kube_gateway_node_path_events_total",
                "Events that were delivered to watches from a watch cache, without initial ones and bookmarks.",
            ),
            serving: create.gauges_by(
                "kube_gateway_node_path_cache_serving",
                "1 if the watch cache of this resource serves, otherwise 0.",
                resource,
            ),
            watches: create.gauges_by(
                "kube_gateway_node_path_watches",
                "Open watches that are served from the watch cache of this resource.",
                resource,
            ),
            objects: create.gauges_by(
                "kube_gateway_node_path_objects",
                "Objects in the watch cache of this resource.",
                resource,
            ),
        }
    }

    /// Counts a request that was served, forwarded for a reason, or continued after an API server had
    /// begun the watch.
    pub fn count(&self, resource: &str, verb: &str, result: &str, reason: &str) {
        self.reads.with_label_values(&[resource, verb, result, reason]).inc();
    }

    /// Counts events that were delivered.
    pub fn delivered(&self, events: usize) {
        self.events.inc_by(events as u64);
    }

    /// Notes the state of a cache.
    pub fn set_state(&self, resource: &str, is_serving: bool, watches: usize, objects: usize) {
        self.serving.with_label_values(&[resource]).set(is_serving.into());
        self.watches.with_label_values(&[resource]).set(watches as i64);
        self.objects.with_label_values(&[resource]).set(objects as i64);
    }
}
