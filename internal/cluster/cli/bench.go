package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newBench(name *string, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure control planes, stores and schedulers",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, e := range experiments() {
		cmd.AddCommand(newExperiment(e, name, version))
	}
	for _, b := range append(customBenchmarks(version), newBenchAll(version)) {
		cmd.AddCommand(b.command(name))
	}
	cmd.AddCommand(newBenchList(cmd), newBenchRender(), newBenchGatewayFlood())
	return cmd
}

// customBenchmarks returns the benchmarks that do not run in the framework of package experiment. Their
// results have their own formats.
func customBenchmarks(version string) []benchmark {
	return []benchmark{
		newBenchMillion().withOutFlag(version), newBenchSchedule().withOutFlag(version), newBenchIntake().withOutFlag(version),
		newBenchReplicaSimulation().withOutFlag(version), newBenchProxyTrace(),
	}
}

// newBenchList returns the command that lists the subcommands of parent that are experiments.
func newBenchList(parent *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the experiments",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			for _, e := range parent.Commands() {
				if e.Annotations[experimentAnnotation] != "" {
					fmt.Fprintf(table, "%s\t%s\n", e.Name(), e.Short)
				}
			}
			return table.Flush()
		},
	}
}

// experimentAnnotation marks the commands that newBenchList lists.
const experimentAnnotation = "experiment"
