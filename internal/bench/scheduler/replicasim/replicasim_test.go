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

// caseWithoutCosts returns a case in which operations cost nothing, so that a test can set
// individual costs. The network has a latency of 1 ms.
func caseWithoutCosts(shards, fanout int) Case {
	c := DefaultOptions().Case
	c.Shards, c.Fanout, c.Pods, c.FixedOffers, c.Costs = shards, fanout, 128, 128, Costs{}
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

// checkNear compares values with a tolerance for the rounding of a histogram.
func checkNear(t *testing.T, name string, got, want float64) {
	t.Helper()
	if got < want*0.998 || got > want*1.002 {
		t.Errorf("%s = %g, want %g", name, got, want)
	}
}

// depth returns the number of levels of a tree.
func depth(branches []membership.Branch) int {
	deepest := 0
	for i := range branches {
		deepest = max(deepest, 1+depth(branches[i].Branches))
	}
	return deepest
}

// TestRoundTakesAsLongAsDeepestPath checks that, if only the network has latency, a round takes
// twice the latency for each level of the tree.
func TestRoundTakesAsLongAsDeepestPath(t *testing.T) {
	for _, shards := range []int{2, 4, 11, 57, 256} {
		for _, fanout := range []int{2, 3, 10, 30} {
			members := make([]membership.Member, shards-1)
			for i := range members {
				members[i].Name = fmt.Sprint(i)
			}
			levels := depth(membership.Grow(members, fanout, nil))
			checkNear(t, fmt.Sprintf("duration in ms of a round of %d shards with fanout %d", shards, fanout),
				simulate(t, caseWithoutCosts(shards, fanout)).RoundMillisP50, float64(2*levels))
		}
	}
}

// TestStragglersAreCutOff has nine of ten replicas answer after 2 ms, which starts the grace period
// for the tenth. It is cut off at the end of the grace period and excluded from the next round.
func TestStragglersAreCutOff(t *testing.T) {
	c := caseWithoutCosts(11, 10)
	c.Pods, c.Stragglers, c.StragglerChance, c.StragglerDelay = 2*128, 0.1, 1, time.Second
	c.Patience.Quorum, c.Patience.Grace = 90, 20*time.Millisecond
	o := simulate(t, c)
	checkNear(t, "duration in ms of the first round", o.RoundMillisP99, 2+20)
	checkNear(t, "duration in ms of the second round", o.RoundMillisP50, 2)
	if o.CutOff != 1 || o.Rounds != 2 {
		t.Errorf("%d replicas cut off in %d rounds, want 1 in 2", o.CutOff, o.Rounds)
	}
	c.Patience.Quorum, c.Pods = 100, 128
	checkNear(t, "duration in ms of a round with a quorum of 100 %", simulate(t, c).RoundMillisP50, 2+1000)
	// A quorum of 90 % of three replicas is all three, so no replica is cut off before the
	// deadline.
	c = caseWithoutCosts(4, 3)
	c.Stragglers, c.StragglerChance, c.StragglerDelay = 0.3, 1, time.Second
	c.Patience.Quorum, c.Patience.Grace = 90, 20*time.Millisecond
	checkNear(t, "duration in ms of a round with three branches", simulate(t, c).RoundMillisP50, 2+1000)
}

// TestLeaderLimitsThroughput checks that the throughput is limited by the scheduling cycles of the
// leader, or by the number of pods that it schedules per round.
func TestLeaderLimitsThroughput(t *testing.T) {
	c := caseWithoutCosts(1, 10)
	c.Pods, c.Cores, c.RoundsOnly, c.Costs.Cycle = 1000, 1, true, time.Millisecond
	checkNear(t, "pods per second with 1 ms per pod", simulate(t, c).PodsPerSecond, 1000)
	c = caseWithoutCosts(2, 10)
	c.Pods, c.RoundsOnly = 1280, true
	checkNear(t, "pods per second with 128 pods per round of 2 ms", simulate(t, c).PodsPerSecond, 64_000)
}

// TestAnswersShareLeadersLink checks that answers arrive over the leader's network link one after
// the other.
func TestAnswersShareLeadersLink(t *testing.T) {
	c := caseWithoutCosts(11, 10)
	c.Network, c.Groups, c.FixedOffers = Network{BytesPerSecond: 1e6}, 1, 1
	c.Pods, c.RoundsOnly, c.Costs.AnswerBytes = 1, true, 1000
	checkNear(t, "duration in ms of a round with ten answers of 1 ms each", simulate(t, c).RoundMillisP50, 10)
}

// TestEachPodIsBoundOnce simulates combinations of shards, stragglers, pod classes and seeds.
func TestEachPodIsBoundOnce(t *testing.T) {
	for _, shards := range []int{1, 2, 7, 40} {
		for _, stragglers := range []float64{0, 0.3} {
			for _, classes := range []int{1, 20} {
				for seed := range uint64(3) {
					c := DefaultOptions().Case
					c.Shards, c.Fanout, c.Relays, c.Pods, c.Classes = shards, 3, int(seed), 300, classes
					c.Stragglers, c.Seed, c.Costs = stragglers, seed, StoredCosts()
					w := newWorld(c)
					w.run()
					for pod, binds := range w.bound {
						if binds != 1 {
							t.Fatalf("%d shards, %d classes, seed %d: pod %d is bound %d times, want 1", shards, classes, seed, pod, binds)
						}
					}
					for _, r := range w.replicas {
						if r.sent != r.taken || len(r.waiting) > 0 {
							t.Errorf("%s was sent %d reservations and executed %d, %d wait, want all executed", r.member.Name, r.sent, r.taken, len(r.waiting))
						}
					}
				}
			}
		}
	}
}

func TestSameSeedSameOutcome(t *testing.T) {
	c := DefaultOptions().Case
	c.Shards, c.Fanout, c.Pods, c.Stragglers, c.Costs = 40, 3, 1000, 0.1, StoredCosts()
	if a, b := simulate(t, c), simulate(t, c); a != b {
		t.Errorf("Simulate() twice with one seed = %+v and %+v, want equal outcomes", a, b)
	}
}

func TestStoredCostsAreComplete(t *testing.T) {
	c := StoredCosts()
	for name, positive := range map[string]bool{
		"message": c.Message > 0, "encode": c.EncodeNanosPerByte > 0, "decode": c.DecodeNanosPerByte > 0, "offer": c.OfferBytes > 0,
		"summarize": c.Summarize.Offer > 0, "fold": c.Fold.Offer > 0, "cycle": c.Cycle > 0, "bind": c.Bind > 0, "pod": c.PodBytes > 0,
	} {
		if !positive {
			t.Errorf("stored cost of %s is 0, want it positive", name)
		}
	}
}

func TestReportHasAllOutcomes(t *testing.T) {
	o := DefaultOptions()
	o.Shards, o.Case.Pods, o.Case.Costs = []int{1, 4}, 100, StoredCosts()
	r, err := Run(t.Context(), o)
	if err != nil || len(r.Outcomes) != 2*3*2 {
		t.Fatalf("Run() = %d outcomes, %v, want %d", len(r.Outcomes), err, 2*3*2)
	}
	report := &experiment.Result{Errors: experiment.NewTally(0)}
	r.Report(report)
	if len(report.Tables) != 1 || len(report.Tables[0].Rows) != len(r.Outcomes) || len(report.Series) != 7*3*2 {
		t.Errorf("report has %d tables and %d series, want one table with %d rows and %d series", len(report.Tables), len(report.Series), len(r.Outcomes), 7*3*2)
	}
	r.Print(t.Output())
}

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no shards":                 func(o *Options) { o.Shards = []int{0} },
		"fanout 0":                  func(o *Options) { o.Fanouts = []int{0} },
		"share of stragglers 200 %": func(o *Options) { o.Stragglers = []float64{2} },
		"no fanout":                 func(o *Options) { o.Fanouts = nil },
		"no nodes":                  func(o *Options) { o.Case.Nodes = 0 },
		"no pods":                   func(o *Options) { o.Case.Pods = 0 },
		"no classes":                func(o *Options) { o.Case.Classes = 0 },
		"quorum above 100 %":        func(o *Options) { o.Case.Patience.Quorum = 101 },
		"negative latency":          func(o *Options) { o.Case.Network.Latency = -1 },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%s: Validate() = %v, want a usage error", name, err)
		}
	}
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("Validate() of the default options = %v, want nil", o.Validate())
	}
}
