package replicasim

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Outcome is the result of one case.
type Outcome struct {
	Replicas   int     `json:"replicas"`
	Relays     int     `json:"relays"`
	Fanout     int     `json:"fanout"`
	Stragglers float64 `json:"stragglers"`

	Pods          int     `json:"pods"`
	Seconds       float64 `json:"seconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	Rounds        int     `json:"rounds"`
	// RoundMillis is the time from a query until its answers are combined.
	RoundMillisP50 float64 `json:"roundMillisP50"`
	RoundMillisP99 float64 `json:"roundMillisP99"`
	// LeaderCores is the average number of busy cores of the leader. LeaderShare is its fraction
	// of the CPU time of all replicas.
	LeaderCores float64 `json:"leaderCores"`
	LeaderShare float64 `json:"leaderShare"`
	// CPUMicrosPerPod is the CPU time of all replicas per pod.
	CPUMicrosPerPod float64 `json:"cpuMicrosPerPod"`
	// LeaderBytesPerPod is the traffic of the leader in both directions.
	LeaderBytesPerPod float64 `json:"leaderBytesPerPod"`
	LeaderMBPerSecond float64 `json:"leaderMegabytesPerSecond"`
	// CutOff is the number of answers that arrived too late.
	CutOff int `json:"cutOff"`
}

// Result is the result of a run.
type Result struct {
	Case     Case      `json:"case"`
	Outcomes []Outcome `json:"outcomes"`
}

// Run simulates all cases.
func Run(ctx context.Context, o Options) (Result, error) {
	r := Result{Case: o.Case}
	for _, stragglers := range o.Stragglers {
		for _, fanout := range o.Fanouts {
			for _, replicas := range o.Replicas {
				if err := ctx.Err(); err != nil {
					return r, err
				}
				c := o.Case
				c.Replicas, c.Fanout, c.Stragglers = replicas, fanout, stragglers
				outcome, err := Simulate(c)
				if err != nil {
					return r, err
				}
				r.Outcomes = append(r.Outcomes, outcome)
			}
		}
	}
	return r, nil
}

// Simulate simulates one case.
func Simulate(c Case) (Outcome, error) {
	w := newWorld(c)
	w.run()
	for pod, binds := range w.bound {
		if binds != 1 {
			return Outcome{}, fmt.Errorf("simulating %d replicas: pod %d was bound %d times within %v", c.Replicas, pod, binds, w.ended)
		}
	}
	return w.outcome(), nil
}

func (w *world) outcome() Outcome {
	var all time.Duration
	for _, r := range w.all {
		all += r.used
	}
	seconds, pods := max(w.ended.Seconds(), 1e-9), float64(w.Pods)
	millis := func(percentile float64) float64 { return float64(w.latency.ValueAtPercentile(percentile)) / 1000 }
	return Outcome{
		Replicas: w.Replicas, Relays: w.Relays, Fanout: w.Fanout, Stragglers: w.Stragglers,
		Pods: w.binds, Seconds: seconds, PodsPerSecond: pods / seconds, Rounds: w.rounds,
		RoundMillisP50: millis(50), RoundMillisP99: millis(99),
		LeaderCores: w.leader.used.Seconds() / seconds, LeaderShare: w.leader.used.Seconds() / max(all.Seconds(), 1e-9),
		CPUMicrosPerPod:   all.Seconds() * 1e6 / pods,
		LeaderBytesPerPod: float64(w.leader.port.bytes) / pods, LeaderMBPerSecond: float64(w.leader.port.bytes) / 1e6 / seconds,
		CutOff: w.cutOff,
	}
}

// Print writes the result as text.
func (r *Result) Print(out io.Writer) {
	c := &r.Case
	fmt.Fprintf(out, "%d nodes, %d pods in %d classes with %d groups, %d cores per replica\n", c.Nodes, c.Pods, c.Classes, c.Groups, c.Cores)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "stragglers\tfanout\treplicas\tpods/s\trounds\tround p50 ms\tp99\tleader cores\tleader's share\tCPU µs/pod\tleader KB/pod\tMB/s\tcut off\t")
	for _, o := range r.Outcomes {
		fmt.Fprintf(w, "%g\t%d\t%d\t%.0f\t%d\t%.2f\t%.2f\t%.2f\t%.0f %%\t%.0f\t%.2f\t%.1f\t%d\t\n", o.Stragglers, o.Fanout, o.Replicas, o.PodsPerSecond, o.Rounds,
			o.RoundMillisP50, o.RoundMillisP99, o.LeaderCores, 100*o.LeaderShare, o.CPUMicrosPerPod, o.LeaderBytesPerPod/1000, o.LeaderMBPerSecond, o.CutOff)
	}
	w.Flush()
}
