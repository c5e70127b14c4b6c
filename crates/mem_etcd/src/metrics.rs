//! Metrics. Those that exist in etcd have the same names here.

use std::collections::HashMap;
use std::sync::Arc;

use grpc::Code;
use parking_lot::RwLock;
use pipeline::{Pipeline, PipelineStatus};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use crate::config::ETCD_VERSION;

/// All metrics of the server.
pub struct Metrics {
    registry: Registry,
    /// Completed calls, by service, method and code.
    handled: IntCounterVec,
    /// The counters of `handled` by path and code. They are cached because a lookup by
    /// labels takes longer than some calls.
    counters: RwLock<HashMap<(&'static str, Code), IntCounter>>,
    /// Bytes received from gRPC clients, including HTTP/2 framing, without TLS.
    pub(crate) received_bytes: IntCounter,
    /// Bytes sent to gRPC clients, counted in the same way.
    pub(crate) sent_bytes: IntCounter,
}

impl Metrics {
    /// Creates the metrics of the store, the process and the API.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        let registry = Registry::new();
        let handled = IntCounterVec::new(
            Opts::new(
                "grpc_server_handled_total",
                "Total number of RPCs completed on the server, regardless of success or failure.",
            ),
            &["grpc_service", "grpc_method", "grpc_code"],
        )
        .expect("a valid name");
        let counter = |name, help| IntCounter::new(name, help).expect("a valid name");
        let received_bytes = counter(
            "etcd_network_client_grpc_received_bytes_total",
            "The total number of bytes received from grpc clients.",
        );
        let sent_bytes = counter(
            "etcd_network_client_grpc_sent_bytes_total",
            "The total number of bytes sent to grpc clients.",
        );
        let gauges = StoreCollector::new(pipeline);
        let process = prometheus::process_collector::ProcessCollector::for_self();
        let collectors: [Box<dyn Collector>; 5] = [
            Box::new(handled.clone()),
            Box::new(received_bytes.clone()),
            Box::new(sent_bytes.clone()),
            Box::new(gauges),
            Box::new(process),
        ];
        for collector in collectors {
            registry.register(collector).expect("names differ");
        }
        Metrics { registry, handled, counters: RwLock::default(), received_bytes, sent_bytes }
    }

    /// Counts a completed call of the method with this path.
    pub fn call_ended(&self, path: &'static str, code: Code) {
        if let Some(counter) = self.counters.read().get(&(path, code)) {
            return counter.inc();
        }
        let (service, method) = path[1..].rsplit_once('/').unwrap_or_default();
        let counter = self.handled.with_label_values(&[service, method, code.name()]);
        counter.inc();
        self.counters.write().insert((path, code), counter);
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Gauges whose values are read from the store at each scrape.
struct StoreCollector {
    pipeline: Arc<Pipeline>,
    gauges: Vec<StoreGauge>,
}

/// A gauge and the function that reads its value.
type StoreGauge = (IntGauge, fn(&PipelineStatus) -> i64);

impl StoreCollector {
    fn new(pipeline: Arc<Pipeline>) -> Self {
        let gauge = |name: &str, help: &str, read: fn(&PipelineStatus) -> i64| {
            (IntGauge::new(name, help).expect("a valid name"), read)
        };
        let version = Opts::new(
            "etcd_server_version",
            "Which version is running. 1 for 'server_version' label with current version.",
        )
        .const_label("server_version", ETCD_VERSION);
        let gauges = vec![
            gauge(
                "etcd_server_has_leader",
                "Whether or not a leader exists. 1 is existence, 0 is not.",
                |s| s.cluster.as_ref().map_or(1, |cluster| i64::from(cluster.leader != 0)),
            ),
            gauge(
                "etcd_server_is_leader",
                "Whether or not this member is a leader. 1 if is, 0 otherwise.",
                |s| s.cluster.as_ref().map_or(1, |cluster| i64::from(cluster.is_leader)),
            ),
            gauge(
                "etcd_server_is_learner",
                "Whether or not this member is a learner. 1 if is, 0 otherwise.",
                |s| s.cluster.as_ref().map_or(0, |cluster| i64::from(cluster.is_learner)),
            ),
            gauge(
                "etcd_server_leader_changes_seen_total",
                "The number of leader changes seen.",
                |s| s.cluster.as_ref().map_or(0, |cluster| cluster.leader_changes as i64),
            ),
            gauge(
                "etcd_server_proposals_committed_total",
                "The total number of consensus proposals committed.",
                |s| s.cluster.as_ref().map_or(0, |cluster| cluster.commit as i64),
            ),
            gauge(
                "etcd_server_proposals_applied_total",
                "The total number of consensus proposals applied.",
                |s| s.cluster.as_ref().map_or(0, |cluster| cluster.applied as i64),
            ),
            gauge(
                "etcd_server_proposals_pending",
                "The current number of pending proposals to commit.",
                |s| s.queued_commands as i64,
            ),
            gauge(
                "etcd_mvcc_db_total_size_in_bytes",
                "Size of the key-value pairs at all readable revisions, in bytes, with the overhead per pair.",
                |s| s.stats.total_bytes,
            ),
            gauge(
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "Size of the key-value pairs at the current revision, in bytes, with the overhead per pair.",
                |s| s.stats.live_bytes,
            ),
            gauge("etcd_debugging_mvcc_keys_total", "Total number of keys.", |s| s.stats.live_keys),
            gauge("etcd_debugging_mvcc_current_revision", "The current revision of store.", |s| {
                s.revision
            }),
            gauge(
                "etcd_debugging_mvcc_compact_revision",
                "The revision of the last compaction in store.",
                |s| s.compacted,
            ),
            gauge("etcd_debugging_mvcc_watcher_total", "Total number of watchers.", |s| {
                s.watchers as i64
            }),
            gauge("etcd_debugging_auth_revision", "The current revision of auth store.", |s| {
                s.auth_revision as i64
            }),
            gauge("etcd_debugging_lease_total", "Total number of leases.", |s| s.stats.leases),
            gauge(
                "mem_etcd_history_events",
                "Number of events in the history, which begins at the last compaction.",
                |s| s.stats.events,
            ),
            gauge(
                "mem_etcd_no_space",
                "Whether the disk was full when the log was last written. 1 if it was, 0 otherwise.",
                |s| i64::from(s.no_space),
            ),
            gauge(
                "mem_etcd_log_failed",
                "Whether the log has failed; the server then refuses all writes. 1 if it has, 0 otherwise.",
                |s| i64::from(s.failure.is_some()),
            ),
            (IntGauge::with_opts(version).expect("a valid name"), |_| 1),
        ];
        StoreCollector { pipeline, gauges }
    }
}

impl Collector for StoreCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(|(gauge, _)| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.pipeline.status();
        let read = |(gauge, read): &StoreGauge| {
            gauge.set(read(&status));
            gauge.collect()
        };
        self.gauges.iter().flat_map(read).collect()
    }
}
