package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/shardsim"
)

func newBenchShards() *cobra.Command {
	options, output := shardsim.DefaultOptions(), outputText
	cmd := &cobra.Command{
		Use:   "shard-simulation",
		Short: "Simulate replicas of dist-scheduler that share the nodes, many more than there are machines",
		Long: `Simulate replicas of dist-scheduler that share the nodes of a cluster, in rounds of
questions and answers: event by event, with the tree and the rules of the real ones, and
with what their code was measured to cost. It says how many pods a second they place, how
long rounds take, and what the leader has to do, for all combinations of --shards,
--fanout and --stragglers.

Costs are those that the program has stored, unless --costs names others. --calibrate
measures them on this machine; --check does, and holds simulated rounds against real ones
between replicas on loopback.`,
		Example: `  k1m bench shard-simulation
  k1m bench shard-simulation --shards 256 --fanout 10 --stragglers 0,0.05 --classes 100
  k1m bench shard-simulation --check --shards 1,2,4
  k1m bench shard-simulation --calibrate > costs.json`,
		Args: usageArgs(cobra.NoArgs),
	}
	options.AddFlags(cmd.Flags())
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), options.Validate()); err != nil {
			return err
		}
		return runBenchShards(cmd, options, output)
	}
	return cmd
}

func runBenchShards(cmd *cobra.Command, o shardsim.Options, output string) (err error) {
	o.Case.Costs = shardsim.StoredCosts()
	if o.CostsFile != "" {
		if o.Case.Costs, err = shardsim.ReadCosts(o.CostsFile); err != nil {
			return err
		}
	}
	switch {
	case o.Calibrate:
		costs, err := shardsim.Calibrate(cmd.Context(), o.Case.Costs)
		if err != nil {
			return err
		}
		return printJSON(cmd, costs)
	case o.Check:
		checks, err := shardsim.Check(cmd.Context(), o)
		if err != nil {
			return err
		}
		return printAs(cmd, output, checks, checks.Print)
	}
	result, err := shardsim.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	if o.Out != "" {
		if err := result.Write(o.Out); err != nil {
			return err
		}
	}
	return printAs(cmd, output, result, result.Print)
}
