package controlplane

import (
	"context"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

var nodesAndPods = experiment.Experiment{
	Name:  "nodes-and-pods",
	Short: "Create nodes and then pods as fast as possible, and sample every component",
	Long: `Create --nodes nodes and then --pods pods as fast as the API server accepts them, and wait
until all pods run. Every second the CPU usage, the memory and the metrics of each component are
sampled. Markers in the charts show when the first pod was created and when the last pod was
scheduled. Each store is measured in a new cluster.`,
	Example: `  k1m bench nodes-and-pods
  k1m bench nodes-and-pods --nodes 10000 --pods 20000 --stores mem_etcd
  k1m bench nodes-and-pods --name mine --pods 1000`,
	New: func() experiment.Options {
		o := &nodesAndPodsOptions{clusters: defaultClusters(experiment.ByScale(2000, 20)), Pods: experiment.ByScale(4000, 1500)}
		o.zeroNodes = true
		return o
	},
}

type nodesAndPodsOptions struct {
	clusters
	Pods experiment.Count
}

// AddFlags binds the options to flags.
func (o *nodesAndPodsOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods to create"))
}

// Validate returns the first invalid option as a usage error.
func (o *nodesAndPodsOptions) Validate() error {
	if err := o.fit(o.Pods); err != nil {
		return err
	}
	return o.clusters.Validate()
}

// Run implements experiment.Options.
func (o *nodesAndPodsOptions) Run(ctx context.Context, run *experiment.Run) error {
	nodes := run.Result.Table("Nodes", "store", "nodes", "created, /s", "p99, ms",
		"CPU per node: kube-apiserver, µs", "store, µs", "node simulator, µs", "memory: kube-apiserver, MiB", "store, MiB")
	pods := run.Result.Table("Pods", "store", "pods", "created, /s", "running, /s", "start p50, s", "start p99, s",
		"CPU per pod: kube-apiserver, µs", "scheduler, µs", "store, µs", "kube-controller-manager, µs", "node simulator, µs",
		"memory: kube-apiserver, MiB", "store, MiB")
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if t.Own() {
			if err := o.makeNodes(ctx, t, nodes); err != nil {
				return err
			}
		}
		return o.makePods(ctx, t, pods)
	})
}

func (o *nodesAndPodsOptions) makeNodes(ctx context.Context, t *storeRun, table *experiment.Table) error {
	window := t.Sampler.Begin(ctx)
	made, err := t.createNodes(ctx, 0, o.Nodes.N, bulk.DefaultNodeShape())
	m := window.End(ctx)
	if err != nil {
		return err
	}
	table.Add(t.store, made.Done, made.PerSecond, made.P99Millis,
		m.MicrosPer(apiServer, made.Done), m.MicrosPer(component.Store, made.Done), m.MicrosPer(t.simulator(), made.Done),
		float64(m.Peak[apiServer])/mebibyte, float64(m.Peak[component.Store])/mebibyte)
	t.figure("nodes created", "/s", made.PerSecond, true)
	return nil
}

func (o *nodesAndPodsOptions) makePods(ctx context.Context, t *storeRun, table *experiment.Table) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := t.watchPods(watching, bulk.PodPrefix)
	window := t.Sampler.Begin(ctx)
	begun := time.Now()
	t.mark("first pod created", begun)
	created, err := t.createPods(ctx, s, bulk.PodPrefix, o.Pods.N, 64, 0)
	if err != nil {
		return err
	}
	creating := time.Since(begun)
	wanted := int(created.Latencies.Count())
	if err := t.awaitRunning(ctx, s, wanted); err != nil {
		return err
	}
	m := window.End(ctx)
	t.mark("last pod scheduled", s.lastBound)
	sinceCreation, _ := s.measured()
	perSecond := float64(wanted) / s.lastRun.Sub(begun).Seconds()
	table.Add(append([]any{t.store, wanted, float64(wanted) / creating.Seconds(), perSecond, sinceCreation.Seconds(50), sinceCreation.Seconds(99)},
		t.podCosts(m, wanted)...)...)
	t.Result.CallTable("API calls during pod creation"+on(t.store), m.Calls)
	t.judge(append(experiment.JudgeCalls(m.Calls), experiment.JudgeStartup(sinceCreation))...)
	t.figure("pods running", "/s", perSecond, true)
	t.figure("store's CPU per pod", "µs", m.MicrosPer(component.Store, wanted), false)
	t.figure("kube-apiserver's CPU per pod", "µs", m.MicrosPer(apiServer, wanted), false)
	t.figure("store's memory", "MiB", float64(m.Peak[component.Store])/mebibyte, false)
	return nil
}
