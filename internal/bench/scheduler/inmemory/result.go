package inmemory

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"maps"
)

// Result is the result of one run.
type Result struct {
	Scheduler string `json:"scheduler"`
	PodKind   string `json:"podKind"`
	Nodes     int    `json:"nodes"`
	Pods      int    `json:"pods"`
	// Decided is the number of pods that were bound or found unschedulable. These are all pods, unless
	// the run was interrupted.
	Decided  int   `json:"decided"`
	Existing int   `json:"existing,omitempty"`
	Zones    int   `json:"zones"`
	Seed     int64 `json:"seed"`

	// LoadSeconds is the time for creating the nodes and delivering them to the scheduler, before the
	// measurement.
	LoadSeconds float64 `json:"loadSeconds"`
	// Seconds is the time from submitting the first pod until the last pod was bound or found
	// unschedulable.
	Seconds         float64 `json:"seconds"`
	PodsPerSecond   float64 `json:"podsPerSecond"`
	CPUMicrosPerPod float64 `json:"cpuMicrosPerPod"`
	// PeakRSSBytes is the peak resident memory of the process until the last decision. It includes the
	// nodes and pods.
	PeakRSSBytes int64 `json:"peakRssBytes"`
	// LatencyMicros is the latency of scheduling cycles without binding.
	LatencyMicros Latency `json:"latencyMicros"`

	Unschedulable int            `json:"unschedulable"`
	Fallbacks     map[string]int `json:"fallbacks"`
	Errors        int            `json:"errors"`
	FirstError    string         `json:"firstError,omitempty"`

	DecisionsChecked    int    `json:"decisionsChecked"`
	Deviations          int    `json:"deviations"`
	FirstDeviation      string `json:"firstDeviation,omitempty"`
	OversubscribedNodes int    `json:"oversubscribedNodes"`
}

// Latency contains percentiles in microseconds.
type Latency struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p999"`
	Max  int64 `json:"max"`
}

func newResult(o Options) Result {
	return Result{
		Scheduler: o.Scheduler, PodKind: o.PodKind, Nodes: o.Nodes, Pods: o.Pods, Existing: o.Existing,
		Zones: o.Zones, Seed: o.Seed, Fallbacks: map[string]int{},
	}
}

// fill sets the figures of a harness that has finished. start and end are the resource usage at the start
// and the end of the measurement.
func (r *Result) fill(h *harness, start, end meter) {
	r.Seconds = end.at.Sub(start.at).Seconds()
	r.PodsPerSecond = float64(h.ledger.bound) / r.Seconds
	r.CPUMicrosPerPod = float64((end.cpu - start.cpu).Microseconds()) / float64(max(1, h.ledger.decidedPods()))
	r.Decided = h.ledger.decidedPods()
	r.PeakRSSBytes = end.peakRSS
	latency := h.cycles.latency
	r.LatencyMicros = Latency{
		P50: latency.ValueAtPercentile(50), P90: latency.ValueAtPercentile(90), P99: latency.ValueAtPercentile(99),
		P999: latency.ValueAtPercentile(99.9), Max: latency.Max(),
	}
	r.Unschedulable, r.Errors = h.ledger.failing.Len(), h.ledger.errors
	if h.ledger.firstError != nil {
		r.FirstError = h.ledger.firstError.Error()
	}
}

// Err returns an error if the result violates an invariant.
func (r *Result) Err() error {
	switch {
	case r.Deviations > 0:
		return fmt.Errorf("%d of %d decisions deviate from the reference (%s); reproduce with --seed %d",
			r.Deviations, r.DecisionsChecked, r.FirstDeviation, r.Seed)
	case r.OversubscribedNodes > 0:
		return fmt.Errorf("%d nodes are overcommitted; reproduce with --seed %d", r.OversubscribedNodes, r.Seed)
	case r.Errors > 0:
		return fmt.Errorf("%d scheduling attempts failed with an internal error (%s); reproduce with --seed %d",
			r.Errors, r.FirstError, r.Seed)
	}
	return nil
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d nodes, %d pods (%s)\n", r.Scheduler, r.Nodes, r.Pods, r.PodKind)
	if r.Decided < r.Pods {
		fmt.Fprintf(w, "  interrupted    after %d pods\n", r.Decided)
	}
	fmt.Fprintf(w, "  loading        %.1fs\n", r.LoadSeconds)
	fmt.Fprintf(w, "  scheduling     %.2fs, %.0f pods/s, %.0f µs of CPU per pod\n", r.Seconds, r.PodsPerSecond, r.CPUMicrosPerPod)
	l := r.LatencyMicros
	fmt.Fprintf(w, "  cycle          p50 %d µs, p90 %d, p99 %d, p99.9 %d, max %d\n", l.P50, l.P90, l.P99, l.P999, l.Max)
	fmt.Fprintf(w, "  peak memory    %.0f MiB\n", float64(r.PeakRSSBytes)/(1<<20))
	fmt.Fprintf(w, "  unschedulable  %d\n", r.Unschedulable)
	fmt.Fprintf(w, "  fallbacks      %s\n", describe(r.Fallbacks))
	fmt.Fprintf(w, "  deviations     %d of %d decisions checked\n", r.Deviations, r.DecisionsChecked)
	fmt.Fprintf(w, "  overcommitted  %d nodes\n", r.OversubscribedNodes)
}

// describe returns counts as text, such as "3 volumes, 1 error", or "none".
func describe(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	reasons := slices.Sorted(maps.Keys(counts))
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%d %s", counts[reason], reason)
	}
	return strings.Join(reasons, ", ")
}
