package realcluster

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Report implements experiment.Reporter. It appends a table, the ratios of dist-scheduler to
// kube-scheduler, and charts of dist-scheduler by the number of replicas.
func (r *Result) Report(to *experiment.Result) {
	table := to.Table("Pods bound", "scheduler", "replicas", "bound", "bound, /s", "created, /s",
		"CPU per pod, µs", "kube-apiserver, µs", "store, µs", "time to bind p50, ms", "p90, ms", "p99, ms", "max, ms", "memory, MiB", "overcommitted nodes")
	figures := map[string][]experiment.Figure{}
	var single *Scheduler // dist-scheduler with one replica
	for i := range r.Schedulers {
		s := &r.Schedulers[i]
		replicas, l := max(s.Replicas, 1), s.LatencyMillis
		table.Add(s.title(), replicas, s.Bound, s.PodsPerSecond, s.CreatedPerSecond,
			s.SchedulerCPUMicrosPerPod, s.APIServerCPUMicrosPerPod, s.StoreCPUMicrosPerPod, l.P50, l.P90, l.P99, l.Max,
			mebibytes(s.SchedulerMemoryBytes), s.OversubscribedNodes)
		to.Errors.AddMany(int64(s.Bound), nil)
		if len(s.CPUSamples) > 0 {
			to.Note("CPU per pod of %s, all samples: %.0f µs", s.title(), s.CPUSamples)
		}
		if replicas == 1 {
			figures[s.Name] = []experiment.Figure{
				{Name: "pods bound", Unit: "/s", Value: s.PodsPerSecond, MoreIsBetter: true},
				{Name: "scheduler's CPU per pod", Unit: "µs", Value: s.SchedulerCPUMicrosPerPod},
				{Name: "scheduler's memory", Unit: "MiB", Value: mebibytes(s.SchedulerMemoryBytes)},
			}
		}
		if s.Name != clusterdir.SchedulerDist {
			continue
		}
		if replicas == 1 {
			single = s
		} else if single != nil {
			to.Note("%s: the CPU time per pod is %.2f × that of one replica", s.title(), s.SchedulerCPUMicrosPerPod/single.SchedulerCPUMicrosPerPod)
		}
		for _, line := range []struct {
			plot, unit string
			value      float64
		}{
			{"CPU per pod by replicas", "µs", s.SchedulerCPUMicrosPerPod},
			{"Pods bound by replicas", "/s", s.PodsPerSecond},
			{"Total memory by replicas", "MiB", mebibytes(s.SchedulerMemoryBytes)},
		} {
			to.Line(experiment.Series{Plot: line.plot, Name: s.Name, X: "replicas", Unit: line.unit}, float64(replicas), line.value)
		}
	}
	to.Compare(clusterdir.SchedulerDist, clusterdir.SchedulerKube, figures[clusterdir.SchedulerDist], figures[clusterdir.SchedulerKube])
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// Report implements experiment.Reporter. It appends a table, and charts of the latencies by rate.
func (r *IntakeResult) Report(to *experiment.Result) {
	table := to.Table("Latency since the request to create a pod", "intake", "requested, /s", "achieved, /s", "seen p50, ms", "p90, ms", "p99, ms", "max, ms",
		"bound p50, ms", "p99, ms", "create call p50, ms", "p99, ms", "kube-apiserver, µs", "scheduler, µs", "pods by webhook", "of")
	for _, intake := range r.Intakes {
		for _, r := range intake.Rates {
			seen, bound, answered := r.SeenMillis, r.BoundMillis, r.CreateMillis
			table.Add(intake.Name, r.Rate, r.CreatedPerSecond, seen.P50, seen.P90, seen.P99, seen.Max, bound.P50, bound.P99,
				answered.P50, answered.P99, r.APIServerCPUMicrosPerPod, r.SchedulerCPUMicrosPerPod, r.ByWebhook, r.Seen)
			to.Errors.AddMany(int64(r.Seen), nil)
			for _, line := range []struct {
				plot  string
				value float64
			}{{"Seen p50 by rate", seen.P50}, {"Seen p99 by rate", seen.P99}, {"Bound p50 by rate", bound.P50}} {
				to.Line(experiment.Series{Plot: line.plot, Name: intake.Name, X: "pods created, /s", Unit: "ms", LogY: true}, r.CreatedPerSecond, line.value)
			}
		}
	}
}
