package simulate

import (
	"io"
	"slices"

	"github.com/spf13/cobra"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterflags"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Pending is the value of --pods that stands for the pending pods of the cluster.
const Pending = "pending"

// values are the values of the flags of the command.
type values struct {
	clusterflags.Flags
	pods, order string
	seed        uint64
}

// NewCommand returns the command simulate. plugins are the out-of-tree plugins.
func NewCommand[O ~func(frameworkruntime.Registry) error](plugins []O) *cobra.Command {
	v := &values{}
	cmd := &cobra.Command{
		Use:   "simulate --cluster SNAPSHOT --pods FILE",
		Short: "Show where pods would be placed in a snapshot of a cluster",
		Long: `Place pods one after the other in a snapshot of a cluster, in memory: where each pod goes, which pods do not fit
and why, which pods would be evicted, and how much is requested before and after.

Each decision is made by dist-scheduler and by kube-scheduler's plugins on all nodes, and compared. Both choose at
random between nodes with the same score; here --seed decides, so the same command has the same result. If a
decision differs, the deviation is printed and the exit code is 1. Nothing is written to any cluster.

The snapshot is the output of "kubectl get -o json" or "-o yaml", a snapshot of etcd or mem_etcd (etcdctl snapshot
save), or a snapshot of k1m. The file of pods may have pods, Deployments, ReplicaSets, StatefulSets, Jobs and
ReplicationControllers, whose pods are made, and other objects that these need, such as claims.

Pods that do not fit are tried again after others were placed. Evicted pods end at once. Volumes are reserved, but
not provisioned.`,
		Example: `  # Would this Deployment fit?
  kubectl get ` + clusterfile.Resources() + ` -A -o json >cluster.json
  dist-scheduler simulate --cluster cluster.json --pods deployment.yaml

  # The same for a snapshot of the store
  etcdctl snapshot save cluster.snapshot
  dist-scheduler simulate --cluster cluster.snapshot --pods deployment.yaml

  # Where would the pending pods go with another configuration?
  dist-scheduler simulate --cluster cluster.json --pods pending --scheduler-config scheduler.yaml -o json`,
	}
	cmd.Flags().StringVar(&v.pods, "pods", "", "`FILE` with pods or workloads; \"-\" is standard input; \"pending\" are the pending pods of the cluster (required)")
	cmd.Flags().Uint64Var(&v.seed, "seed", 1, "`NUMBER` that decides between nodes with equal scores")
	cmd.Flags().StringVar(&v.order, "order", ByQueue, "`ORDER` of the pods: queue (by priority, then as in the file) or file")
	v.Add(cmd, "scheduler-config")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := v.validate(); err != nil {
			return err
		}
		registry, err := clusterflags.Registry(plugins)
		if err != nil {
			return err
		}
		return v.run(cmd, registry)
	}
	return clusterflags.Prepare(cmd)
}

func (v *values) validate() error {
	switch {
	case len(v.Cluster) == 0:
		return usage.Errorf("--cluster is missing; name a snapshot of the cluster, for example the output of `kubectl get -o json`; see `dist-scheduler simulate --help`")
	case v.pods == "":
		return usage.Errorf("--pods is missing; name a file with pods, or \"pending\" for the pending pods of the cluster")
	case v.pods == clusterfile.Stdin && slices.Contains(v.Cluster, clusterfile.Stdin):
		return usage.Errorf("--cluster and --pods cannot both be standard input; use a file for one of them")
	case v.order != ByQueue && v.order != ByFile:
		return usage.Errorf("--order %q: choose queue or file", v.order)
	}
	return v.Validate()
}

// run reads the files, simulates and prints the report.
func (v *values) run(cmd *cobra.Command, plugins frameworkruntime.Registry) error {
	cfg, err := v.LoadConfig()
	if err != nil {
		return err
	}
	objects, notes, err := v.LoadCluster(cmd.Context(), cfg, cmd.InOrStdin())
	if err != nil {
		return err
	}
	o := Options{Objects: objects, Config: cfg, Plugins: plugins, Seed: v.seed, Order: v.order}
	if v.pods != Pending {
		pods, err := clusterfile.LoadPods(v.pods, cmd.InOrStdin(), objects)
		if err != nil {
			return err
		}
		o.Pods, notes = pods.List, append(notes, pods.Notes...)
	}
	report, err := Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	report.Notes = append(notes, report.Notes...)
	if err := v.Print(cmd.OutOrStdout(), report, func(w io.Writer) error { return report.Print(w) }); err != nil {
		return err
	}
	if len(report.Deviations) > 0 {
		return clusterflags.ErrDeviation
	}
	return nil
}
