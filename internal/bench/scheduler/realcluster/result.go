package realcluster

import (
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

// Result is the result of one run.
type Result struct {
	Nodes      int         `json:"nodes"`
	Pods       int         `json:"pods"`
	Zones      int         `json:"zones"`
	Store      string      `json:"store"`
	Schedulers []Scheduler `json:"schedulers"`
}

// Scheduler is the result of one contender.
type Scheduler struct {
	Name string `json:"name"`
	// Replicas is the number of scheduler processes that share the nodes. Relays is the number of
	// additional processes that own no nodes. CPU time and memory are totals of all these processes.
	Replicas int `json:"replicas"`
	Relays   int `json:"relays"`
	// Bound is the number of pods that got a node.
	Bound int `json:"bound"`
	// Seconds is the time from the start of pod creation until a watch shows the last bind.
	Seconds       float64 `json:"seconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	// CreatedPerSecond is an upper bound of PodsPerSecond.
	CreatedPerSecond float64 `json:"createdPerSecond"`

	SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
	APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
	StoreCPUMicrosPerPod     float64 `json:"storeCpuMicrosPerPod"`
	SchedulerMemoryBytes     int64   `json:"schedulerMemoryBytes"`
	// CPUSamples are the CPU times per pod of all samples in microseconds, if there is more than one
	// sample. All other fields are those of the sample that [median] selects.
	CPUSamples []float64 `json:"cpuSamples,omitempty"`

	// LatencyMillis is the time from when a watch first shows a pod until it shows the bind of the pod.
	LatencyMillis       Latency `json:"latencyMillis"`
	OversubscribedNodes int     `json:"oversubscribedNodes"`
}

// Latency contains percentiles in milliseconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func newResult(o Options) Result {
	return Result{Nodes: o.Cluster.Nodes, Pods: o.Pods, Zones: o.Cluster.Zones, Store: o.Cluster.Store, Schedulers: []Scheduler{}}
}

func (m *measurement) summarize(creation bulk.Summary, started time.Time, before, after used, nodes []corev1.Node) Scheduler {
	bound, last := m.binds.bound()
	seconds := max(last.Sub(started).Seconds(), 1e-9)
	perPod := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(max(bound, 1)) }
	latency, settings := m.binds.latency, &m.config.Settings
	millis := func(percentile float64) float64 { return float64(latency.ValueAtPercentile(percentile)) / 1000 }
	return Scheduler{
		Name: settings.Scheduler, Replicas: settings.SchedulerReplicas, Relays: settings.SchedulerRelays, Bound: bound,
		Seconds: seconds, PodsPerSecond: float64(bound) / seconds, CreatedPerSecond: creation.PerSecond,
		SchedulerCPUMicrosPerPod: perPod(after.scheduler.CPU - before.scheduler.CPU),
		APIServerCPUMicrosPerPod: perPod(after.apiServers.CPU - before.apiServers.CPU),
		StoreCPUMicrosPerPod:     perPod(after.store.CPU - before.store.CPU),
		SchedulerMemoryBytes:     after.scheduler.Resident,
		LatencyMillis: Latency{
			P50: millis(50), P90: millis(90), P99: millis(99), P999: millis(99.9), Max: float64(latency.Max()) / 1000,
		},
		OversubscribedNodes: m.binds.overcommitted(nodes),
	}
}

func (s *Scheduler) title() string { return contender{s.Name, max(s.Replicas, 1), s.Relays}.String() }

// violations describes the invariants that the result of a contender violates: each pod is bound, and no
// node is overcommitted.
func (s *Scheduler) violations(pods int) (violations []string) {
	if s.OversubscribedNodes > 0 {
		violations = append(violations, fmt.Sprintf("%s overcommitted %d nodes", s.title(), s.OversubscribedNodes))
	}
	if s.Bound < pods {
		violations = append(violations, fmt.Sprintf("%s found no node for %d of %d pods", s.title(), pods-s.Bound, pods))
	}
	return violations
}

// Err returns an error if the result violates an invariant.
func (r *Result) Err() error {
	var violations []string
	for i := range r.Schedulers {
		violations = append(violations, r.Schedulers[i].violations(r.Pods)...)
	}
	if len(violations) == 0 {
		return nil
	}
	return fmt.Errorf("%s; repeat the run with --keep to inspect the cluster", strings.Join(violations, ", "))
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes, %d pods, on %s\n", r.Nodes, r.Pods, r.Store)
	for _, s := range r.Schedulers {
		l := s.LatencyMillis
		fmt.Fprintf(w, "%s\n", s.title())
		fmt.Fprintf(w, "  bound          %d pods in %.1fs, %.0f/s; created %.0f/s\n", s.Bound, s.Seconds, s.PodsPerSecond, s.CreatedPerSecond)
		fmt.Fprintf(w, "  CPU per pod    scheduler %.0f µs, kube-apiserver %.0f µs, store %.0f µs\n",
			s.SchedulerCPUMicrosPerPod, s.APIServerCPUMicrosPerPod, s.StoreCPUMicrosPerPod)
		if len(s.CPUSamples) > 0 {
			fmt.Fprintf(w, "  samples        %.0f µs of the scheduler\n", s.CPUSamples)
		}
		fmt.Fprintf(w, "  time to bind   p50 %.1f ms, p90 %.1f, p99 %.1f, p99.9 %.1f, max %.1f\n", l.P50, l.P90, l.P99, l.P999, l.Max)
		fmt.Fprintf(w, "  memory         %.0f MiB of the scheduler\n", float64(s.SchedulerMemoryBytes)/(1<<20))
		fmt.Fprintf(w, "  overcommitted  %d nodes\n", s.OversubscribedNodes)
	}
}
