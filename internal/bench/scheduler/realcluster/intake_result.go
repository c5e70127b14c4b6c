package realcluster

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// IntakeResult is the result of a run: the delay until the scheduler saw pods.
type IntakeResult struct {
	Nodes int    `json:"nodes"`
	Store string `json:"store"`
	// Seconds is the duration of each rate.
	Seconds float64          `json:"seconds"`
	Intakes []IntakeMeasured `json:"intakes"`
}

// IntakeMeasured is the result of one intake, up to the rate that the API server could not
// accept.
type IntakeMeasured struct {
	Name  string       `json:"name"`
	Rates []IntakeRate `json:"rates"`
}

// IntakeRate is the result of one rate.
type IntakeRate struct {
	// Rate is the requested rate and CreatedPerSecond the achieved one, in pods per second.
	Rate             int     `json:"rate"`
	CreatedPerSecond float64 `json:"createdPerSecond"`
	Created          int     `json:"created"`
	// Seen is the number of pods that the scheduler saw, ByWebhook the number of those that the
	// webhook delivered first, and Bound the number that it bound.
	Seen      int `json:"seen"`
	ByWebhook int `json:"byWebhook"`
	Bound     int `json:"bound"`
	// SeenMillis is the time from sending the request to create a pod until the scheduler had the
	// pod; client and scheduler use the clock of the same machine. BoundMillis is the time until
	// the scheduler had bound the pod, and CreateMillis the latency of the request.
	SeenMillis   Latency `json:"seenMillis"`
	BoundMillis  Latency `json:"boundMillis"`
	CreateMillis Latency `json:"createMillis"`

	APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
	SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
}

func summarizeRate(rate int, m *made, s *sightings, before, after used) IntakeRate {
	seen, bound, byWebhook := newLatency(), newLatency(), 0
	for name, asked := range m.asked {
		if sighting, ok := s.seen[name]; ok {
			record(seen, sighting.at.Sub(asked))
			if sighting.source == clusterdir.IntakeWebhook {
				byWebhook++
			}
		}
		if at, ok := s.bound[name]; ok {
			record(bound, at.Sub(asked))
		}
	}
	perPod := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(max(m.count, 1)) }
	return IntakeRate{
		Rate: rate, CreatedPerSecond: m.perSecond(), Created: m.count, Seen: int(seen.TotalCount()), Bound: int(bound.TotalCount()),
		ByWebhook: byWebhook, SeenMillis: latencyOf(seen), BoundMillis: latencyOf(bound), CreateMillis: latencyOf(m.latency),
		APIServerCPUMicrosPerPod: perPod(after.apiServers.CPU - before.apiServers.CPU),
		SchedulerCPUMicrosPerPod: perPod(after.scheduler.CPU - before.scheduler.CPU),
	}
}

// latencyOf returns the percentiles of a histogram in microseconds.
func latencyOf(h *hdrhistogram.Histogram) Latency {
	millis := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1000 }
	return Latency{P50: millis(50), P90: millis(90), P99: millis(99), P999: millis(99.9), Max: float64(h.Max()) / 1000}
}

// Err returns an error of one line if the result violates an invariant.
func (r *IntakeResult) Err() error {
	var wrong []string
	for _, intake := range r.Intakes {
		for _, at := range intake.Rates {
			if done := min(at.Seen, at.Bound); done < at.Created {
				wrong = append(wrong, fmt.Sprintf("intake %s at %d/s: %d of %d pods were not seen or not bound", intake.Name, at.Rate, at.Created-done, at.Created))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s; repeat the run with --keep and read the log of the scheduler", strings.Join(wrong, ", "))
}

// Print writes the result as text.
func (r *IntakeResult) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes on %s, %.0fs per rate; latencies in ms since the request to create a pod: until the\n", r.Nodes, r.Store, r.Seconds)
	fmt.Fprintf(w, "scheduler sees the pod, has bound it, and the request returns; CPU in µs per pod\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprintln(table, "intake\tpods/s\tachieved\tseen p50\tp90\tp99\tmax\tbound p50\tp99\tcreate p50\tp99\tapiserver\tscheduler\tby webhook\t")
	for _, intake := range r.Intakes {
		for _, at := range intake.Rates {
			seen, bound, answered := at.SeenMillis, at.BoundMillis, at.CreateMillis
			fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d of %d\t\n", intake.Name, at.Rate, at.CreatedPerSecond,
				seen.P50, seen.P90, seen.P99, seen.Max, bound.P50, bound.P99, answered.P50, answered.P99,
				at.APIServerCPUMicrosPerPod, at.SchedulerCPUMicrosPerPod, at.ByWebhook, at.Seen)
		}
	}
}
