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
	nodes, machines, output, costsFile := plan.DefaultCluster(), plan.DefaultMachines(), outputTable, ""
	prices := newPriceFlags()
	calibrate, scale := false, experiment.DefaultRequest().Scale
	cmd := &cobra.Command{
		Use:   "plan --nodes N",
		Short: "Estimate the resources that a cluster of a given size needs",
		Long: `Estimate the resources that a cluster of a given size needs: CPU, memory, disk and network of
the store, number and size of API servers, number of scheduler replicas, watches and connections.
The plan also lists the maximum number of nodes that each resource allows, and the changes that double
the lowest of these limits.

The estimate multiplies rates of operations by measured costs. The first line of the plan names
the machine on which the costs were measured. --calibrate measures them on this machine, in a
temporary cluster, and writes them to the file --costs; this takes about 13 minutes. docs/plan.md
describes the model and its accuracy.

--prices computes the price of the cluster: it chooses the cheapest machines of a price list that are
sufficient, and prints the bill by component and what more money would buy. deploy/prices has dated examples.`,
		Example: `  # Plan a cluster of a million nodes
  k1m plan --nodes 1000000 --pods-per-node 30 --lease-interval 10s --watches-per-node 18

  # Plan a cluster on given machines
  k1m plan --nodes 20000 --apiserver-cores 8 --apiserver-memory 32 --store-cores 4 --store-memory 16

  # Plan without a watch cache for Leases, as JSON
  k1m plan --nodes 1000000 --lease-cache=false -o json

  # Compute the price of a cluster, as a page with the bill by component
  k1m plan --nodes 100000 --gateway --prices deploy/prices/google-cloud.yaml -o html > price.html

  # Measure the costs on this machine and use them
  k1m plan --calibrate --costs here.json && k1m plan --nodes 50000 --costs here.json`,
		Args: usageArgs(cobra.NoArgs),
	}
	nodes.AddFlags(cmd.Flags())
	machines.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&costsFile, "costs", "", "file with measured costs (default: built-in costs)")
	cmd.Flags().BoolVar(&calibrate, "calibrate", calibrate, "measure the costs on this machine and write them to --costs (default costs.json)")
	cmd.Flags().StringVar(&scale, "scale", scale, "size of the measurement of --calibrate: small|medium|large or a factor")
	prices.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", output, "output format: table|json|yaml|html (html needs --prices)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(prices.validate(cmd.Flags(), output), nodes.Validate(), machines.Validate()); err != nil {
			return err
		}
		if cmd.Flag("scale").Changed && !calibrate {
			return usage.Errorf("--scale needs --calibrate; add it or omit --scale")
		}
		costs, err := plan.DefaultCosts(), error(nil)
		switch {
		case calibrate:
			if costsFile == "" {
				costsFile = "costs.json"
			}
			costs, err = measureCosts(cmd, *name, scale, costsFile)
		case costsFile != "":
			costs, err = plan.ReadCosts(costsFile)
		}
		if err != nil {
			return err
		}
		return prices.print(cmd, output, nodes, machines, costs)
	}
	return cmd
}

// measureCosts measures the costs on this machine and writes them to a file.
func measureCosts(cmd *cobra.Command, name, scale, file string) (plan.Costs, error) {
	if !cmd.Flag("name").Changed {
		name = experiment.DefaultCluster
	}
	dir, err := clusterDir(name)
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
