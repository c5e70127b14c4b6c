package dashboard

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// Units as Grafana calls them.
const (
	perSecond = "reqps"
	seconds   = "s"
	size      = "bytes"
	byteRate  = "Bps"
	number    = "short"
	cores     = "short"
)

// of adds the labels that choose a job of the cluster; § stands for them.
func of(job, expr string) string {
	return strings.ReplaceAll(expr, "§", ClusterLabel+`="$cluster",job="`+job+`"`)
}

func rows() []row {
	return []row{
		{"Store", storePanels()},
		{"API servers", apiServerPanels()},
		{"Scheduler", schedulerPanels()},
		{"Nodes", nodePanels()},
		{"Processes", processPanels()},
	}
}

func storePanels() []panel {
	return []panel{
		{"Requests", "What API servers ask of the store, by method.", perSecond, []query{
			{of(component.Store, `sum by (grpc_method) (rate(grpc_server_handled_total{§}[$__rate_interval]))`), "{{grpc_method}}"},
		}},
		{"Latency as API servers see it, p99.9", "By operation; the store's time, and the way there.", seconds, []query{
			{of(component.RoleAPIServer, `histogram_quantile(0.999, sum by (le, operation) (rate(etcd_request_duration_seconds_bucket{§}[$__rate_interval])))`), "{{operation}}"},
		}},
		{"Errors", "Requests that did not end well, by code.", perSecond, []query{
			{of(component.Store, `sum by (grpc_code) (rate(grpc_server_handled_total{§,grpc_code!="OK"}[$__rate_interval]))`), "{{grpc_code}}"},
		}},
		{"Size", "What is stored, and how much of that is of use.", size, []query{
			{of(component.Store, `etcd_mvcc_db_total_size_in_bytes{§}`), "all"},
			{of(component.Store, `etcd_mvcc_db_total_size_in_use_in_bytes{§}`), "in use"},
		}},
		{"Items", "Keys, and watchers of them.", number, []query{
			{of(component.Store, `etcd_debugging_mvcc_keys_total{§}`), "keys"},
			{of(component.Store, `etcd_debugging_mvcc_watcher_total{§}`), "watchers"},
		}},
		{"Traffic", "Bytes a second, from and to API servers.", byteRate, []query{
			{of(component.Store, `rate(etcd_network_client_grpc_received_bytes_total{§}[$__rate_interval])`), "received"},
			{of(component.Store, `rate(etcd_network_client_grpc_sent_bytes_total{§}[$__rate_interval])`), "sent"},
		}},
		{"Revisions", "Changes a second.", number, []query{
			{of(component.Store, `rate(etcd_debugging_mvcc_current_revision{§}[$__rate_interval])`), "revisions"},
		}},
	}
}

func apiServerPanels() []panel {
	return []panel{
		{"Requests", "By verb and resource, the twelve most frequent; watches are counted when they end.", perSecond, []query{
			{of(component.RoleAPIServer, `topk(12, sum by (verb, resource, subresource) (rate(apiserver_request_total{§}[$__rate_interval])))`), "{{verb}} {{resource}} {{subresource}}"},
		}},
		{"Latency, p95", "By verb and resource, the twelve slowest, without what webhooks and queues take.", seconds, []query{
			{of(component.RoleAPIServer, `topk(12, histogram_quantile(0.95, sum by (le, verb, resource) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb!~"WATCH|CONNECT"}[$__rate_interval]))))`), "{{verb}} {{resource}}"},
		}},
		{"Latency against the objectives, p99", "Calls that change one object, and reads of one, of a namespace, of the cluster: 1 s, 1 s, 30 s, 30 s.", seconds, []query{
			{of(component.RoleAPIServer, `histogram_quantile(0.99, sum by (le) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb=~"POST|PUT|PATCH|DELETE"}[$__rate_interval])))`), "change"},
			{of(component.RoleAPIServer, `histogram_quantile(0.99, sum by (le, scope) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb=~"GET|LIST"}[$__rate_interval])))`), "read {{scope}}"},
		}},
		{"In flight", "Requests that are worked on, and that wait in a queue.", number, []query{
			{of(component.RoleAPIServer, `sum by (instance, request_kind) (apiserver_current_inflight_requests{§})`), "{{instance}} {{request_kind}}"},
			{of(component.RoleAPIServer, `sum by (instance) (apiserver_flowcontrol_current_inqueue_requests{§})`), "{{instance}} queued"},
		}},
		{"Watch events sent", "To clients, by resource, the twelve most frequent.", perSecond, []query{
			{of(component.RoleAPIServer, `topk(12, sum by (resource) (rate(apiserver_watch_events_total{§}[$__rate_interval])))`), "{{resource}}"},
		}},
		{"Watch events received", "From the store, by resource, in each API server.", perSecond, []query{
			{of(component.RoleAPIServer, `topk(12, sum by (instance, resource) (rate(apiserver_watch_cache_events_received_total{§}[$__rate_interval])))`), "{{instance}} {{resource}}"},
		}},
		{"Watches", "That are open, by resource.", number, []query{
			{of(component.RoleAPIServer, `topk(12, sum by (resource) (apiserver_longrunning_requests{§,verb="WATCH"}))`), "{{resource}}"},
		}},
		{"Errors", "Answers of 4xx, but for 404 and 409 which clients expect, and of 5xx.", perSecond, []query{
			{of(component.RoleAPIServer, `sum by (code, verb, resource) (rate(apiserver_request_total{§,code=~"4..|5..",code!~"404|409"}[$__rate_interval]))`), "{{code}} {{verb}} {{resource}}"},
		}},
		{"Garbage collection", "Share of the time that collectors take of a core.", "percentunit", []query{
			{of(component.RoleAPIServer, `rate(go_gc_duration_seconds_sum{§}[$__rate_interval])`), "{{instance}} pauses"},
		}},
	}
}

func schedulerPanels() []panel {
	return []panel{
		{"Pods", "Attempts a second, by what came of them.", perSecond, []query{
			{of(component.RoleScheduler, `sum by (result) (rate(scheduler_schedule_attempts_total{§}[$__rate_interval]))`), "{{result}}"},
		}},
		{"From queue to bound", "p50, p90 and p99 of pods that were placed.", seconds, []query{
			{of(component.RoleScheduler, `histogram_quantile(0.50, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p50"},
			{of(component.RoleScheduler, `histogram_quantile(0.90, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p90"},
			{of(component.RoleScheduler, `histogram_quantile(0.99, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p99"},
		}},
		{"Search for a node", "p50 and p99.", seconds, []query{
			{of(component.RoleScheduler, `histogram_quantile(0.50, sum by (le) (rate(scheduler_scheduling_algorithm_duration_seconds_bucket{§}[$__rate_interval])))`), "p50"},
			{of(component.RoleScheduler, `histogram_quantile(0.99, sum by (le) (rate(scheduler_scheduling_algorithm_duration_seconds_bucket{§}[$__rate_interval])))`), "p99"},
		}},
		{"Pods that wait", "By queue.", number, []query{
			{of(component.RoleScheduler, `sum by (queue) (scheduler_pending_pods{§})`), "{{queue}}"},
		}},
		{"Index", "dist-scheduler: classes of pods, states of nodes, and nodes.", number, []query{
			{of(component.RoleScheduler, `sum by (of) (scheduler_index_size{§})`), "{{of}}"},
		}},
		{"Left to upstream's search", "dist-scheduler: pods a second, by the reason.", perSecond, []query{
			{of(component.RoleScheduler, `sum by (reason) (rate(scheduler_index_fallbacks_total{§}[$__rate_interval]))`), "{{reason}}"},
		}},
	}
}

func nodePanels() []panel {
	return []panel{
		{"Nodes, Leases and pods", "Objects that there are.", number, []query{
			{of(component.RoleAPIServer, `max by (resource) (apiserver_resource_objects{§,resource=~"nodes|leases|pods"})`), "{{resource}}"},
		}},
		{"Heartbeats", "Leases that are renewed, and statuses of nodes and pods that are patched, a second.", perSecond, []query{
			{of(component.RoleAPIServer, `sum (rate(apiserver_request_total{§,resource="leases",verb="PUT"}[$__rate_interval]))`), "Leases"},
			{of(component.RoleAPIServer, `sum by (resource) (rate(apiserver_request_total{§,resource=~"nodes|pods",subresource="status",verb="PATCH"}[$__rate_interval]))`), "status of {{resource}}"},
		}},
		{"Events", "Recorded by the scheduler and nodes, a second.", perSecond, []query{
			{of(component.RoleAPIServer, `sum (rate(apiserver_request_total{§,resource="events",verb="POST"}[$__rate_interval]))`), "Events"},
		}},
	}
}

func processPanels() []panel {
	const all = `{` + ClusterLabel + `="$cluster"}`
	return []panel{
		{"CPU", "Cores that each process has busy.", cores, []query{
			{`rate(process_cpu_seconds_total` + all + `[$__rate_interval])`, "{{instance}}"},
		}},
		{"Memory", "Resident memory of each process.", size, []query{
			{`process_resident_memory_bytes` + all, "{{instance}}"},
		}},
		{"Ready", "1 for a component that answers, and how often processes have ended unasked.", number, []query{
			{of(component.Supervisor, `k1m_component_ready{§}`), "{{component}}"},
			{of(component.Supervisor, `increase(k1m_component_exits_total{§}[$__rate_interval])`), "{{component}} ended"},
		}},
		{"Network", "Bytes a second, in and out, of the machine or network namespace that each process is in.", byteRate, []query{
			{`rate(process_network_receive_bytes_total` + all + `[$__rate_interval])`, "{{instance}} in"},
			{`rate(process_network_transmit_bytes_total` + all + `[$__rate_interval])`, "{{instance}} out"},
		}},
		{"File descriptors", "That each process has open.", number, []query{
			{`process_open_fds` + all, "{{instance}}"},
		}},
		{"Goroutines", "In each Go process.", number, []query{
			{`go_goroutines` + all, "{{instance}}"},
		}},
	}
}
