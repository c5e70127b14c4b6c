package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var density = experiment.Experiment{
	Name:  "density",
	Short: "Find the largest number of pods per node that starts within the objective",
	Long: `Find the largest number of pods per node. The experiment starts --step pods per node, then
twice and three times as many, and so on, until pods miss the startup objective, operations fail,
or pods do not start in time. Each run starts with an empty cluster. The number of failed pods per
node is then subtracted from the number of pods per node of the last run, and another run confirms
the result. If that run fails, the number is reduced until a run succeeds.

The workloads are those of kube-burner. The workload "pods" creates single pods. An iteration of
cni consists of two Deployments of one pod each, with probes, and a Service for one of them. "heavy"
has the same objects as "cni", but its two Deployments are an application and its database. All objects are in one namespace unless
--namespaced-iterations is set.

Nodes are simulated: no probe runs, and no container needs memory. The result is therefore a limit
of the control plane. One limit of containers is checked as well: the total size of their environment variables, because
kubelet adds variables for every Service of the namespace. The experiment builds these variables
with kubelet's own code and starts a program with them.`,
	Example: `  k1m bench density
  k1m bench density --workload heavy --step 250 --most 2500 --nodes 4
  k1m bench density --workload cni --namespaced-iterations`,
	New: func() experiment.Options {
		o := &densityOptions{
			clusters: defaultClusters(experiment.ByScale(2, 1)), Workload: workloadPods,
			Step: experiment.ByScale(250, 25), Most: experiment.ByScale(1000, 75), Rate: 50, Limit: 5 * time.Second,
		}
		o.Stores, o.zeroNodes = []string{clusterdir.StoreMemEtcd}, true
		return o
	},
}

type densityOptions struct {
	clusters
	Workload   string
	Namespaced bool
	Step, Most experiment.Count
	Rate       float64
	Limit      time.Duration
}

// AddFlags binds the options to flags.
func (o *densityOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.StringVar(&o.Workload, "workload", o.Workload, "pods|cni|heavy")
	fs.BoolVar(&o.Namespaced, "namespaced-iterations", o.Namespaced,
		fmt.Sprintf("create a namespace for every %d iterations", iterationsPerNamespace))
	fs.Var(&o.Step, "step", o.Step.Usage("number of pods per node in the first step, and its increase per step"))
	fs.Var(&o.Most, "most", o.Most.Usage("largest number of pods per node to try"))
	fs.Float64Var(&o.Rate, "rate", o.Rate, "number of pods to create per second")
	fs.DurationVar(&o.Limit, "startup-limit", o.Limit,
		"maximum p99 startup latency of a run; a pod that takes longer counts as failed")
}

// Validate returns the first invalid option as a usage error.
func (o *densityOptions) Validate() error {
	if _, known := workloads[o.Workload]; !known {
		return usage.Errorf("--workload %q: no such workload; choose pods, cni or heavy", o.Workload)
	}
	if o.Namespaced && o.Workload == workloadPods {
		return usage.Errorf("--namespaced-iterations: the workload pods has no iterations; choose --workload cni or heavy")
	}
	if o.Step.N > 0 && o.Most.N > 0 && o.Step.N > o.Most.N {
		return usage.Errorf("--step %d: more than --most %d; choose fewer", o.Step.N, o.Most.N)
	}
	if err := positive("--rate", o.Rate); err != nil {
		return err
	}
	if err := positive("--startup-limit", o.Limit); err != nil {
		return err
	}
	return o.clusters.Validate()
}

// densityTables are the tables of the experiment.
type densityTables struct{ runs, found *experiment.Table }

// Run implements experiment.Options.
func (o *densityOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: density needs nodes with a very high pod capacity, so it cannot use an existing cluster; omit --name", run.Dir.Name())
	}
	tables := densityTables{
		runs: run.Result.Table("Runs", "store", "pods per node", "pods", "iterations", "failed", "start p50, s", "start p99, s",
			"Services per namespace", "environment, KiB", "CPU per pod: kube-apiserver, µs", "store, µs", "kube-controller-manager, µs", "limit exceeded"),
		found: run.Result.Table("Largest density within the objective", "store", "workload", "pods per node", "exceeded at", "limit exceeded", "confirmed by"),
	}
	if o.Workload != workloadPods {
		measureEnvironment(run.Result)
	}
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		shape := bulk.DefaultNodeShape()
		shape.CPU, shape.Memory, shape.Pods = "100k", "1Pi", o.Most.N+o.Step.N
		if _, err := t.createNodes(ctx, 0, o.Nodes.N, shape); err != nil {
			return err
		}
		if err := t.prepare(ctx); err != nil {
			return err
		}
		return o.search(ctx, t, tables)
	})
}

// search increases the density until a run exceeds a limit. It then estimates the largest density that
// stays within the limits, and confirms it with another run.
func (o *densityOptions) search(ctx context.Context, t *storeRun, tables densityTables) error {
	var failedRun outcome
	passed := 0
	for density := o.Step.N; ; density += o.Step.N {
		density = min(density, o.Most.N)
		result, err := o.runOnce(ctx, t, density, tables.runs)
		if err != nil {
			return err
		}
		if result.exceeded != "" {
			failedRun = result
			break
		}
		if passed = density; density == o.Most.N {
			tables.found.Add(t.store, o.Workload, passed, none, "no limit up to --most", none)
			t.figure("pods per node", "", float64(passed), true)
			return nil
		}
	}
	candidate := max(passed, failedRun.density-failedRun.failedPods/o.Nodes.N)
	if candidate == failedRun.density {
		candidate = passed // no pod failed
	}
	for candidate > 0 {
		result, err := o.runOnce(ctx, t, candidate, tables.runs)
		if err != nil {
			return err
		}
		if result.exceeded == "" {
			break
		}
		candidate = max(0, min(candidate-1, candidate/o.Step.N*o.Step.N, candidate-o.Step.N/2))
	}
	tables.found.Add(t.store, o.Workload, candidate, failedRun.density, failedRun.exceeded, "a second run")
	t.figure("pods per node", "", float64(candidate), true)
	return nil
}

// outcome is the result of one run.
type outcome struct {
	density    int // pods per node
	failedPods int
	exceeded   string // the exceeded limits, or "" if none was exceeded
}

// runOnce runs the workload once with this number of pods per node, and then removes the workload.
func (o *densityOptions) runOnce(ctx context.Context, t *storeRun, density int, table *experiment.Table) (outcome, error) {
	w := workloads[o.Workload]
	iterations := max(density*o.Nodes.N/w.pods, 1)
	pods := iterations * w.pods
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := t.watchAllPods(watching, o.Limit)
	window := t.Sampler.Begin(ctx)
	t.mark(fmt.Sprintf("%d pods per node", density), time.Now())
	load, err := o.create(ctx, t, w, iterations)
	if err != nil {
		return outcome{}, err
	}
	stalled := t.awaitRunning(ctx, s, pods)
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	m := window.End(ctx)
	startup, _ := s.measured()
	_, _, ran := s.counts()
	result := outcome{density: density, failedPods: pods - ran + s.late()}
	exceeded, services, environment := o.limitsExceeded(w, iterations, startup, load.Tally)
	if stalled != nil {
		exceeded = append(exceeded, fmt.Sprintf("timeout: %d of %d pods are running", ran, pods))
	}
	result.exceeded = strings.Join(exceeded, "; ")
	table.Add(t.store, density, pods, iterations, (result.failedPods+w.pods-1)/w.pods, startup.Seconds(50), startup.Seconds(99), services, float64(environment)/1024,
		m.MicrosPer(apiServer, pods), m.MicrosPer(component.Store, pods), m.MicrosPer(component.ControllerManager, pods), result.exceeded)
	o.plot(t, density, startup)
	return result, o.remove(ctx, t, s, iterations)
}

// limitsExceeded describes the limits that a run exceeded. It also returns the number of Services
// in a namespace, and the size of a container's environment in bytes.
func (o *densityOptions) limitsExceeded(
	w workload, iterations int, startup *experiment.Latencies, tally *experiment.Tally,
) (exceeded []string, services, environment int) {
	if w.services > 0 {
		var err error
		services = o.servicesOfNamespace(iterations)
		if environment, err = startWithServices(services); err != nil {
			exceeded = append(exceeded, fmt.Sprintf("a container with %d Services cannot start: %v", services, err))
		}
	}
	if p99 := startup.Seconds(99); p99 > o.Limit.Seconds() {
		exceeded = append(exceeded, fmt.Sprintf("startup p99 %s s", number.Text(p99)))
	}
	if tally.Rate() > experiment.DefaultMaxErrorRate {
		exceeded = append(exceeded, "errors: "+tally.Describe())
	}
	return exceeded, services, environment
}

// plot appends the startup latencies of a run to the chart.
func (o *densityOptions) plot(t *storeRun, density int, startup *experiment.Latencies) {
	for _, percentile := range []float64{50, 99, 100} {
		name := fmt.Sprintf("p%g", percentile)
		if percentile == 100 {
			name = "max"
		}
		t.Result.Line(experiment.Series{Plot: "pod startup by pods per node" + on(t.store), Name: name, X: "pods per node", Unit: "s", LogY: true}, float64(density), startup.Seconds(percentile))
	}
}
