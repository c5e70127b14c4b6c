package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/plan"
)

func newPlan() *cobra.Command {
	nodes, machines, output, costsFile := plan.DefaultCluster(), plan.DefaultMachines(), outputText, ""
	cmd := &cobra.Command{
		Use:   "plan --nodes N",
		Short: "Say what a cluster of some size needs, what binds first, and how to double it",
		Long: `Say what a cluster of some size needs: CPU, memory, disk and network of the store, the
number and size of API servers, replicas of the scheduler, watches and connections. Which
resource binds first, how many nodes each allows, and what to change for twice as many.

It is arithmetic: how often things happen, times what one costs. The costs were measured on
a machine that "costs" names; what a core does differs from one machine to another, so let
` + "`k1m bench limits`" + ` or costs of your own (--costs) have the last word. The model, and how
it compares with what was measured elsewhere, is in docs/plan.md.`,
		Example: `  k1m plan --nodes 1000000 --pods-per-node 30 --lease-interval 10s --watches-per-node 18
  k1m plan --nodes 20000 --apiserver-cores 8 --apiserver-memory 32 --store-cores 4 --store-memory 16
  k1m plan --nodes 1000000 --lease-cache=false -o json`,
		Args: usageArgs(cobra.NoArgs),
	}
	nodes.AddFlags(cmd.Flags())
	machines.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&costsFile, "costs", "", "file with costs that were measured elsewhere (default: those that come with k1m)")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), nodes.Validate(), machines.Validate()); err != nil {
			return err
		}
		costs := plan.DefaultCosts()
		if costsFile != "" {
			var err error
			if costs, err = plan.ReadCosts(costsFile); err != nil {
				return err
			}
		}
		p := plan.Make(nodes, machines, costs)
		return printAs(cmd, output, p, p.Print)
	}
	return cmd
}
