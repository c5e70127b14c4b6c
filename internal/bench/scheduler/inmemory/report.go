package inmemory

import "github.com/k8s-1m/k8s-1m/internal/bench/experiment"

// Report implements experiment.Reporter.
func (r *Result) Report(to *experiment.Result) {
	AddTo(to.Table("Scheduler in memory, without a cluster", Columns...), r)
	to.Errors.AddMany(int64(r.Decided), nil)
}

// Columns are the columns of a table that has one row per run.
var Columns = []string{
	"scheduler", "pods", "nodes", "pods scheduled", "scheduled, /s", "total time, s", "CPU per pod, µs", "cycle p50, µs", "p99, µs",
	"peak memory, MiB", "fallbacks to a full scan", "checked", "deviations",
}

// AddTo appends the row of a run to a table with these columns.
func AddTo(table *experiment.Table, r *Result) {
	table.Add(r.Scheduler, r.PodKind, r.Nodes, r.Decided, r.PodsPerSecond, r.Seconds, r.CPUMicrosPerPod, r.LatencyMicros.P50, r.LatencyMicros.P99,
		float64(r.PeakRSSBytes)/(1<<20), describe(r.Fallbacks), r.DecisionsChecked, r.Deviations)
}
