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
		long: `Simulate replicas of dist-scheduler that divide the nodes of a cluster among themselves. It is a
discrete-event simulation of rounds of queries and answers, with the tree and the rules of the
real replicas and with the measured costs of their code. For all combinations of --replicas,
--fanout and --stragglers it reports pods per second, the duration of rounds, and the load of the
leader.

The costs are built in, unless --costs names a file. --calibrate measures them on this machine.
--check measures them and compares simulated rounds with real rounds between replicas on the
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

func runBenchReplicaSimulation(r benchRun, o replicasim.Options) (found benchResult, err error) {
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

// calibrated is the result of --calibrate. Its text form is the JSON that --costs reads.
type calibrated struct{ *replicasim.Costs }

// Print writes the costs in the format that --costs reads.
func (c calibrated) Print(w io.Writer) {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	// Like all text output, this ignores errors of writing to the terminal.
	_ = encoder.Encode(c.Costs)
}
