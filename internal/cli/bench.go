package cli

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/progress"
	"github.com/k8s-1m/k8s-1m/internal/schedbench"
	"github.com/k8s-1m/k8s-1m/internal/usage"
)

func newBench(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure schedulers, and simulate them",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchMillion(), newBenchSchedule(name), newBenchIntake(name), newBenchShards(), newBenchProxyTrace(name))
	return cmd
}

func newBenchMillion() *cobra.Command {
	options, output := schedbench.DefaultOptions(), outputText
	cmd := &cobra.Command{
		Use:   "schedule-million --nodes N --pods P",
		Short: "Measure a scheduler alone, in memory, and check its decisions",
		Long: `Measure a scheduler alone: it runs in this process, without a cluster, nodes and
pods are handed to it in memory, and binds only report back, so that its own cost
shows. Loading the nodes is not part of what is measured.

Some of the decisions are then held against what kube-scheduler's plugins say when
every node is filtered and scored. The command fails if one deviates, or if a node
has more pods than it can take.`,
		Example: `  k1m bench schedule-million --nodes 1000000 --pods 1000000
  k1m bench schedule-million --nodes 5000 --pods 2000 --scheduler kube-scheduler -o json
  k1m bench schedule-million --nodes 1000 --pods 2000 --pod-kind mixed --check 1.0`,
		Args: usageArgs(cobra.NoArgs),
	}
	options.AddFlags(cmd.Flags())
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options.Complete()
		if err := errors.Join(validateOutput(output), options.Validate()); err != nil {
			return err
		}
		display := progress.New(cmd.ErrOrStderr())
		result, err := schedbench.Run(cmd.Context(), options, display)
		display.Close()
		if err != nil && result.Decided == 0 {
			return err
		}
		if err == nil {
			err = result.Err()
		}
		return errors.Join(printAs(cmd, output, result, result.Print), err)
	}
	return cmd
}

const (
	outputText = "text"
	outputJSON = "json"
)

func addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", *output, "text, or json for programs that read")
}

func validateOutput(output string) error {
	if output != outputText && output != outputJSON {
		return usage.Errorf("-o %q: no such format; choose text or json", output)
	}
	return nil
}

func printAs(cmd *cobra.Command, output string, result any, print func(io.Writer)) error {
	if output == outputJSON {
		return printJSON(cmd, result)
	}
	print(cmd.OutOrStdout())
	return nil
}
