package dashboard

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// Names of units in Grafana.
const (
	perSecond = "reqps"
	seconds   = "s"
	byteCount = "bytes"
	byteRate  = "Bps"
	number    = "short"
	cores     = "short"
)

// selectJob replaces each § in an expression by label matchers that select a job of the cluster.
func selectJob(job, expr string) string {
	return strings.ReplaceAll(expr, "§", ClusterLabel+`="$cluster",job="`+job+`"`)
}

// rows returns the rows of the dashboard.
func rows() []row {
	return []row{
		{"Store", storePanels()},
		{"API servers", apiServerPanels()},
		{"Gateways", gatewayPanels()},
		{"Scheduler", schedulerPanels()},
		{"Nodes", nodePanels()},
		{"Processes", processPanels()},
	}
}

func storePanels() []panel {
	return []panel{
		{"Requests", "Requests from API servers, by gRPC method.", perSecond, []query{
			{selectJob(component.Store, `sum by (grpc_method) (rate(grpc_server_handled_total{§}[$__rate_interval]))`), "{{grpc_method}}"},
		}},
		{"Request latency, p99.9", "By operation. The API servers measure it, so it includes the network.", seconds, []query{
			{selectJob(component.RoleAPIServer, `histogram_quantile(0.999, sum by (le, operation) (rate(etcd_request_duration_seconds_bucket{§}[$__rate_interval])))`), "{{operation}}"},
		}},
		{"Errors", "Failed requests, by gRPC code.", perSecond, []query{
			{selectJob(component.Store, `sum by (grpc_code) (rate(grpc_server_handled_total{§,grpc_code!="OK"}[$__rate_interval]))`), "{{grpc_code}}"},
		}},
		{"Database size", "Allocated size, and the part of it that is in use.", byteCount, []query{
			{selectJob(component.Store, `etcd_mvcc_db_total_size_in_bytes{§}`), "{{instance}} allocated"},
			{selectJob(component.Store, `etcd_mvcc_db_total_size_in_use_in_bytes{§}`), "{{instance}} in use"},
		}},
		{"Keys and watchers", "Number of keys and of watchers.", number, []query{
			{selectJob(component.Store, `etcd_debugging_mvcc_keys_total{§}`), "{{instance}} keys"},
			{selectJob(component.Store, `etcd_debugging_mvcc_watcher_total{§}`), "{{instance}} watchers"},
		}},
		{"Network traffic", "Bytes per second received from and sent to API servers.", byteRate, []query{
			{selectJob(component.Store, `rate(etcd_network_client_grpc_received_bytes_total{§}[$__rate_interval])`), "{{instance}} received"},
			{selectJob(component.Store, `rate(etcd_network_client_grpc_sent_bytes_total{§}[$__rate_interval])`), "{{instance}} sent"},
		}},
		{"Revisions", "New revisions per second.", number, []query{
			{selectJob(component.Store, `rate(etcd_debugging_mvcc_current_revision{§}[$__rate_interval])`), "{{instance}}"},
		}},
	}
}

func apiServerPanels() []panel {
	return []panel{
		{"Requests", "The 12 most frequent combinations of verb and resource. A watch is counted when it ends.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `topk(12, sum by (verb, resource, subresource) (rate(apiserver_request_total{§}[$__rate_interval])))`), "{{verb}} {{resource}} {{subresource}}"},
		}},
		{"Request latency, p95", "The 12 slowest combinations of verb and resource. Excludes the time in admission webhooks and in priority and fairness queues.", seconds, []query{
			{selectJob(component.RoleAPIServer, `topk(12, histogram_quantile(0.95, sum by (le, verb, resource) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb!~"WATCH|CONNECT"}[$__rate_interval]))))`), "{{verb}} {{resource}}"},
		}},
		{"Request latency of the SLOs, p99", "The objectives are 1 s for mutating requests and reads of one object, and 30 s for reads of a namespace or of the whole cluster.", seconds, []query{
			{selectJob(component.RoleAPIServer, `histogram_quantile(0.99, sum by (le) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb=~"POST|PUT|PATCH|DELETE"}[$__rate_interval])))`), "mutating"},
			{selectJob(component.RoleAPIServer, `histogram_quantile(0.99, sum by (le, scope) (rate(apiserver_request_sli_duration_seconds_bucket{§,verb=~"GET|LIST"}[$__rate_interval])))`), "read {{scope}}"},
		}},
		{"Requests in flight", "Requests that are being executed, and requests that wait in a priority and fairness queue.", number, []query{
			{selectJob(component.RoleAPIServer, `sum by (instance, request_kind) (apiserver_current_inflight_requests{§})`), "{{instance}} {{request_kind}}"},
			{selectJob(component.RoleAPIServer, `sum by (instance) (apiserver_flowcontrol_current_inqueue_requests{§})`), "{{instance}} queued"},
		}},
		{"Watch events sent", "Watch events that API servers send to clients, for the 12 resources with the most.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `topk(12, sum by (resource) (rate(apiserver_watch_events_total{§}[$__rate_interval])))`), "{{resource}}"},
		}},
		{"Watch events received", "Watch events that each API server receives from the store, for the 12 resources with the most.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `topk(12, sum by (instance, resource) (rate(apiserver_watch_cache_events_received_total{§}[$__rate_interval])))`), "{{instance}} {{resource}}"},
		}},
		{"Open watches", "Number of open watches, for the 12 resources with the most.", number, []query{
			{selectJob(component.RoleAPIServer, `topk(12, sum by (resource) (apiserver_longrunning_requests{§,verb="WATCH"}))`), "{{resource}}"},
		}},
		{"Errors", "Responses with 4xx and 5xx codes. Excludes 404 and 409, which clients expect.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `sum by (code, verb, resource) (rate(apiserver_request_total{§,code=~"4..|5..",code!~"404|409"}[$__rate_interval]))`), "{{code}} {{verb}} {{resource}}"},
		}},
		{"Garbage collection", "Fraction of time for which garbage collection pauses the process.", "percentunit", []query{
			{selectJob(component.RoleAPIServer, `rate(go_gc_duration_seconds_sum{§}[$__rate_interval])`), "{{instance}} pauses"},
		}},
	}
}

func gatewayPanels() []panel {
	return []panel{
		{"Requests", "Requests from clients, by verb. A watch is counted when it ends.", perSecond, []query{
			{selectJob(component.RoleGateway, `sum by (verb) (rate(kube_gateway_requests_total{§}[$__rate_interval]))`), "{{verb}}"},
		}},
		{"Request latency, p99", "By verb, from the request to the end of the answer. Includes the time in the API server.", seconds, []query{
			{selectJob(component.RoleGateway, `histogram_quantile(0.99, sum by (le, verb) (rate(kube_gateway_request_duration_seconds_bucket{§}[$__rate_interval])))`), "{{verb}}"},
		}},
		{"Mean request duration", "At the gateways and in the API servers. The difference is the latency that the gateways add, if no client connects to an API server directly.", seconds, []query{
			{selectJob(component.RoleGateway, `sum(rate(kube_gateway_request_duration_seconds_sum{§}[$__rate_interval])) / sum(rate(kube_gateway_request_duration_seconds_count{§}[$__rate_interval]))`), "gateways"},
			{selectJob(component.RoleAPIServer, `sum(rate(apiserver_request_duration_seconds_sum{§,verb!~"WATCH|CONNECT"}[$__rate_interval])) / sum(rate(apiserver_request_duration_seconds_count{§,verb!~"WATCH|CONNECT"}[$__rate_interval]))`), "API servers"},
		}},
		{"Requests in flight", "By gateway and API server, without watches.", number, []query{
			{selectJob(component.RoleGateway, `kube_gateway_server_requests_in_flight{§}`), "{{instance}} to {{server}}"},
		}},
		{"Connections", "Client connections of each API server. A connection that was told to move is not counted.", number, []query{
			{selectJob(component.RoleGateway, `sum by (server) (kube_gateway_server_connections{§})`), "{{server}}"},
		}},
		{"Watches", "Watches and tunnels of each API server.", number, []query{
			{selectJob(component.RoleGateway, `sum by (server) (kube_gateway_server_watches{§})`), "{{server}}"},
		}},
		{"Moved connections", "Client connections per second that were told to dial again, for an even load.", perSecond, []query{
			{selectJob(component.RoleGateway, `rate(kube_gateway_connections_moved_total{§}[$__rate_interval])`), "{{instance}}"},
		}},
		{"TLS handshakes", "Handshakes of clients per second, and how many failed.", perSecond, []query{
			{selectJob(component.RoleGateway, `rate(kube_gateway_tls_handshake_wait_seconds_count{§}[$__rate_interval])`), "{{instance}}"},
			{selectJob(component.RoleGateway, `rate(kube_gateway_tls_handshake_failures_total{§}[$__rate_interval])`), "{{instance}} failed"},
		}},
		{"Wait for a TLS handshake, p99", "Time for which clients wait because of the limit on handshakes per second.", seconds, []query{
			{selectJob(component.RoleGateway, `histogram_quantile(0.99, sum by (le, instance) (rate(kube_gateway_tls_handshake_wait_seconds_bucket{§}[$__rate_interval])))`), "{{instance}}"},
		}},
		{"Limited and failed requests", "Answers 429 and 5xx, by verb, and answers that broke off because the connection to the API server ended.", perSecond, []query{
			{selectJob(component.RoleGateway, `sum by (verb, code) (rate(kube_gateway_requests_total{§,code=~"429|5.."}[$__rate_interval]))`), "{{code}} {{verb}}"},
			{selectJob(component.RoleGateway, `rate(kube_gateway_broken_answers_total{§}[$__rate_interval])`), "{{instance}} broken"},
		}},
		{"Requests refused by the gateways", "Answers 429 of the gateways themselves: from a rule of the throttle, and LISTs that could not wait.", perSecond, []query{
			{selectJob(component.RoleGateway, `rate(kube_gateway_throttled_requests_total{§}[$__rate_interval])`), "{{instance}} throttled"},
			{selectJob(component.RoleGateway, `rate(kube_gateway_lists_refused_total{§}[$__rate_interval])`), "{{instance}} LISTs"},
		}},
		{"LISTs", "LISTs in progress at each API server, and LISTs that wait for their turn.", number, []query{
			{selectJob(component.RoleGateway, `sum by (server) (kube_gateway_lists_running{§})`), "{{server}} running"},
			{selectJob(component.RoleGateway, `sum by (server) (kube_gateway_lists_waiting{§})`), "{{server}} waiting"},
		}},
		{"Wait of LISTs, p99", "Time for which LISTs wait because of lists.maxBytes.", seconds, []query{
			{selectJob(component.RoleGateway, `histogram_quantile(0.99, sum by (le, instance) (rate(kube_gateway_list_wait_seconds_bucket{§}[$__rate_interval])))`), "{{instance}}"},
		}},
		{"Predicted bytes of LISTs", "Predicted bytes of the LIST answers in progress at each API server, without compression. Each gateway limits them by lists.maxBytes.", byteCount, []query{
			{selectJob(component.RoleGateway, `sum by (server) (kube_gateway_list_reserved_bytes{§})`), "{{server}}"},
		}},
		{"Answers that wait for clients", "Bytes that were read from API servers and wait for slow clients.", byteCount, []query{
			{selectJob(component.RoleGateway, `kube_gateway_buffered_bytes{§}`), "{{instance}}"},
		}},
		{"Answers", "Bytes per second of the bodies of answers.", byteRate, []query{
			{selectJob(component.RoleGateway, `rate(kube_gateway_answer_bytes_total{§}[$__rate_interval])`), "{{instance}}"},
		}},
		{"Ready API servers", "1 if the gateway considers the API server ready.", number, []query{
			{selectJob(component.RoleGateway, `kube_gateway_server_ready{§}`), "{{instance}} to {{server}}"},
		}},
	}
}

func schedulerPanels() []panel {
	return []panel{
		{"Scheduling attempts", "Attempts per second, by result.", perSecond, []query{
			{selectJob(component.RoleScheduler, `sum by (result) (rate(scheduler_schedule_attempts_total{§}[$__rate_interval]))`), "{{result}}"},
		}},
		{"Pod scheduling latency", "Time from the scheduling queue until the pod is bound: p50, p90 and p99.", seconds, []query{
			{selectJob(component.RoleScheduler, `histogram_quantile(0.50, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p50"},
			{selectJob(component.RoleScheduler, `histogram_quantile(0.90, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p90"},
			{selectJob(component.RoleScheduler, `histogram_quantile(0.99, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket{§}[$__rate_interval])))`), "p99"},
		}},
		{"Scheduling algorithm latency", "Time to select a node for a pod: p50 and p99.", seconds, []query{
			{selectJob(component.RoleScheduler, `histogram_quantile(0.50, sum by (le) (rate(scheduler_scheduling_algorithm_duration_seconds_bucket{§}[$__rate_interval])))`), "p50"},
			{selectJob(component.RoleScheduler, `histogram_quantile(0.99, sum by (le) (rate(scheduler_scheduling_algorithm_duration_seconds_bucket{§}[$__rate_interval])))`), "p99"},
		}},
		{"Pending pods", "Number of pods, by queue.", number, []query{
			{selectJob(component.RoleScheduler, `sum by (queue) (scheduler_pending_pods{§})`), "{{queue}}"},
		}},
		{"Index size", "dist-scheduler: number of pod classes, node states and nodes.", number, []query{
			{selectJob(component.RoleScheduler, `sum by (kind) (scheduler_index_size{§})`), "{{kind}}"},
		}},
		{"Pods not ranked by the index", "dist-scheduler: pods per second that the index does not rank, by reason.", perSecond, []query{
			{selectJob(component.RoleScheduler, `sum by (reason) (rate(scheduler_index_fallbacks_total{§}[$__rate_interval]))`), "{{reason}}"},
		}},
	}
}

func nodePanels() []panel {
	return []panel{
		{"Nodes, Leases and pods", "Number of objects.", number, []query{
			{selectJob(component.RoleAPIServer, `max by (resource) (apiserver_resource_objects{§,resource=~"nodes|leases|pods"})`), "{{resource}}"},
		}},
		{"Heartbeats", "Lease renewals, and status patches of nodes and pods, per second.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `sum (rate(apiserver_request_total{§,resource="leases",verb="PUT"}[$__rate_interval]))`), "Leases"},
			{selectJob(component.RoleAPIServer, `sum by (resource) (rate(apiserver_request_total{§,resource=~"nodes|pods",subresource="status",verb="PATCH"}[$__rate_interval]))`), "status of {{resource}}"},
		}},
		{"Events", "Events created per second.", perSecond, []query{
			{selectJob(component.RoleAPIServer, `sum (rate(apiserver_request_total{§,resource="events",verb="POST"}[$__rate_interval]))`), "Events"},
		}},
	}
}

func processPanels() []panel {
	const all = `{` + ClusterLabel + `="$cluster"}`
	return []panel{
		{"CPU", "CPU usage of each process, in cores.", cores, []query{
			{`rate(process_cpu_seconds_total` + all + `[$__rate_interval])`, "{{instance}}"},
		}},
		{"Memory", "Resident memory of each process.", byteCount, []query{
			{`process_resident_memory_bytes` + all, "{{instance}}"},
		}},
		{"Readiness and exits", "1 if the component is ready; and the number of exits of its process that the supervisor did not request.", number, []query{
			{selectJob(component.Supervisor, `k1m_component_ready{§}`), "{{component}}"},
			{selectJob(component.Supervisor, `increase(k1m_component_exits_total{§}[$__rate_interval])`), "{{component}} exits"},
		}},
		{"Network", "Bytes per second that the machine or network namespace of each process receives and sends.", byteRate, []query{
			{`rate(process_network_receive_bytes_total` + all + `[$__rate_interval])`, "{{instance}} in"},
			{`rate(process_network_transmit_bytes_total` + all + `[$__rate_interval])`, "{{instance}} out"},
		}},
		{"File descriptors", "Open file descriptors of each process.", number, []query{
			{`process_open_fds` + all, "{{instance}}"},
		}},
		{"Goroutines", "Goroutines of each Go process.", number, []query{
			{`go_goroutines` + all, "{{instance}}"},
		}},
	}
}
