package clusterbench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/k8s-1m/k8s-1m/internal/cluster"
)

// IntakeResult is how soon the scheduler saw pods.
type IntakeResult struct {
	Nodes int    `json:"nodes"`
	Store string `json:"store"`
	// Seconds that pods came at each rate.
	Seconds float64          `json:"seconds"`
	Intakes []IntakeMeasured `json:"intakes"`
}

// IntakeMeasured is one way of intake, until the API server took no more.
type IntakeMeasured struct {
	Name  string       `json:"name"`
	Rates []IntakeRate `json:"rates"`
}

// IntakeRate is what came of one rate.
type IntakeRate struct {
	// Rate that was asked for, in pods a second, and the one that was reached.
	Rate             int     `json:"rate"`
	CreatedPerSecond float64 `json:"createdPerSecond"`
	Created          int     `json:"created"`
	// Seen by the scheduler, and of those, by the webhook first.
	Seen      int `json:"seen"`
	ByWebhook int `json:"byWebhook"`
	// SeenMillis is from when the request to create a pod was sent, by the clock of the
	// client, until the scheduler had the pod, by that of the same machine. CreateMillis
	// is until the request was answered.
	SeenMillis   Latency `json:"seenMillis"`
	CreateMillis Latency `json:"createMillis"`

	APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
	SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
}

func summarizeRate(rate int, m *made, seen map[string]sighting, before, after used) IntakeRate {
	latency, byWebhook := newLatency(), 0
	for name, sighting := range seen {
		asked, is := m.asked[name]
		if !is {
			continue
		}
		record(latency, sighting.at.Sub(asked))
		if sighting.source == cluster.IntakeWebhook {
			byWebhook++
		}
	}
	perPod := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(max(m.count, 1)) }
	return IntakeRate{
		Rate: rate, CreatedPerSecond: m.perSecond(), Created: m.count, Seen: int(latency.TotalCount()), ByWebhook: byWebhook,
		SeenMillis: latencyOf(latency), CreateMillis: latencyOf(m.latency),
		APIServerCPUMicrosPerPod: perPod(after.apiServers.CPU - before.apiServers.CPU),
		SchedulerCPUMicrosPerPod: perPod(after.scheduler.CPU - before.scheduler.CPU),
	}
}

// latencyOf has the percentiles of a histogram in microseconds.
func latencyOf(h *hdrhistogram.Histogram) Latency {
	millis := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1000 }
	return Latency{P50: millis(50), P90: millis(90), P99: millis(99), P999: millis(99.9), Max: float64(h.Max()) / 1000}
}

// Err says in one line what must not be, if anything.
func (r *IntakeResult) Err() error {
	var wrong []string
	for _, intake := range r.Intakes {
		for _, at := range intake.Rates {
			if at.Seen < at.Created {
				wrong = append(wrong, fmt.Sprintf("by %s at %d/s, %d of %d pods were never seen", intake.Name, at.Rate, at.Created-at.Seen, at.Created))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s; run it again with --keep to look at the scheduler's log", strings.Join(wrong, ", "))
}

// Print writes it for people.
func (r *IntakeResult) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes on %s, %.0fs at each rate; milliseconds from the request to create a pod until\n", r.Nodes, r.Store, r.Seconds)
	fmt.Fprintf(w, "the scheduler has it, and until it is answered; CPU in µs a pod\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprintln(table, "intake\tpods/s\treached\tseen p50\tp90\tp99\tp99.9\tmax\tanswered p50\tp99\tapiserver\tscheduler\tby webhook\t")
	for _, intake := range r.Intakes {
		for _, at := range intake.Rates {
			seen, answered := at.SeenMillis, at.CreateMillis
			fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d of %d\t\n", intake.Name, at.Rate, at.CreatedPerSecond,
				seen.P50, seen.P90, seen.P99, seen.P999, seen.Max, answered.P50, answered.P99,
				at.APIServerCPUMicrosPerPod, at.SchedulerCPUMicrosPerPod, at.ByWebhook, at.Seen)
		}
	}
}
