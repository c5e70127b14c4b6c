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
	// RoundMillis are percentiles of the time from a query until its answers are combined.
	RoundMillisP50 float64 `json:"roundMillisP50"`
	RoundMillisP99 float64 `json:"roundMillisP99"`
	// LeaderCores is the average number of busy cores of the leader. LeaderShare is the fraction of
	// the CPU time of all replicas that the leader uses.
	LeaderCores float64 `json:"leaderCores"`
	LeaderShare float64 `json:"leaderShare"`
	// CPUMicrosPerPod is the total CPU time of all replicas, divided by the number of pods.
	CPUMicrosPerPod float64 `json:"cpuMicrosPerPod"`
	// LeaderBytesPerPod and LeaderMBPerSecond are the traffic of the leader in both directions.
	LeaderBytesPerPod float64 `json:"leaderBytesPerPod"`
	LeaderMBPerSecond float64 `json:"leaderMegabytesPerSecond"`
	// AbsentAnswers counts the queried replicas whose answers the leader did not get in time, over all
	// rounds.
	AbsentAnswers int `json:"cutOff"`
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
	s := newSimulation(c)
	s.run()
	for pod, binds := range s.bound {
		if binds != 1 {
			return Outcome{}, fmt.Errorf("simulating %d replicas: pod %d was bound %d times within %v",
				c.Replicas, pod, binds, s.ended)
		}
	}
	return s.outcome(), nil
}

func (s *simulation) outcome() Outcome {
	var all time.Duration
	for _, r := range s.all {
		all += r.cpuTime
	}
	seconds, pods := max(s.ended.Seconds(), 1e-9), float64(s.Pods)
	millis := func(percentile float64) float64 { return float64(s.latency.ValueAtPercentile(percentile)) / 1000 }
	return Outcome{
		Replicas: s.Replicas, Relays: s.Relays, Fanout: s.Fanout, Stragglers: s.Stragglers,
		Pods: s.binds, Seconds: seconds, PodsPerSecond: pods / seconds, Rounds: s.rounds,
		RoundMillisP50: millis(50), RoundMillisP99: millis(99),
		LeaderCores: s.leader.cpuTime.Seconds() / seconds, LeaderShare: s.leader.cpuTime.Seconds() / max(all.Seconds(), 1e-9),
		CPUMicrosPerPod:   all.Seconds() * 1e6 / pods,
		LeaderBytesPerPod: float64(s.leader.nic.bytes) / pods, LeaderMBPerSecond: float64(s.leader.nic.bytes) / 1e6 / seconds,
		AbsentAnswers: s.absentAnswers,
	}
}

// Print writes the result as text.
func (r *Result) Print(out io.Writer) {
	c := &r.Case
	fmt.Fprintf(out, "%d nodes, %d pods in %d classes with %d groups, %d cores per replica\n", c.Nodes, c.Pods, c.Classes, c.Groups, c.Cores)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "stragglers\tfanout\treplicas\tpods/s\trounds\tround p50 ms\tp99\tleader cores\tleader's share\tCPU µs/pod\tleader KB/pod\tMB/s\tabsent answers\t")
	for _, o := range r.Outcomes {
		fmt.Fprintf(w, "%g\t%d\t%d\t%.0f\t%d\t%.2f\t%.2f\t%.2f\t%.0f %%\t%.0f\t%.2f\t%.1f\t%d\t\n", o.Stragglers, o.Fanout, o.Replicas, o.PodsPerSecond, o.Rounds,
			o.RoundMillisP50, o.RoundMillisP99, o.LeaderCores, 100*o.LeaderShare, o.CPUMicrosPerPod, o.LeaderBytesPerPod/1000, o.LeaderMBPerSecond, o.AbsentAnswers)
	}
	w.Flush()
}
