package replicasim

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Case is one simulated case.
type Case struct {
	// Replicas is the number of replicas that own nodes, including the leader. Relays is the number of
	// additional replicas, which own no nodes. Fanout is the number of replicas that one replica queries
	// directly.
	Replicas, Relays, Fanout int
	Nodes, Pods              int
	// Classes is the number of pod classes; the class of each pod is chosen at random. Groups is the
	// number of node groups of each class.
	Classes, Groups int
	// FixedOffers is the number of offers that a query requests per node group. At most this number of
	// pods is placed from one answer. 0 adapts the number as the real leader does.
	FixedOffers int
	// Cores is the number of cores of each replica. With SharedCores, all replicas share these cores.
	Cores       int
	SharedCores bool
	Network     Network
	// APILatency is the latency of the API request that binds a pod.
	APILatency time.Duration
	Patience   wire.Patience
	// Stragglers is the fraction of the replicas that are stragglers. A straggler delays a query by
	// StragglerDelay with the probability StragglerChance.
	Stragglers, StragglerChance float64
	StragglerDelay              time.Duration
	// RoundsOnly omits reservations and binds.
	RoundsOnly bool
	Costs      Costs
	Seed       uint64
}

// Network is the connection between any two replicas.
type Network struct {
	// Each message is delayed by Latency plus an exponentially distributed random time, whose mean is
	// Jitter.
	Latency, Jitter time.Duration
	// BytesPerSecond is the bandwidth of each replica in each direction; 0 is unlimited.
	BytesPerSecond float64
}

// Options select the cases of a run: all combinations of Replicas, Fanouts and Stragglers, and otherwise
// the values of Case.
type Options struct {
	Replicas, Fanouts []int
	// Stragglers are fractions of the replicas; 0 means no stragglers.
	Stragglers []float64
	Case       Case
	// CostsFile is a file with costs that replace the stored costs.
	CostsFile string
	Calibrate bool
	Check     bool
}

const (
	maxReplicas, maxNodes, maxPods = 4096, 100_000_000, 10_000_000
	gigabit                        = 1e9 / 8 // bytes
)

// DefaultOptions returns the options for a cluster of a million nodes in one data center.
func DefaultOptions() Options {
	return Options{
		Replicas: []int{1, 2, 4, 8, 16, 32, 64, 128, 256}, Fanouts: []int{3, 10, 30}, Stragglers: []float64{0, 0.02},
		Case: Case{
			Nodes: 1_000_000, Pods: 20_000, Classes: 1, Groups: 10, Cores: 8,
			Network:         Network{Latency: 100 * time.Microsecond, Jitter: 50 * time.Microsecond, BytesPerSecond: 10 * gigabit},
			APILatency:      5 * time.Millisecond,
			Patience:        wire.Patience{Deadline: 2 * time.Second, Quorum: 90, Grace: 100 * time.Millisecond},
			StragglerChance: 0.5, StragglerDelay: 500 * time.Millisecond, Seed: 1,
		},
	}
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	c := &o.Case
	fs.IntSliceVar(&o.Replicas, "replicas", o.Replicas, "numbers of replicas that own nodes")
	fs.IntSliceVar(&o.Fanouts, "fanout", o.Fanouts, "numbers of replicas that one replica queries directly")
	fs.Float64SliceVar(&o.Stragglers, "stragglers", o.Stragglers,
		"fractions of the replicas that answer some queries late")
	fs.Float64Var(&c.StragglerChance, "straggler-chance", c.StragglerChance,
		"probability that a straggler delays a query")
	fs.DurationVar(&c.StragglerDelay, "straggler-delay", c.StragglerDelay, "time by which a straggler delays a query")
	fs.IntVar(&c.Relays, "relays", c.Relays, "number of additional replicas that own no nodes")
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "number of nodes")
	fs.IntVar(&c.Pods, "pods", c.Pods, "number of pods to schedule, all pending at the start")
	fs.IntVar(&c.Classes, "classes", c.Classes,
		"number of pod classes; the class of each pod is chosen at random, so with many classes few consecutive "+
			"pods have the same class")
	fs.IntVar(&c.Groups, "groups", c.Groups, "number of node groups of each class")
	fs.IntVar(&c.FixedOffers, "offers", c.FixedOffers,
		"number of offers that a query requests per node group, and maximum number of pods that are placed from one "+
			"answer; 0 adapts the number, as dist-scheduler does")
	fs.IntVar(&c.Cores, "cores", c.Cores, "number of cores of each replica")
	fs.DurationVar(&c.Network.Latency, "latency", c.Network.Latency, "latency of a message")
	fs.DurationVar(&c.Network.Jitter, "jitter", c.Network.Jitter, "mean of a random time that is added to the latency")
	fs.Float64Var(&c.Network.BytesPerSecond, "bandwidth", c.Network.BytesPerSecond,
		"bytes per second of each replica in each direction; 0 is unlimited")
	fs.DurationVar(&c.APILatency, "api-latency", c.APILatency, "latency of the API request that binds a pod")
	fs.DurationVar(&c.Patience.Deadline, "deadline", c.Patience.Deadline,
		"time limit of a round, as with --replica-deadline of dist-scheduler")
	fs.IntVar(&c.Patience.Quorum, "quorum", c.Patience.Quorum,
		"percentage of answers after which a grace period starts, as with --replica-quorum of dist-scheduler; use "+
			"100 to simulate pods that depend on all other pods")
	fs.DurationVar(&c.Patience.Grace, "grace", c.Patience.Grace,
		"grace period for late answers, as with --replica-grace of dist-scheduler")
	fs.Uint64Var(&c.Seed, "seed", c.Seed, "seed of the random numbers")
	fs.StringVar(&o.CostsFile, "costs", o.CostsFile,
		"file with costs that --calibrate printed (default: the costs stored in the program)")
	fs.BoolVar(&o.Calibrate, "calibrate", o.Calibrate,
		"measure the costs on this machine and print them as JSON, without a simulation")
	fs.BoolVar(&o.Check, "check", o.Check,
		"measure the costs on this machine and compare simulated rounds with real rounds on loopback")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	c := &o.Case
	for _, n := range o.Replicas {
		if n < 1 || n > maxReplicas {
			return usage.Errorf("--replicas %d: choose 1 to %d", n, maxReplicas)
		}
	}
	for _, n := range o.Fanouts {
		if n < 1 {
			return usage.Errorf("--fanout %d: choose 1 or more", n)
		}
	}
	for _, fraction := range o.Stragglers {
		if fraction < 0 || fraction > 1 {
			return usage.Errorf("--stragglers %g: choose 0 to 1", fraction)
		}
	}
	switch {
	case len(o.Replicas) == 0 || len(o.Fanouts) == 0 || len(o.Stragglers) == 0:
		return usage.Errorf("--replicas, --fanout and --stragglers: each needs at least one number")
	case c.Relays < 0 || c.Relays > maxReplicas:
		return usage.Errorf("--relays %d: choose 0 to %d", c.Relays, maxReplicas)
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return usage.Errorf("--nodes %d: choose 1 to %d", c.Nodes, maxNodes)
	case c.Pods < 1 || c.Pods > maxPods:
		return usage.Errorf("--pods %d: choose 1 to %d", c.Pods, maxPods)
	case c.Classes < 1 || c.Groups < 1 || c.Cores < 1 || c.FixedOffers < 0:
		return usage.Errorf("--classes, --groups and --cores: choose 1 or more; --offers: choose 0 or more")
	case c.StragglerChance < 0 || c.StragglerChance > 1:
		return usage.Errorf("--straggler-chance %g: choose 0 to 1", c.StragglerChance)
	case min(c.StragglerDelay, c.Network.Latency, c.Network.Jitter, c.APILatency, c.Patience.Grace) < 0 || c.Network.BytesPerSecond < 0:
		return usage.Errorf("--straggler-delay, --latency, --jitter, --api-latency, --grace and --bandwidth: choose 0 or more")
	case c.Patience.Deadline <= 0 || c.Patience.Quorum < 1 || c.Patience.Quorum > 100:
		return usage.Errorf("--deadline: choose more than 0; --quorum: choose 1 to 100")
	}
	return nil
}
