package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// heapPercent is the share of the machine's memory up to which the heaps of all API servers together grow as usual.
// Beyond it, Go collects garbage more often.
const heapPercent = 50

var tessIO = experiment.Experiment{
	Name:  "tess-io",
	Short: "Repeat the load tests that eBay has published of Tess.IO: 5,000 nodes, 150,000 pods, five API servers",
	Long: `Repeat the load tests of "Scalability Tuning on a Tess.IO Cluster" in one cluster with --nodes nodes of
node-sim, --pods pods and --apiservers API servers, one after the other (--only selects some):

  parallel  create and delete 10, 100, … --parallel pods concurrently, as in pods-parallel
  watchers  update pods while 0, 10, … --watchers clients watch all pods, as in watchers
  lists     update pods while other clients list all pods 0, 6, … --lists times per minute, as in lists
  restart   kill all API servers, so that all nodes and --clients other clients connect and list again, as in
            restart

The pods that fill the cluster are created with a node, so no scheduler works on them; all others are
scheduled. kube-gateway runs in front of the API servers: it writes renewals of Leases into the store, and
limits lists of the measured clients (--gateway=false for a cluster without it). The result has the published
figures beside those of the run.

150,000 pods on five API servers need about 20 GiB. With a scale below medium there are so many fewer nodes,
pods and clients.`,
	Example: `  k1m bench tess-io
  k1m bench tess-io --apiservers 2 --stores mem_etcd,etcd
  k1m bench tess-io --scale 0.1`,
	New: func() experiment.Options {
		o := &tessOptions{
			underUpdates: newUnderUpdates(), servers: servers{APIServers: 5, Gateway: true}, Only: tessParts,
			Parallel: experiment.ByScale(1000, 20), Watchers: experiment.ByScale(1000, 20), Lists: experiment.ByScale(60, 6),
			Clients: experiment.ByScale(5000, 20), Repeat: 3,
		}
		o.clusters = defaultClusters(experiment.ByScale(5000, 50))
		o.Stores, o.NodeSimulator, o.changeSettings = []string{clusterdir.StoreMemEtcd}, clusterdir.SimulatorNodeSim, o.apply
		o.Pods = experiment.ByScale(150_000, 300)
		return o
	},
}

// The parts of the experiment.
const (
	tessParallel = "parallel"
	tessWatchers = "watchers"
	tessLists    = "lists"
	tessRestart  = "restart"
)

// tessParts are the parts in the order in which they run.
var tessParts = []string{tessParallel, tessWatchers, tessLists, tessRestart}

type tessOptions struct {
	underUpdates
	servers
	Only                               []string
	Parallel, Watchers, Lists, Clients experiment.Count
	Repeat                             int
}

// AddFlags binds the options to flags.
func (o *tessOptions) AddFlags(fs *pflag.FlagSet) {
	o.underUpdates.AddFlags(fs)
	o.servers.AddFlags(fs)
	fs.StringSliceVar(&o.Only, "only", o.Only, "parts to measure: "+strings.Join(tessParts, ", "))
	fs.Var(&o.Parallel, "parallel", o.Parallel.Usage("part parallel: largest number of concurrent calls"))
	fs.IntVar(&o.Repeat, "repeat", o.Repeat, "part parallel: number of repetitions of each step")
	fs.Var(&o.Watchers, "watchers", o.Watchers.Usage("part watchers: largest number of watching clients"))
	fs.Var(&o.Lists, "lists", o.Lists.Usage("part lists: largest number of lists per minute"))
	fs.Var(&o.Clients, "clients", o.Clients.Usage("part restart: number of watching clients, each with its own connection"))
}

// Validate returns the first invalid option as a usage error.
func (o *tessOptions) Validate() error {
	for _, name := range o.Only {
		if !slices.Contains(tessParts, name) {
			return usage.Errorf("--only %q: no such part; choose some of %s", name, strings.Join(tessParts, ", "))
		}
	}
	if len(o.Only) == 0 {
		return usage.Errorf("--only: the list is empty; choose some of %s", strings.Join(tessParts, ", "))
	}
	parallel := o.parallel()
	return errors.Join(o.servers.Validate(), parallel.Validate(), o.underUpdates.Validate())
}

// apply changes the settings of a cluster.
func (o *tessOptions) apply(settings *clusterdir.Settings) {
	o.servers.apply(settings)
	if o.Gateway {
		settings.GatewayArgs = append(settings.GatewayArgs, "node-path-leases=on")
	}
	if memory := machine.This().MemoryBytes; memory > 0 {
		limit := memory / 100 * heapPercent / uint64(max(o.APIServers, 1)) / mebibyte
		settings.APIServerEnv = append(settings.APIServerEnv, fmt.Sprintf("GOMEMLIMIT=%dMiB", limit))
	}
}

// parallel returns the options of the part parallel.
func (o *tessOptions) parallel() podsParallelOptions {
	return podsParallelOptions{clusters: o.clusters, Parallel: o.Parallel, Repeat: o.Repeat}
}

// tessTables are the tables of the parts. Those that are not measured stay empty.
type tessTables struct{ fill, parallel, watchers, lists, restart, gateways, published *experiment.Table }

// Run implements experiment.Options.
func (o *tessOptions) Run(ctx context.Context, run *experiment.Run) error {
	r := run.Result
	tables := tessTables{
		fill: r.Table("Filling the cluster", "store", "nodes", "pods", "API servers", "pods created and running, /s",
			"memory: kube-apiserver, MiB", "kube-controller-manager, MiB", "store, MiB", "node simulator, MiB"),
		parallel: parallelTable(r), watchers: watchersTable(r), lists: listsTable(r), restart: restartTable(r), gateways: o.gatewayTable(r),
		published: r.Table("Published by eBay (2018: Kubernetes 1.9 and etcd on five masters), and this run", "store", "what", "published", "this run"),
	}
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := o.fill(ctx, t, tables.fill); err != nil {
			return err
		}
		defer o.publish(t, tables)
		return o.measure(ctx, t, tables)
	})
}

// fill prepares the cluster and fills it with pods that have a node.
func (o *tessOptions) fill(ctx context.Context, t *storeRun, table *experiment.Table) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	nodes, err := t.nodes(ctx, o.Nodes.N)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := t.fillBound(ctx, 0, o.Pods.N, nodes); err != nil {
		return err
	}
	seconds := time.Since(begun).Seconds()
	if err := t.AwaitQuiet(ctx); err != nil {
		return err
	}
	usage := t.Sampler.Usage()
	mib := func(role string) float64 { return float64(usage[role].Resident) / mebibyte }
	table.Add(t.store, nodes, o.Pods.N, t.Config.Settings.APIServers, float64(o.Pods.N)/seconds,
		mib(apiServer), mib(component.ControllerManager), mib(component.Store), mib(t.simulator()))
	return nil
}

// measure measures the selected parts.
func (o *tessOptions) measure(ctx context.Context, t *storeRun, tables tessTables) error {
	parallel := o.parallel()
	watchers := watchersOptions{underUpdates: o.underUpdates, Watchers: o.Watchers}
	lists := listsOptions{underUpdates: o.underUpdates, servers: o.servers, Lists: o.Lists}
	restart := restartOptions{clusters: o.clusters, servers: o.servers, Pods: o.Pods, Clients: o.Clients}
	const firstLists = 6 // per minute; a list of 150,000 pods takes kube-apiserver more than ten seconds of CPU
	for _, part := range []struct {
		name    string
		measure func() error
	}{
		{tessParallel, func() error { return parallel.measure(ctx, t, tables.parallel) }},
		{tessWatchers, func() error { return watchers.measure(ctx, t, tables.watchers) }},
		{tessLists, func() error { return lists.measure(ctx, t, firstLists, tables.lists, tables.gateways) }},
		{tessRestart, func() error { return restart.measureRestart(ctx, t, tables.restart, tables.gateways) }},
	} {
		if !slices.Contains(o.Only, part.name) {
			continue
		}
		if err := part.measure(); err != nil {
			return fmt.Errorf("part %s: %w", part.name, err)
		}
	}
	return nil
}

// publish adds the published figures, with those of the last row of each part that was measured on this store.
func (o *tessOptions) publish(t *storeRun, tables tessTables) {
	add := func(table *experiment.Table, what, published, format string, columns ...string) {
		if values, found := table.Last(t.store, columns...); found {
			tables.published.Add(t.store, what, published, fmt.Sprintf(format, values...))
		}
	}
	add(tables.fill, "cluster", "5,000 nodes, 150,000 pods, 5 API servers", "%v nodes, %v pods, %v API servers", "nodes", "pods", "API servers")
	add(tables.parallel, "concurrent deletions of pods", "API servers and etcd stand 1,000", "%v concurrent calls: p99 %.0f ms, %.2g %% errors", "concurrent calls", "p99, ms", "errors, %")
	add(tables.watchers, "clients that watch all pods", "measured, but not published", "%v watchers: p95 of updates %.0f ms, %.2g %% errors", "watchers", "p95, ms", "errors, %")
	add(tables.lists, "lists of all pods, which bypass the cache of the API server", "they destroy the cluster; later limited by their predicted size",
		"%v lists a minute wanted, %.1f answered, p95 of updates %.0f ms", "lists, /min", "done, /min", "update p95, ms")
	add(tables.restart, "all API servers start again, all clients list", "etcd uses 100 GB of memory on each master, API servers restart every few minutes; later they recover",
		"%v clients have listed after %.1f s; the store has %.0f MiB at most", "clients", "all listed, s", "peak, MiB")
}

// fillBound creates pods with a node, numbered from first, and waits until they run.
func (t *storeRun) fillBound(ctx context.Context, first, count, nodes int) error {
	pods, err := usualPods()
	if err != nil {
		return err
	}
	o := bulk.DefaultOptions(fillPrefix)
	task := t.Display.Task("pods created", count)
	o.Range.First, o.Range.Count, o.Progress = first, count, task.Set
	made, err := bulk.CreatePods(ctx, t.Clients, pods.On(bulk.Range{Prefix: bulk.NodePrefix, Count: nodes}), namespace, o)
	t.tally(made)
	if err != nil {
		task.Interrupt()
		return fmt.Errorf("creating pods: %w", err)
	}
	task.Done(fmt.Sprintf("%d, %.0f/s", made.Done, made.PerSecond))
	task = t.Display.Task("pods running", count)
	o.Progress = task.Set
	if err := bulk.AwaitPodsRunning(ctx, t.Clients, namespace, o, t.timeout); err != nil {
		task.Interrupt()
		return fmt.Errorf("waiting for pods: %w; see `k1m logs %s --name %s`", err, t.simulator(), t.Run.Dir.Name())
	}
	task.Done(fmt.Sprint(count))
	return nil
}
