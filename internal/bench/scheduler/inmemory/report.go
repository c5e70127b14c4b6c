package inmemory

import "github.com/k8s-1m/k8s-1m/internal/bench/experiment"

// Report tells it as an experiment does.
func (r *Result) Report(to *experiment.Result) {
	Tell(to.Table("Scheduler in memory, without a cluster", Columns...), r)
	to.Errors.AddMany(int64(r.Decided), nil)
}

// Columns of a table with one run a row.
var Columns = []string{
	"scheduler", "pods", "nodes", "pods scheduled", "scheduled, /s", "total time, s", "CPU per pod, µs", "cycle p50, µs", "p99, µs",
	"peak memory, MiB", "fallbacks to a full scan", "checked", "deviations",
}

// Tell adds the row of a run.
func Tell(table *experiment.Table, r *Result) {
	table.Add(r.Scheduler, r.PodKind, r.Nodes, r.Decided, r.PodsPerSecond, r.Seconds, r.CPUMicrosPerPod, r.LatencyMicros.P50, r.LatencyMicros.P99,
		float64(r.PeakRSSBytes)/(1<<20), describe(r.Fallbacks), r.DecisionsChecked, r.Deviations)
}
