package explain

import (
	"io"

	"github.com/spf13/cobra"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterflags"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// NewCommand returns the command explain. plugins are the out-of-tree plugins.
func NewCommand[O ~func(frameworkruntime.Registry) error](plugins []O) *cobra.Command {
	flags, pod, node := &clusterflags.Flags{}, "", ""
	cmd := &cobra.Command{
		Use:   "explain --pod FILE|NAMESPACE/NAME [--node NAME]",
		Short: "Explain why a pod is placed on a node, and why not on another one",
		Long: `Explain where dist-scheduler would place a pod now: which nodes the filters reject and why, the raw and
normalized score of each plugin for each node that fits, and whether the index or the full scan decides.

The same decision is made with kube-scheduler's plugins on all nodes. If dist-scheduler deviates from it, the
deviations are printed and the exit code is 1.

The cluster is read from the API (only lists; nothing is written), or with --cluster from files: the output of
"kubectl get -o json" or "-o yaml", a snapshot of etcd or mem_etcd (etcdctl snapshot save), or a snapshot of k1m.
A pod that is bound is explained as if it were not, and all other pods stay where they are.`,
		Example: `  # Why is this pod on its node, or why is it pending?
  dist-scheduler explain --pod default/web-0

  # Why not on node-7?
  dist-scheduler explain --pod default/web-0 --node node-7

  # A pod that does not exist yet, with the configuration of the scheduler
  dist-scheduler explain --pod pod.yaml --config scheduler.yaml

  # Without access to the cluster
  kubectl get ` + clusterfile.Resources() + ` -A -o json >cluster.json
  dist-scheduler explain --pod default/web-0 --cluster cluster.json -o json`,
	}
	cmd.Flags().StringVar(&pod, "pod", "", "`POD` of the cluster, as NAMESPACE/NAME or NAME, or a file with a pod; \"-\" is standard input (required)")
	cmd.Flags().StringVar(&node, "node", "", "`NAME` of a node for which to say why it was chosen, or all reasons why not")
	flags.Add(cmd, "config")
	flags.AddLive(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if pod == "" {
			return usage.Errorf("--pod is missing; name a pod of the cluster (NAMESPACE/NAME), or a file with a pod; see `dist-scheduler explain --help`")
		}
		if err := flags.Validate(); err != nil {
			return err
		}
		registry, err := clusterflags.Registry(plugins)
		if err != nil {
			return err
		}
		return run(cmd, flags, Options{Pod: pod, Node: node, Plugins: registry, Stdin: cmd.InOrStdin()})
	}
	return clusterflags.Prepare(cmd)
}

// run reads the cluster, explains the pod and prints the result.
func run(cmd *cobra.Command, flags *clusterflags.Flags, o Options) (err error) {
	if o.Config, err = flags.LoadConfig(); err != nil {
		return err
	}
	var notes []string
	if o.Objects, notes, err = flags.LoadCluster(cmd.Context(), o.Config, o.Stdin); err != nil {
		return err
	}
	e, err := Explain(cmd.Context(), o)
	if err != nil {
		return err
	}
	e.Notes = append(notes, e.Notes...)
	if err := flags.Print(cmd.OutOrStdout(), e, func(w io.Writer) error { return e.Print(w) }); err != nil {
		return err
	}
	if len(e.Deviations) > 0 {
		return clusterflags.ErrDeviation
	}
	return nil
}
