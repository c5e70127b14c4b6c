package experiment

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// conversion is how the samples of a metric become points of a series.
type conversion int

const (
	gauge    conversion = iota // the value
	rate                       // the increase per second since the last sample
	quantile                   // a quantile of the observations since the last sample
)

// rule converts a metric of the components of one role into the series of a chart.
type rule struct {
	// role selects the components. metric is the name of the metric family.
	role, metric string
	conversion   conversion
	// by are labels. There is a series for each combination of their values, which is also its name.
	// Metrics that differ only in other labels are added up.
	by []string
	// include selects metrics by their labels; nil selects all.
	include func(labels map[string]string) bool
	// q is the quantile, from 0 to 1. name is the name of the series if by is empty.
	q          float64
	name       string
	plot, unit string
	// factor converts the value to the unit.
	factor float64
	logY   bool
}

const (
	apiServer = component.RoleAPIServer
	gateway   = component.RoleGateway
	scheduler = component.RoleScheduler
)

// noWatch reports whether a request is not a watch.
func noWatch(labels map[string]string) bool { return !strings.HasPrefix(labels["verb"], "WATCH") }

// rules select the metrics that are sampled every second, in addition to CPU and memory.
var rules = []rule{
	{role: apiServer, metric: "apiserver_request_total", conversion: rate, by: []string{"verb", "resource"}, include: noWatch,
		plot: "kube-apiserver: requests by verb and resource", unit: "requests/s", factor: 1},
	{role: apiServer, metric: callDurations, conversion: quantile, q: 0.95, by: []string{"verb"}, include: noWatch,
		plot: "kube-apiserver: p95 latency by verb", unit: "ms", factor: 1000, logY: true},
	{role: apiServer, metric: "apiserver_current_inflight_requests", conversion: gauge, by: []string{"request_kind"},
		plot: "kube-apiserver: requests in flight", unit: "requests", factor: 1},
	{role: apiServer, metric: "apiserver_watch_events_total", conversion: rate, by: []string{"resource"},
		plot: "kube-apiserver: watch events sent", unit: "events/s", factor: 1},
	{role: apiServer, metric: "apiserver_longrunning_requests", conversion: gauge, name: "watches",
		plot: "kube-apiserver: watches", unit: "watches", factor: 1},
	{role: gateway, metric: "kube_gateway_requests_total", conversion: rate, by: []string{"verb"},
		plot: "kube-gateway: requests by verb", unit: "requests/s", factor: 1},
	{role: gateway, metric: "kube_gateway_request_duration_seconds", conversion: quantile, q: 0.95, by: []string{"verb"},
		plot: "kube-gateway: p95 latency by verb, with the API server's", unit: "ms", factor: 1000, logY: true},
	{role: gateway, metric: "kube_gateway_server_requests_in_flight", conversion: gauge, by: []string{"server"},
		plot: "kube-gateway: requests in flight by API server", unit: "requests", factor: 1},
	{role: gateway, metric: "kube_gateway_server_connections", conversion: gauge, by: []string{"server"},
		plot: "kube-gateway: connections by API server", unit: "connections", factor: 1},
	{role: gateway, metric: "kube_gateway_server_watches", conversion: gauge, by: []string{"server"},
		plot: "kube-gateway: watches by API server", unit: "watches", factor: 1},
	{role: gateway, metric: "kube_gateway_connections_moved_total", conversion: rate, name: "moved",
		plot: "kube-gateway: moved connections", unit: "connections/s", factor: 1},
	{role: gateway, metric: "kube_gateway_throttled_requests_total", conversion: rate, name: "throttled",
		plot: "kube-gateway: refused requests", unit: "requests/s", factor: 1},
	{role: gateway, metric: "kube_gateway_lists_refused_total", conversion: rate, name: "lists",
		plot: "kube-gateway: refused requests", unit: "requests/s", factor: 1},
	{role: gateway, metric: "kube_gateway_lists_waiting", conversion: gauge, by: []string{"server"},
		plot: "kube-gateway: waiting lists by API server", unit: "lists", factor: 1},
	{role: gateway, metric: "kube_gateway_list_reserved_bytes", conversion: gauge, by: []string{"server"},
		plot: "kube-gateway: predicted bytes of lists in progress by API server", unit: "MiB", factor: 1.0 / (1 << 20)},
	{role: component.Store, metric: "grpc_server_handled_total", conversion: rate, by: []string{"grpc_method"},
		plot: "store: requests", unit: "requests/s", factor: 1},
	{role: apiServer, metric: "etcd_request_duration_seconds", conversion: quantile, q: 0.999, by: []string{"operation"},
		plot: "store: p99.9 latency measured by the API server", unit: "ms", factor: 1000, logY: true},
	{role: component.Store, metric: "etcd_mvcc_db_total_size_in_bytes", conversion: gauge, name: "size",
		plot: "store: size", unit: "MiB", factor: 1.0 / (1 << 20)},
	{role: component.Store, metric: "etcd_debugging_mvcc_keys_total", conversion: gauge, name: "items",
		plot: "store: items", unit: "items", factor: 1},
	{role: scheduler, metric: "scheduler_schedule_attempts_total", conversion: rate, by: []string{"result"},
		plot: "scheduler: attempts", unit: "pods/s", factor: 1},
	{role: scheduler, metric: "scheduler_scheduling_attempt_duration_seconds", conversion: quantile, q: 0.99, name: "attempt, p99",
		plot: "scheduler: latency", unit: "ms", factor: 1000, logY: true},
	{role: scheduler, metric: "scheduler_pending_pods", conversion: gauge, by: []string{"queue"},
		plot: "scheduler: pending pods", unit: "pods", factor: 1},
}

// metricsOf returns the metric families that the rules for a role use.
func metricsOf(role string) map[string]bool {
	needed := map[string]bool{}
	for _, r := range rules {
		if r.role == role {
			needed[r.metric] = true
		}
	}
	return needed
}
