package replicasim

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Case is what is simulated once.
type Case struct {
	// Shards own nodes, the leader among them; Relays own none.
	Shards, Relays, Fanout int
	Nodes, Pods            int
	// Classes that pods have at random, and Groups of nodes that each of them finds.
	Classes, Groups int
	// FixedOffers of each group are asked for; with 0 as many as the real leader would. No
	// more pods than that are placed by one answer.
	FixedOffers int
	// Cores of each replica; with SharedCores of all of them together.
	Cores       int
	SharedCores bool
	Network     Network
	// APILatency is how long a bind takes.
	APILatency time.Duration
	Patience   wire.Patience
	// Stragglers is the share of the shards that are late with StragglerChance at a
	// question, each time by StragglerDelay.
	Stragglers, StragglerChance float64
	StragglerDelay              time.Duration
	// RoundsOnly leaves reservations and binds out.
	RoundsOnly bool
	Costs      Costs
	Seed       uint64
}

// Network is the way between any two replicas.
type Network struct {
	// Latency of each message, and the mean of what is added at random (exponential).
	Latency, Jitter time.Duration
	// BytesPerSecond of each replica, out and in; 0 is without bound.
	BytesPerSecond float64
}

// Options of a run: all combinations of some numbers.
type Options struct {
	Shards, Fanouts []int
	// Stragglers are shares; 0 is none.
	Stragglers []float64
	Case       Case
	// CostsFile has other costs than the stored ones.
	CostsFile string
	Calibrate bool
	Check     bool
}

const (
	maxShards, maxNodes, maxPods = 4096, 100_000_000, 10_000_000
	gigabit                      = 1e9 / 8
)

// DefaultOptions are a cluster of a million nodes in one data centre.
func DefaultOptions() Options {
	return Options{
		Shards: []int{1, 2, 4, 8, 16, 32, 64, 128, 256}, Fanouts: []int{3, 10, 30}, Stragglers: []float64{0, 0.02},
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
	fs.IntSliceVar(&o.Shards, "shards", o.Shards, "replicas that share the nodes; each number is simulated")
	fs.IntSliceVar(&o.Fanouts, "fanout", o.Fanouts, "replicas that one of them asks itself; each number is simulated")
	fs.Float64SliceVar(&o.Stragglers, "stragglers", o.Stragglers, "shares of the replicas that are late now and then; each is simulated")
	fs.Float64Var(&c.StragglerChance, "straggler-chance", c.StragglerChance, "how often a straggler is late")
	fs.DurationVar(&c.StragglerDelay, "straggler-delay", c.StragglerDelay, "by how much")
	fs.IntVar(&c.Relays, "relays", c.Relays, "further replicas that own no nodes")
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "nodes of the cluster")
	fs.IntVar(&c.Pods, "pods", c.Pods, "pods to schedule, all of which wait at the start")
	fs.IntVar(&c.Classes, "classes", c.Classes, "classes that pods have at random; with many, runs are short")
	fs.IntVar(&c.Groups, "groups", c.Groups, "groups of nodes that a class finds")
	fs.IntVar(&c.FixedOffers, "offers", c.FixedOffers, "nodes of each group that are asked for, and pods that are placed by one answer at most; 0 as runs need them, which is what dist-scheduler does")
	fs.IntVar(&c.Cores, "cores", c.Cores, "cores of each replica")
	fs.DurationVar(&c.Network.Latency, "latency", c.Network.Latency, "time that a message is under way")
	fs.DurationVar(&c.Network.Jitter, "jitter", c.Network.Jitter, "mean of what is added at random")
	fs.Float64Var(&c.Network.BytesPerSecond, "bandwidth", c.Network.BytesPerSecond, "bytes a second of each replica, out and in; 0 is without bound")
	fs.DurationVar(&c.APILatency, "api-latency", c.APILatency, "time that a bind takes")
	fs.DurationVar(&c.Patience.Deadline, "deadline", c.Patience.Deadline, "as --replica-deadline of dist-scheduler")
	fs.IntVar(&c.Patience.Quorum, "quorum", c.Patience.Quorum, "as --replica-quorum; 100 for pods that have to be right with all others")
	fs.DurationVar(&c.Patience.Grace, "grace", c.Patience.Grace, "as --replica-grace")
	fs.Uint64Var(&c.Seed, "seed", c.Seed, "seed of chance")
	fs.StringVar(&o.CostsFile, "costs", o.CostsFile, "file with costs, from --calibrate (default: those stored in the program)")
	fs.BoolVar(&o.Calibrate, "calibrate", o.Calibrate, "measure the costs here, print them as JSON, and simulate nothing")
	fs.BoolVar(&o.Check, "check", o.Check, "measure the costs here, and compare simulated rounds with real ones on loopback")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	c := &o.Case
	for _, n := range o.Shards {
		if n < 1 || n > maxShards {
			return usage.Errorf("--shards %d: choose 1 to %d", n, maxShards)
		}
	}
	for _, n := range o.Fanouts {
		if n < 1 {
			return usage.Errorf("--fanout %d: choose 1 or more", n)
		}
	}
	for _, share := range o.Stragglers {
		if share < 0 || share > 1 {
			return usage.Errorf("--stragglers %g: choose 0 to 1", share)
		}
	}
	switch {
	case len(o.Shards) == 0 || len(o.Fanouts) == 0 || len(o.Stragglers) == 0:
		return usage.Errorf("--shards, --fanout and --stragglers: give each at least one number")
	case c.Relays < 0 || c.Relays > maxShards:
		return usage.Errorf("--relays %d: choose 0 to %d", c.Relays, maxShards)
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return usage.Errorf("--nodes %d: choose 1 to %d", c.Nodes, maxNodes)
	case c.Pods < 1 || c.Pods > maxPods:
		return usage.Errorf("--pods %d: choose 1 to %d", c.Pods, maxPods)
	case c.Classes < 1 || c.Groups < 1 || c.Cores < 1 || c.FixedOffers < 0:
		return usage.Errorf("--classes, --groups and --cores: choose 1 or more, and --offers no less than 0")
	case c.StragglerChance < 0 || c.StragglerChance > 1:
		return usage.Errorf("--straggler-chance %g: choose 0 to 1", c.StragglerChance)
	case min(c.StragglerDelay, c.Network.Latency, c.Network.Jitter, c.APILatency, c.Patience.Grace) < 0 || c.Network.BytesPerSecond < 0:
		return usage.Errorf("times and --bandwidth: choose 0 or more")
	case c.Patience.Deadline <= 0 || c.Patience.Quorum < 1 || c.Patience.Quorum > 100:
		return usage.Errorf("--deadline has to be more than 0, and --quorum from 1 to 100")
	}
	return nil
}
