package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/controlplane"
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newPlan(name *string) *cobra.Command {
	nodes, machines, output, costsFile := plan.DefaultCluster(), plan.DefaultMachines(), outputText, ""
	calibrate, scale := false, experiment.DefaultRequest().Scale
	cmd := &cobra.Command{
		Use:   "plan --nodes N",
		Short: "Say what a cluster of some size needs, what binds first, and how to double it",
		Long: `Say what a cluster of some size needs: CPU, memory, disk and network of the store, the
number and size of API servers, replicas of the scheduler, watches and connections. Which
resource binds first, how many nodes each allows, and what to change for twice as many.

It is arithmetic: how often things happen, times what one costs. The first line says where
the costs were measured; --calibrate measures them here, in a cluster that it makes and
removes (some thirteen minutes), and writes them to --costs for the next time. The model, and
how it compares with what was measured elsewhere, is in docs/plan.md.`,
		Example: `  k1m plan --nodes 1000000 --pods-per-node 30 --lease-interval 10s --watches-per-node 18
  k1m plan --nodes 20000 --apiserver-cores 8 --apiserver-memory 32 --store-cores 4 --store-memory 16
  k1m plan --nodes 1000000 --lease-cache=false -o json
  k1m plan --calibrate --costs here.json && k1m plan --nodes 50000 --costs here.json`,
		Args: usageArgs(cobra.NoArgs),
	}
	nodes.AddFlags(cmd.Flags())
	machines.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&costsFile, "costs", "", "file with costs that were measured before (default: those that come with k1m)")
	cmd.Flags().BoolVar(&calibrate, "calibrate", calibrate, "measure the costs here, and write them to --costs (default costs.json)")
	cmd.Flags().StringVar(&scale, "scale", scale, "with --calibrate: small|medium|large or a factor, how much is measured")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), nodes.Validate(), machines.Validate()); err != nil {
			return err
		}
		if cmd.Flag("scale").Changed && !calibrate {
			return usage.Errorf("--scale is of --calibrate, which is not given")
		}
		costs, err := plan.DefaultCosts(), error(nil)
		switch {
		case calibrate:
			if costsFile == "" {
				costsFile = "costs.json"
			}
			costs, err = measuredCosts(cmd, *name, scale, costsFile)
		case costsFile != "":
			costs, err = plan.ReadCosts(costsFile)
		}
		if err != nil {
			return err
		}
		p := plan.Make(nodes, machines, costs)
		return printAs(cmd, output, p, p.Print)
	}
	return cmd
}

// measuredCosts measures costs, and writes them to a file.
func measuredCosts(cmd *cobra.Command, name, scale, file string) (plan.Costs, error) {
	if !cmd.Flag("name").Changed {
		name = experiment.DefaultCluster
	}
	dir, err := dirOf(name)
	if err != nil {
		return plan.Costs{}, err
	}
	out, err := os.MkdirTemp("", "k1m-plan-")
	if err != nil {
		return plan.Costs{}, err
	}
	defer os.RemoveAll(out)
	request := experiment.DefaultRequest()
	request.Scale, request.Out, request.Dir, request.Version = scale, out, dir, cmd.Root().Version
	options := controlplane.NewCalibration()
	flags := pflag.NewFlagSet("calibration", pflag.ContinueOnError)
	options.AddFlags(flags)
	display := progress.New(cmd.ErrOrStderr())
	_, err = experiment.Execute(cmd.Context(), controlplane.Calibration, options, flags, request, display)
	display.Close()
	if err != nil {
		return plan.Costs{}, fmt.Errorf("measuring costs: %w", err)
	}
	return options.Costs, options.Costs.Write(file)
}
