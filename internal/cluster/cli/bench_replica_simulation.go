package cli

import (
	"encoding/json"
	"io"

	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/replicasim"
)

func newBenchReplicaSimulation() benchmark {
	options := replicasim.DefaultOptions()
	return benchmark{
		use:   "replica-simulation",
		short: "Simulate more replicas of dist-scheduler than there are machines",
		long: `Simulate replicas of dist-scheduler that divide the nodes of a cluster among themselves. This is a
discrete-event simulation of scheduling rounds: the leader queries the other replicas along a tree,
and places pods from their answers. The tree and the rules for late replicas are those of the real
code, and the costs were measured with it. For all combinations of --replicas, --fanout and
--stragglers, the result has the pods scheduled per second, the duration of rounds, and the load of
the leader.

The costs are stored in the program, unless --costs names a file. --calibrate measures them on this
machine. --check measures them, and compares simulated rounds with rounds of real replicas on the
loopback interface.`,
		example: `  k1m bench replica-simulation
  k1m bench replica-simulation --replicas 256 --fanout 10 --stragglers 0,0.05 --classes 100
  k1m bench replica-simulation --check --replicas 1,2,4
  k1m bench replica-simulation --calibrate > costs.json`,
		brief:    []string{"--replicas", "1,16", "--stragglers", "0", "--pods", "10000"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run:      func(r benchRun) (benchResult, error) { return runBenchReplicaSimulation(r, options) },
	}
}

func runBenchReplicaSimulation(r benchRun, o replicasim.Options) (result benchResult, err error) {
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
		return printableCosts{&costs}, nil
	case o.Check:
		checks, err := replicasim.Check(ctx, o)
		if err != nil {
			return nil, err
		}
		return &checks, nil
	}
	outcomes, err := replicasim.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	return &outcomes, nil
}

// printableCosts is the result of --calibrate.
type printableCosts struct{ *replicasim.Costs }

// Print writes the costs as the JSON that --costs reads.
func (c printableCosts) Print(w io.Writer) {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	// The error is ignored, because w is the terminal.
	_ = encoder.Encode(c.Costs)
}
