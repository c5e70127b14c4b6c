package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/clusterbench"
	"github.com/k8s-1m/k8s-1m/internal/progress"
)

func newBenchIntake(name *string) *cobra.Command {
	options, output := clusterbench.DefaultIntakeOptions(), outputText
	cmd := &cobra.Command{
		Use:   "watch-or-webhook --rates R,R,…",
		Short: "Measure how soon dist-scheduler sees pods, by a watch and by a webhook",
		Long: `Measure how soon dist-scheduler sees pods: pods are created at rising rates, until the
API server takes fewer than are to come, in a cluster whose scheduler has a watch, and
again in one whose scheduler has a webhook beside it. Pods are bound and run, as in any
cluster.

The time is from when the request to create a pod is sent until the pod is in the
scheduler's queue, which its log says; both clocks are that of this machine. The
cluster, called "` + clusterbench.DefaultCluster + `" unless --name says otherwise, is removed at the end. The
command fails if a pod was never seen.`,
		Example: `  k1m bench watch-or-webhook
  k1m bench watch-or-webhook --rates 50,100,200,400 --duration 20s -o json
  k1m bench watch-or-webhook --intakes webhook,watch --nodes 2000`,
		Args: usageArgs(cobra.NoArgs),
	}
	options.AddFlags(cmd.Flags())
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), options.Validate()); err != nil {
			return err
		}
		if !cmd.Flag("name").Changed {
			*name = clusterbench.DefaultCluster
		}
		dir, err := dirOf(*name)
		if err != nil {
			return err
		}
		display := progress.New(cmd.ErrOrStderr())
		result, err := clusterbench.RunIntake(cmd.Context(), dir, options, display)
		display.Close()
		if err != nil && len(result.Intakes) == 0 {
			return err
		}
		if err == nil {
			err = result.Err()
		}
		return errors.Join(printAs(cmd, output, result, result.Print), err)
	}
	return cmd
}
