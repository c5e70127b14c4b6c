package replicasim

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// Checked compares measured rounds with simulated rounds. The measured rounds run the real code on
// loopback, with all replicas in one process. The simulation uses costs that were measured immediately
// before.
type Checked struct {
	Replicas int `json:"replicas"`
	// RealRoundMillis is the median time from the query until 128 pods have nodes.
	// SimulatedRoundMillis is the mean of the same time in the simulation.
	RealRoundMillis      float64 `json:"realRoundMillis"`
	SimulatedRoundMillis float64 `json:"simulatedRoundMillis"`
	RealCPUMillis        float64 `json:"realCpuMillisPerRound"`
	SimulatedCPUMillis   float64 `json:"simulatedCpuMillisPerRound"`
}

// Checks are the results of [Check], and the costs that it measured.
type Checks struct {
	Costs   Costs     `json:"costs"`
	Checked []Checked `json:"checked"`
}

const checkRounds = 300

// Check measures costs and rounds on this machine, and simulates the same rounds with these costs.
func Check(ctx context.Context, o Options) (Checks, error) {
	costs, err := Calibrate(ctx, o.Case.Costs)
	checks := Checks{Costs: costs}
	if err != nil {
		return checks, err
	}
	for _, replicas := range o.Replicas {
		c := o.Case
		c.Replicas, c.Fanout, c.Stragglers, c.Relays, c.Classes = replicas, o.Fanouts[0], 0, 0, 1
		c.Costs, c.RoundsOnly, c.SharedCores, c.Cores = costs, true, true, runtime.NumCPU()
		c.Costs.Cycle, c.Network, c.Pods, c.FixedOffers = 0, Network{}, checkRounds*manyOffers, manyOffers
		c.Nodes, c.Patience.Quorum = replicas*calibrationNodes, 100
		simulated, err := Simulate(c)
		if err != nil {
			return checks, err
		}
		round, cpu, err := realRounds(ctx, replicas, c.Fanout, c.Groups)
		if err != nil {
			return checks, err
		}
		checks.Checked = append(checks.Checked, Checked{
			Replicas: replicas, RealRoundMillis: millis(round), RealCPUMillis: millis(cpu),
			SimulatedRoundMillis: simulated.Seconds * 1000 / float64(simulated.Rounds),
			SimulatedCPUMillis:   simulated.CPUMicrosPerPod * float64(simulated.Pods) / 1000 / float64(simulated.Rounds),
		})
	}
	return checks, nil
}

func millis(d time.Duration) float64 { return d.Seconds() * 1000 }

// realRounds queries replicas in this process and places pods with their answers. It returns the
// median duration and the mean CPU time of a round.
func realRounds(ctx context.Context, replicas, fanout, groups int) (median, cpu time.Duration, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	newAnswerer := func() (func() *wire.Answer, error) {
		class, err := classOverNodes(groups)
		return func() *wire.Answer {
			a, _ := answerOf(class, groups, manyOffers)
			return a
		}, err
	}
	own, err := newAnswerer()
	if err != nil {
		return 0, 0, err
	}
	var members []membership.Member
	for i := 1; i < replicas; i++ {
		answer, err := newAnswerer()
		if err != nil {
			return 0, 0, err
		}
		m, err := serve(ctx, fmt.Sprintf("replica-%04d", i), answer)
		if err != nil {
			return 0, 0, err
		}
		members = append(members, m)
	}
	q, err := sampleRequest()
	if err != nil {
		return 0, 0, err
	}
	dialer := wire.NewDialer(nil)
	round := func(number int) {
		a := dialer.Scatter(ctx, own, members, fanout, []byte{byte(number), byte(number >> 8)}, q)
		chooseNodes(index.NewMerged(spec(), nil, &a.Summary), manyOffers)
		if len(a.Errors)+len(a.Absent) > 0 {
			err = fmt.Errorf("measuring a round: absent replicas %v, errors %v", a.Absent, a.Errors)
		}
	}
	round(0)
	var durations []time.Duration
	before := process.OwnCPUTime()
	for number := range checkRounds {
		started := time.Now()
		round(number)
		durations = append(durations, time.Since(started))
	}
	cpu = (process.OwnCPUTime() - before) / checkRounds
	slices.Sort(durations)
	return durations[len(durations)/2], cpu, err
}

// Print writes the result as text.
func (c *Checks) Print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "replicas\tround, measured ms\tsimulated\tCPU, measured ms\tsimulated\t")
	for _, x := range c.Checked {
		fmt.Fprintf(w, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t\n", x.Replicas, x.RealRoundMillis, x.SimulatedRoundMillis, x.RealCPUMillis, x.SimulatedCPUMillis)
	}
	w.Flush()
}
