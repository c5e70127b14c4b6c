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
	// Replicas is the number of processes that share the nodes, and Relays the number of
	// additional processes without nodes. CPU and memory are sums over all of them.
	Replicas int `json:"replicas"`
	Relays   int `json:"relays"`
	// Bound is the number of pods that got a node within the timeout.
	Bound int `json:"bound"`
	// Seconds is the time from the first creation until the last bind was seen.
	Seconds       float64 `json:"seconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	// CreatedPerSecond is an upper bound of PodsPerSecond.
	CreatedPerSecond float64 `json:"createdPerSecond"`

	SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
	APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
	StoreCPUMicrosPerPod     float64 `json:"storeCpuMicrosPerPod"`
	SchedulerMemoryBytes     int64   `json:"schedulerMemoryBytes"`
	// CPUSamples are the CPU times per pod of all samples in microseconds, if there are several. All
	// other fields are from the sample with the median CPU.
	CPUSamples []float64 `json:"cpuSamples,omitempty"`

	// LatencyMillis is the time from the creation of a pod to its bind, as seen by a watch.
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

func (t *measurement) summarize(creation bulk.Summary, started time.Time, before, after used, nodes []corev1.Node) Scheduler {
	bound, last := t.binds.bound()
	seconds := max(last.Sub(started).Seconds(), 1e-9)
	perPod := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(max(bound, 1)) }
	latency, settings := t.binds.latency, &t.config.Settings
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
		OversubscribedNodes: t.binds.overcommitted(nodes),
	}
}

func (s *Scheduler) title() string { return contender{s.Name, max(s.Replicas, 1), s.Relays}.String() }

// wrong describes the violated invariants of one contender.
func (s *Scheduler) wrong(pods int) (wrong []string) {
	if s.OversubscribedNodes > 0 {
		wrong = append(wrong, fmt.Sprintf("%s overcommitted %d nodes", s.title(), s.OversubscribedNodes))
	}
	if s.Bound < pods {
		wrong = append(wrong, fmt.Sprintf("%s found no node for %d of %d pods", s.title(), pods-s.Bound, pods))
	}
	return wrong
}

// Err returns an error of one line if the result violates an invariant.
func (r *Result) Err() error {
	var wrong []string
	for i := range r.Schedulers {
		wrong = append(wrong, r.Schedulers[i].wrong(r.Pods)...)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s; repeat the run with --keep to inspect the cluster", strings.Join(wrong, ", "))
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
