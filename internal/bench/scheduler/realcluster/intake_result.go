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

// IntakeResult is the result of a run: the delay until the scheduler received pods.
type IntakeResult struct {
	Nodes int    `json:"nodes"`
	Store string `json:"store"`
	// Seconds is how long pods were created at each rate.
	Seconds float64          `json:"seconds"`
	Intakes []IntakeMeasured `json:"intakes"`
}

// IntakeMeasured is the result of one intake. Its last rate may be one that the API server could not
// sustain.
type IntakeMeasured struct {
	Name  string       `json:"name"`
	Rates []IntakeRate `json:"rates"`
}

// IntakeRate is the result of one rate.
type IntakeRate struct {
	// Rate is the requested rate, and CreatedPerSecond the achieved rate, in pods per second.
	Rate             int     `json:"rate"`
	CreatedPerSecond float64 `json:"createdPerSecond"`
	Created          int     `json:"created"`
	// Seen is the number of pods that the scheduler received. ByWebhook is the number of these that the
	// webhook delivered before the watch. Bound is the number of pods that the scheduler bound.
	Seen      int `json:"seen"`
	ByWebhook int `json:"byWebhook"`
	Bound     int `json:"bound"`
	// SeenMillis is the time from sending the request to create a pod until the scheduler received the
	// pod. BoundMillis is the time from the request until the scheduler had bound the pod. CreateMillis is
	// the latency of the request. Client and scheduler run on the same machine and use its clock.
	SeenMillis   Latency `json:"seenMillis"`
	BoundMillis  Latency `json:"boundMillis"`
	CreateMillis Latency `json:"createMillis"`

	APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
	SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
}

// summarizeRate returns the result of a rate from the created pods, the scheduler's log, and the resource
// usage before and after.
func summarizeRate(rate int, c *creations, l *logReader, before, after used) IntakeRate {
	seen, bound, byWebhook := newLatency(), newLatency(), 0
	for name, sent := range c.sent {
		if arrival, ok := l.seen[name]; ok {
			record(seen, arrival.at.Sub(sent))
			if arrival.source == clusterdir.IntakeWebhook {
				byWebhook++
			}
		}
		if at, ok := l.bound[name]; ok {
			record(bound, at.Sub(sent))
		}
	}
	perPod := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(max(c.count, 1)) }
	return IntakeRate{
		Rate: rate, CreatedPerSecond: c.perSecond(), Created: c.count, Seen: int(seen.TotalCount()), Bound: int(bound.TotalCount()),
		ByWebhook: byWebhook, SeenMillis: latencyOf(seen), BoundMillis: latencyOf(bound), CreateMillis: latencyOf(c.latency),
		APIServerCPUMicrosPerPod: perPod(after.apiServers.CPU - before.apiServers.CPU),
		SchedulerCPUMicrosPerPod: perPod(after.scheduler.CPU - before.scheduler.CPU),
	}
}

// latencyOf returns the percentiles of a histogram, whose values are microseconds.
func latencyOf(h *hdrhistogram.Histogram) Latency {
	millis := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1000 }
	return Latency{P50: millis(50), P90: millis(90), P99: millis(99), P999: millis(99.9), Max: float64(h.Max()) / 1000}
}

// Err returns an error if the scheduler did not receive and bind every pod.
func (r *IntakeResult) Err() error {
	var violations []string
	for _, intake := range r.Intakes {
		for _, rate := range intake.Rates {
			if done := min(rate.Seen, rate.Bound); done < rate.Created {
				violations = append(violations, fmt.Sprintf("intake %s at %d/s: %d of %d pods were not seen or not bound",
					intake.Name, rate.Rate, rate.Created-done, rate.Created))
			}
		}
	}
	if len(violations) == 0 {
		return nil
	}
	return fmt.Errorf("%s; repeat the run with --keep and read the log of the scheduler",
		strings.Join(violations, ", "))
}

// Print writes the result as text.
func (r *IntakeResult) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes on %s, %.0fs per rate; latencies in ms from the request to create a pod until the scheduler\n", r.Nodes, r.Store, r.Seconds)
	fmt.Fprintf(w, "receives the pod (seen), has bound it (bound), and the request returns (create); CPU in µs per pod\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprintln(table, "intake\tpods/s\tachieved\tseen p50\tp90\tp99\tmax\tbound p50\tp99\tcreate p50\tp99\tapiserver\tscheduler\tby webhook\t")
	for _, intake := range r.Intakes {
		for _, rate := range intake.Rates {
			seen, bound, answered := rate.SeenMillis, rate.BoundMillis, rate.CreateMillis
			fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d of %d\t\n", intake.Name, rate.Rate, rate.CreatedPerSecond,
				seen.P50, seen.P90, seen.P99, seen.Max, bound.P50, bound.P99, answered.P50, answered.P99,
				rate.APIServerCPUMicrosPerPod, rate.SchedulerCPUMicrosPerPod, rate.ByWebhook, rate.Seen)
		}
	}
}
