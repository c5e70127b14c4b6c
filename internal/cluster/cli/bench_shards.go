package cli

import (
	"encoding/json"
	"io"

	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/replicasim"
)

func newBenchShards() benchmark {
	options := replicasim.DefaultOptions()
	return benchmark{
		use:   "shard-simulation",
		short: "Simulate replicas of dist-scheduler that share the nodes, many more than there are machines",
		long: `Simulate replicas of dist-scheduler that share the nodes of a cluster, in rounds of
questions and answers: event by event, with the tree and the rules of the real ones, and
with what their code was measured to cost. It says how many pods a second they place, how
long rounds take, and what the leader has to do, for all combinations of --shards,
--fanout and --stragglers.

Costs are those that the program has stored, unless --costs names others. --calibrate
measures them on this machine; --check does, and holds simulated rounds against real ones
between replicas on loopback.`,
		example: `  k1m bench shard-simulation
  k1m bench shard-simulation --shards 256 --fanout 10 --stragglers 0,0.05 --classes 100
  k1m bench shard-simulation --check --shards 1,2,4
  k1m bench shard-simulation --calibrate > costs.json`,
		brief:    []string{"--shards", "1,16", "--stragglers", "0", "--pods", "10000"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run:      func(r benchRun) (findings, error) { return runBenchShards(r, options) },
	}
}

func runBenchShards(r benchRun, o replicasim.Options) (found findings, err error) {
	o.Case.Costs = replicasim.StoredCosts()
	if o.CostsFile != "" {
		if o.Case.Costs, err = replicasim.ReadCosts(o.CostsFile); err != nil {
			return nil, err
		}
	}
	ctx := r.cmd.Context()
	switch {
	case o.Calibrate:
		costs, err := replicasim.Calibrate(ctx, o.Case.Costs)
		if err != nil {
			return nil, err
		}
		return calibrated{&costs}, nil
	case o.Check:
		checks, err := replicasim.Check(ctx, o)
		if err != nil {
			return nil, err
		}
		return &checks, nil
	}
	result, err := replicasim.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	return &result, nil
}

// calibrated costs are for a file, so people get what programs get.
type calibrated struct{ *replicasim.Costs }

// Print writes them as --costs reads them.
func (c calibrated) Print(w io.Writer) {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	// What a terminal says is its own business, as with all that is printed for people.
	_ = encoder.Encode(c.Costs)
}
