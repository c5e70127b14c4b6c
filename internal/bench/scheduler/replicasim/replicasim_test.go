package replicasim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// free returns a case in which all operations cost nothing, so that a test can set individual costs.
func free(replicas, fanout int) Case {
	c := DefaultOptions().Case
	c.Replicas, c.Fanout, c.Pods, c.FixedOffers, c.Costs = replicas, fanout, 128, 128, Costs{}
	c.Network = Network{Latency: time.Millisecond}
	c.Patience = wire.Patience{Deadline: time.Minute, Quorum: 100}
	return c
}

func simulate(t *testing.T, c Case) Outcome {
	t.Helper()
	o, err := Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// near fails the test if two values differ by more than the rounding error of a histogram.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if got < want*0.998 || got > want*1.002 {
		t.Errorf("%s: got %g, want %g", what, got, want)
	}
}

// depth returns the number of levels of a relay tree.
func depth(branches []membership.Branch) int {
	deepest := 0
	for i := range branches {
		deepest = max(deepest, 1+depth(branches[i].Branches))
	}
	return deepest
}

// TestRoundTakesAsLongAsTheDeepestPath checks that a round takes twice the network latency per level of
// the relay tree, if nothing else takes time.
func TestRoundTakesAsLongAsTheDeepestPath(t *testing.T) {
	for _, replicas := range []int{2, 4, 11, 57, 256} {
		for _, fanout := range []int{2, 3, 10, 30} {
			members := make([]membership.Member, replicas-1)
			for i := range members {
				members[i].Name = fmt.Sprint(i)
			}
			levels := depth(membership.Grow(members, fanout, nil))
			near(t, fmt.Sprintf("milliseconds of the round of %d replicas with a fan-out of %d", replicas, fanout),
				simulate(t, free(replicas, fanout)).RoundMillisP50, float64(2*levels))
		}
	}
}

// TestStragglersAreExcluded checks a round in which nine of ten replicas answer after 2 ms, which starts
// the grace period for the tenth. The round ends with the grace period, and the next round does not query
// the tenth replica.
func TestStragglersAreExcluded(t *testing.T) {
	c := free(11, 10)
	c.Pods, c.Stragglers, c.StragglerChance, c.StragglerDelay = 2*128, 0.1, 1, time.Second
	c.Patience.Quorum, c.Patience.Grace = 90, 20*time.Millisecond
	o := simulate(t, c)
	near(t, "milliseconds of the first round", o.RoundMillisP99, 2+20)
	near(t, "milliseconds of the second round", o.RoundMillisP50, 2)
	if o.AbsentAnswers != 1 || o.Rounds != 2 {
		t.Errorf("%d answers were absent in %d rounds; want 1 in 2 rounds", o.AbsentAnswers, o.Rounds)
	}
	c.Patience.Quorum, c.Pods = 100, 128
	near(t, "milliseconds of a round that waits for all replicas", simulate(t, c).RoundMillisP50, 2+1000)
	// A quorum of 90 % of three replicas is all three, so the leader waits for all until the deadline.
	c = free(4, 3)
	c.Stragglers, c.StragglerChance, c.StragglerDelay = 0.3, 1, time.Second
	c.Patience.Quorum, c.Patience.Grace = 90, 20*time.Millisecond
	near(t, "milliseconds of a round with three branches", simulate(t, c).RoundMillisP50, 2+1000)
}

// TestLeaderLimitsThroughput checks that the throughput is limited by the scheduling cycles of the leader,
// or by the number of pods that it schedules per round.
func TestLeaderLimitsThroughput(t *testing.T) {
	c := free(1, 10)
	c.Pods, c.Cores, c.RoundsOnly, c.Costs.Cycle = 1000, 1, true, time.Millisecond
	near(t, "pods per second with 1 ms per pod", simulate(t, c).PodsPerSecond, 1000)
	c = free(2, 10)
	c.Pods, c.RoundsOnly = 1280, true
	near(t, "pods per second with 128 pods per round of 2 ms", simulate(t, c).PodsPerSecond, 64_000)
}

// TestLeaderBandwidthIsShared checks that all answers arrive through the leader's network interface, one
// after the other.
func TestLeaderBandwidthIsShared(t *testing.T) {
	c := free(11, 10)
	c.Network, c.Groups, c.FixedOffers = Network{BytesPerSecond: 1e6}, 1, 1
	c.Pods, c.RoundsOnly, c.Costs.AnswerBytes = 1, true, 1000
	near(t, "milliseconds of a round with ten answers of a millisecond each", simulate(t, c).RoundMillisP50, 10)
}

// TestEachPodIsBoundOnce checks combinations of replicas, relays, stragglers, pod classes and seeds.
func TestEachPodIsBoundOnce(t *testing.T) {
	for _, replicas := range []int{1, 2, 7, 40} {
		for _, stragglers := range []float64{0, 0.3} {
			for _, classes := range []int{1, 20} {
				for seed := range uint64(3) {
					c := DefaultOptions().Case
					c.Replicas, c.Fanout, c.Relays, c.Pods, c.Classes = replicas, 3, int(seed), 300, classes
					c.Stragglers, c.Seed, c.Costs = stragglers, seed, StoredCosts()
					s := newSimulation(c)
					s.run()
					for pod, binds := range s.bound {
						if binds != 1 {
							t.Fatalf("%d replicas, seed %d: pod %d is bound %d times", replicas, seed, pod, binds)
						}
					}
					for _, r := range s.all {
						if r.reservationsSent != r.reservationsExecuted || len(r.waitingQueries) > 0 {
							t.Errorf("%s was sent %d reservations and executed %d",
								r.member.Name, r.reservationsSent, r.reservationsExecuted)
						}
					}
				}
			}
		}
	}
}

func TestSameSeedSameOutcome(t *testing.T) {
	c := DefaultOptions().Case
	c.Replicas, c.Fanout, c.Pods, c.Stragglers, c.Costs = 40, 3, 1000, 0.1, StoredCosts()
	if a, b := simulate(t, c), simulate(t, c); a != b {
		t.Errorf("two simulations with the same seed had the outcomes %+v and %+v", a, b)
	}
}

func TestStoredCostsAreComplete(t *testing.T) {
	c := StoredCosts()
	for name, positive := range map[string]bool{
		"message": c.Message > 0, "encode": c.EncodeNanosPerByte > 0, "decode": c.DecodeNanosPerByte > 0, "offer": c.OfferBytes > 0,
		"summarize": c.Summarize.Offer > 0, "fold": c.Fold.Offer > 0, "cycle": c.Cycle > 0, "bind": c.Bind > 0, "pod": c.PodBytes > 0,
	} {
		if !positive {
			t.Errorf("the stored cost of %q is not positive", name)
		}
	}
}

func TestRunReportsAllOutcomes(t *testing.T) {
	o := DefaultOptions()
	o.Replicas, o.Case.Pods, o.Case.Costs = []int{1, 4}, 100, StoredCosts()
	r, err := Run(t.Context(), o)
	if err != nil || len(r.Outcomes) != 2*3*2 {
		t.Fatalf("Run returned %d outcomes, want 12; error: %v", len(r.Outcomes), err)
	}
	report := &experiment.Result{Errors: experiment.NewTally(0)}
	r.Report(report)
	if len(report.Tables) != 1 || len(report.Tables[0].Rows) != len(r.Outcomes) || len(report.Series) != 7*3*2 {
		t.Errorf("the report has %d tables and %d series; want 1 table with a row per outcome, "+
			"and 7 series per fan-out and fraction of stragglers", len(report.Tables), len(report.Series))
	}
	r.Print(t.Output())
}

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"replicas":   func(o *Options) { o.Replicas = []int{0} },
		"fanout":     func(o *Options) { o.Fanouts = []int{0} },
		"stragglers": func(o *Options) { o.Stragglers = []float64{2} },
		"no fan-out": func(o *Options) { o.Fanouts = nil },
		"nodes":      func(o *Options) { o.Case.Nodes = 0 },
		"pods":       func(o *Options) { o.Case.Pods = 0 },
		"classes":    func(o *Options) { o.Case.Classes = 0 },
		"quorum":     func(o *Options) { o.Case.Patience.Quorum = 101 },
		"latency":    func(o *Options) { o.Case.Network.Latency = -1 },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("with invalid %s, Validate returned %v, not a usage error", name, err)
		}
	}
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("the default options are invalid: %v", o.Validate())
	}
}
