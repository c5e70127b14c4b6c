package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/progress"
	"github.com/k8s-1m/k8s-1m/internal/proxytrace"
)

func newBenchProxyTrace(name *string) *cobra.Command {
	options, output := proxytrace.DefaultOptions(), outputText
	cmd := &cobra.Command{
		Use:   "proxy-trace",
		Short: "Record what a cluster asks of its store in the course of its life",
		Long: `Record what a cluster asks of its store in the course of its life: a control plane
with etcd-proxy before its store is made, nodes come, a Deployment is rolled out,
scaled and replaced, Jobs, custom resources and namespaces come and go, and all of it
is reported: which shapes requests have, and which are not one of the five that
Kubernetes is said to use (create, update and delete of what has not changed, get of
a key, list of a prefix).

The cluster, called "` + proxytrace.DefaultCluster + `" unless --name says otherwise, is removed at the end.`,
		Example: `  k1m bench proxy-trace
  k1m bench proxy-trace --nodes 1000 --replicas 1000 --store etcd --out /tmp/report
  k1m bench proxy-trace --recording life.jsonl.zst`,
		Args: usageArgs(cobra.NoArgs),
	}
	options.AddFlags(cmd.Flags())
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), options.Validate()); err != nil {
			return err
		}
		if !cmd.Flag("name").Changed {
			*name = proxytrace.DefaultCluster
		}
		dir, err := dirOf(*name)
		if err != nil {
			return err
		}
		display := progress.New(cmd.ErrOrStderr())
		result, err := proxytrace.Run(cmd.Context(), dir, options, display)
		display.Close()
		if err != nil {
			return err
		}
		return errors.Join(printAs(cmd, output, result, result.Print), result.Err())
	}
	return cmd
}
