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
    bytes: IntGaugeVec,
    too_large: IntGaugeVec,
    unreadable: IntGaugeVec,
    references: IntGaugeVec,
}

/// The state of a watch cache.
pub struct CacheState {
    /// The resource.
    pub resource: &'static str,
    /// Whether it serves.
    pub is_serving: bool,
    /// Whether it does not because of its size.
    pub is_too_large: bool,
    /// Whether it does not because of what the store has, or does not show.
    pub is_unreadable: bool,
    /// Open watches.
    pub watches: usize,
    /// Objects.
    pub objects: usize,
    /// Bytes of the objects and of their last changes.
    pub bytes: usize,
    /// Objects to which the pods of nodes refer, if that is asked; `None` in it if there are too many.
    pub references: Option<Option<usize>>,
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
            bytes: create.gauges_by(
                "kube_gateway_node_path_cache_bytes",
                "Bytes of the objects in the watch cache of this resource, and of their last changes.",
                resource,
            ),
            too_large: create.gauges_by(
                "kube_gateway_node_path_cache_too_large",
                "1 if the watch cache of this resource does not serve because its objects exceed maxReferencedBytes, otherwise 0.",
                resource,
            ),
            unreadable: create.gauges_by(
                "kube_gateway_node_path_cache_unreadable",
                "1 if the watch cache of this resource does not serve because the store has a value of an unknown form or refuses to show its values, otherwise 0.",
                resource,
            ),
            references: create.gauges_by(
                "kube_gateway_node_path_references",
                "ConfigMaps and Secrets to which objects of this resource refer, for each node; -1 if there are too many.",
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
    pub fn set_state(&self, state: CacheState) {
        let resource = &[state.resource];
        self.serving.with_label_values(resource).set(state.is_serving.into());
        self.too_large.with_label_values(resource).set(state.is_too_large.into());
        self.unreadable.with_label_values(resource).set(state.is_unreadable.into());
        self.watches.with_label_values(resource).set(state.watches as i64);
        self.objects.with_label_values(resource).set(state.objects as i64);
        self.bytes.with_label_values(resource).set(state.bytes as i64);
        if let Some(references) = state.references {
            self.references
                .with_label_values(resource)
                .set(references.map_or(-1, |count| count as i64));
        }
    }
}
