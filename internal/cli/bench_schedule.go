package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/clusterbench"
	"github.com/k8s-1m/k8s-1m/internal/progress"
)

func newBenchSchedule(name *string) *cobra.Command {
	options, output := clusterbench.DefaultOptions(), outputText
	cmd := &cobra.Command{
		Use:   "schedule --nodes N --pods P",
		Short: "Measure schedulers one after the other in a real cluster",
		Long: `Measure schedulers one after the other in a real cluster: a control plane with
simulated nodes, made anew for each of them, with the same nodes and the same pods.
Pods are created as fast as the API server takes them, which bounds how fast they
can be bound; CPU a pod says what the scheduler costs, with all of its replicas.

The cluster, called "` + clusterbench.DefaultCluster + `" unless --name says otherwise, is removed at the end. The
command fails if a node has more pods than it can take, or a pod found none.`,
		Example: `  k1m bench schedule --nodes 5000 --pods 10000
  k1m bench schedule --nodes 1000 --pods 2000 --schedulers dist-scheduler -o json
  k1m bench schedule --nodes 5000 --pods 5000 --schedulers dist-scheduler --scheduler-replicas 1,2,4
  k1m bench schedule --nodes 1000 --pods 2000 --template pod.yaml --keep`,
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
		result, err := clusterbench.Run(cmd.Context(), dir, options, display)
		display.Close()
		if err != nil && len(result.Schedulers) == 0 {
			return err
		}
		if err == nil {
			err = result.Err()
		}
		return errors.Join(printAs(cmd, output, result, result.Print), err)
	}
	return cmd
}
