package cli

import (
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/controlplane"
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/gateway"
	"github.com/k8s-1m/k8s-1m/internal/bench/ladder"
	"github.com/k8s-1m/k8s-1m/internal/bench/network"
	"github.com/k8s-1m/k8s-1m/internal/bench/nodesim"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/suites"
	"github.com/k8s-1m/k8s-1m/internal/bench/store"
	"github.com/k8s-1m/k8s-1m/internal/bench/storecluster"
)

// experiments returns the experiments that run in the framework of package experiment.
func experiments() []experiment.Experiment {
	return slices.Concat(controlplane.Experiments(), gateway.Experiments(), ladder.Experiments(), network.Experiments(), nodesim.Experiments(), store.Experiments(), storecluster.Experiments(), suites.Experiments())
}

// newExperiment returns the subcommand that runs an experiment.
func newExperiment(e experiment.Experiment, name *string, version string) *cobra.Command {
	options, request := e.New(), experiment.DefaultRequest()
	own := pflag.NewFlagSet(e.Name, pflag.ContinueOnError)
	options.AddFlags(own)
	return benchmark{
		use: e.Name, short: e.Short, long: e.Long, example: e.Example,
		addFlags: func(fs *pflag.FlagSet) {
			fs.AddFlagSet(own)
			request.AddFlags(fs)
		},
		validate: func() error {
			if err := request.Validate(); err != nil {
				return err
			}
			return options.Validate()
		},
		run: func(r benchRun) (benchResult, error) {
			request.Dir, request.Named, request.Version, request.Command = r.dir, r.named, version, os.Args[1:]
			result, err := experiment.Execute(r.cmd.Context(), e, options, own, request, r.display)
			if result == nil {
				return nil, err
			}
			return result, err
		},
	}.command(name)
}
