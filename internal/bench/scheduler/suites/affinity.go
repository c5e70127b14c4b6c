// Package suites contains the scheduler experiments that run in the framework of package
// experiment: schedule-perf (scheduler_perf of Kubernetes), schedule-kinds (several kinds of pods
// and node counts) and schedule-affinity (anti-affinity in a cluster with missing nodes). The
// last two run schedulers with package inmemory.
package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/inmemory"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{scheduleKinds, scheduleAffinity, schedulePerf}
}

var scheduleAffinity = experiment.Experiment{
	Name:  "schedule-affinity",
	Short: "Schedule pods with anti-affinity into a cluster that has pods on deleted nodes",
	Long: `Schedule --pods pods with anti-affinity into a cluster that already has 34 pods per node. One in
	40 of the existing pods is terminating on a node that was deleted. eBay reported such a cluster
	with 5,000 nodes and 170,000 pods, in which scheduling started with one pod in seven minutes.
	Each scheduler runs in this process, without a real cluster. Latencies are those of scheduling
	cycles.`,
	Example: `  k1m bench schedule-affinity
  k1m bench schedule-affinity --nodes 5000 --pods 1000 --schedulers dist-scheduler`,
	New: func() experiment.Options {
		return &affinityOptions{
			Schedulers: []string{clusterdir.SchedulerDist, clusterdir.SchedulerKube},
			Nodes:      experiment.ByScale(5000, 100), Pods: experiment.ByScale(1000, 1000),
		}
	},
}

type affinityOptions struct {
	Schedulers  []string
	Nodes, Pods experiment.Count
}

// AddFlags binds the options to flags.
func (o *affinityOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Schedulers, "schedulers", o.Schedulers, "schedulers to measure, in this order")
	fs.Var(&o.Nodes, "nodes", o.Nodes.Usage("number of nodes"))
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods to schedule"))
}

// Validate returns the first invalid option as a usage error.
func (o *affinityOptions) Validate() error {
	return validateSchedulers(o.Schedulers)
}

// validateSchedulers returns a usage error for an invalid list of schedulers.
func validateSchedulers(names []string) error {
	for i, name := range names {
		if name != clusterdir.SchedulerDist && name != clusterdir.SchedulerKube {
			return usage.Errorf("--schedulers %q: no such scheduler; choose dist-scheduler, kube-scheduler or both",
				name)
		}
		if slices.Contains(names[:i], name) {
			return usage.Errorf("--schedulers %s: %s is given twice; list each once", strings.Join(names, ","), name)
		}
	}
	if len(names) == 0 {
		return usage.Errorf("--schedulers: the list is empty; choose dist-scheduler, kube-scheduler or both")
	}
	return nil
}

// Run implements experiment.Options.
func (o *affinityOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := run.Result.Table("Pods with anti-affinity", "scheduler", "nodes", "existing pods", "pods", "scheduled, /s", "total time, s",
		"cycle p50, ms", "p90, ms", "p99, ms", "CPU per pod, µs", "unschedulable", "checked decisions not among the best")
	figures := map[string][]experiment.Figure{}
	for _, name := range o.Schedulers {
		options := inmemory.DefaultOptions()
		options.Scheduler, options.Nodes, options.Pods, options.PodKind = name, o.Nodes.N, o.Pods.N, inmemory.VanishedNodes
		options.Complete()
		if err := options.Validate(); err != nil {
			return err
		}
		r, err := inmemory.Run(ctx, options, run.Display)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		run.Result.Errors.AddMany(int64(r.Decided), nil)
		ms := func(micros int64) float64 { return float64(micros) / 1000 }
		l := r.LatencyMicros
		table.Add(name, r.Nodes, r.Existing, r.Pods, r.PodsPerSecond, r.Seconds, ms(l.P50), ms(l.P90), ms(l.P99), r.CPUMicrosPerPod, r.Unschedulable, r.Deviations)
		for _, point := range []experiment.Point{{50, ms(l.P50)}, {90, ms(l.P90)}, {99, ms(l.P99)}, {99.9, ms(l.P999)}, {100, ms(l.Max)}} {
			run.Result.Line(experiment.Series{Plot: "scheduling cycle by percentile", Name: name, X: "percentile", Unit: "ms", LogY: true}, point[0], point[1])
		}
		figures[name] = []experiment.Figure{
			{Name: "pods scheduled", Unit: "/s", Value: r.PodsPerSecond, MoreIsBetter: true},
			{Name: "CPU per pod", Unit: "µs", Value: r.CPUMicrosPerPod},
		}
	}
	run.Result.Compare(clusterdir.SchedulerDist, clusterdir.SchedulerKube, figures[clusterdir.SchedulerDist], figures[clusterdir.SchedulerKube])
	return nil
}
