package experiment

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// kind is the conversion of a metric into points of a series.
type kind int

const (
	gauge    kind = iota // the value
	rate                 // the increase per second
	quantile             // a quantile of the observations since the last sample
)

// rule converts a metric of the components of one role into the series of a chart.
type rule struct {
	// of is the role of the components, and metric the name of the metric family.
	of, metric string
	kind       kind
	// by are the labels whose values name the series; values that differ in other labels are
	// added up.
	by    []string
	where func(labels map[string]string) bool
	// q is the quantile, and name the name of a series without labels.
	q          float64
	name       string
	plot, unit string
	// factor converts the value to the unit.
	factor float64
	logY   bool
}

const (
	apiServer = component.RoleAPIServer
	scheduler = component.RoleScheduler
)

func short(labels map[string]string) bool { return !strings.HasPrefix(labels["verb"], "WATCH") }

// rules are the metrics that are sampled every second, in addition to CPU and memory.
var rules = []rule{
	{of: apiServer, metric: "apiserver_request_total", kind: rate, by: []string{"verb", "resource"}, where: short,
		plot: "kube-apiserver: requests by verb and resource", unit: "requests/s", factor: 1},
	{of: apiServer, metric: callDurations, kind: quantile, q: 0.95, by: []string{"verb"}, where: short,
		plot: "kube-apiserver: p95 latency by verb", unit: "ms", factor: 1000, logY: true},
	{of: apiServer, metric: "apiserver_current_inflight_requests", kind: gauge, by: []string{"request_kind"},
		plot: "kube-apiserver: requests in flight", unit: "requests", factor: 1},
	{of: apiServer, metric: "apiserver_watch_events_total", kind: rate, by: []string{"resource"},
		plot: "kube-apiserver: watch events sent", unit: "events/s", factor: 1},
	{of: apiServer, metric: "apiserver_longrunning_requests", kind: gauge, name: "watches",
		plot: "kube-apiserver: watches", unit: "watches", factor: 1},
	{of: component.Store, metric: "grpc_server_handled_total", kind: rate, by: []string{"grpc_method"},
		plot: "store: requests", unit: "requests/s", factor: 1},
	{of: apiServer, metric: "etcd_request_duration_seconds", kind: quantile, q: 0.999, by: []string{"operation"},
		plot: "store: p99.9 latency measured by the API server", unit: "ms", factor: 1000, logY: true},
	{of: component.Store, metric: "etcd_mvcc_db_total_size_in_bytes", kind: gauge, name: "size",
		plot: "store: size", unit: "MiB", factor: 1.0 / (1 << 20)},
	{of: component.Store, metric: "etcd_debugging_mvcc_keys_total", kind: gauge, name: "items",
		plot: "store: items", unit: "items", factor: 1},
	{of: scheduler, metric: "scheduler_schedule_attempts_total", kind: rate, by: []string{"result"},
		plot: "scheduler: attempts", unit: "pods/s", factor: 1},
	{of: scheduler, metric: "scheduler_scheduling_attempt_duration_seconds", kind: quantile, q: 0.99, name: "attempt, p99",
		plot: "scheduler: latency", unit: "ms", factor: 1000, logY: true},
	{of: scheduler, metric: "scheduler_pending_pods", kind: gauge, by: []string{"queue"},
		plot: "scheduler: pending pods", unit: "pods", factor: 1},
}

// neededOf returns the metric families that the rules of a role use.
func neededOf(role string) map[string]bool {
	needed := map[string]bool{}
	for _, r := range rules {
		if r.of == role {
			needed[r.metric] = true
		}
	}
	return needed
}
