// Package controlplane contains the experiments that load a whole cluster: a real control plane with
// simulated nodes. They run on one store after the other, each time in a new cluster.
//
// They measure clients, API servers, store, controllers, scheduler and nodes together. Package store
// loads a store without a cluster, and the packages below bench/scheduler measure schedulers.
//
// Each experiment is a variable in the file with its name: nodes_and_pods, slo, pods_parallel, watchers,
// lists, restart, density, limits, kubelet_or_kwok, controller_standby, tess_io and full_store. The files
// calibration*.go measure the costs that `k1m plan` uses. The experiments share the options and the cluster of a
// run (controlplane.go), the creation and deletion of pods (pods.go), the measurement of pod startup
// (startups.go), and background load (background.go).
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
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{nodesAndPods, slo, podsParallel, watchers, lists, restart, density, limits, kubeletOrKwok, controllerStandby, tessIO, fullStore}
}

const (
	// namespace is the namespace of the measured pods.
	namespace = "k1m-bench"

	apiServer = component.RoleAPIServer
	scheduler = component.RoleScheduler
	loader    = "k1m" // role of this process, which generates the load

	connections    = 16
	defaultTimeout = 3 * time.Minute
	mebibyte       = 1 << 20
)

// clusters are the options that all experiments of this package share.
type clusters struct {
	Stores    []string
	Scheduler string
	Nodes     experiment.Count
	Keep      bool
	Timeout   time.Duration
	// NodeSimulator is the program that simulates the nodes, and NodeMode how node-sim connects them; empty for its default.
	NodeSimulator, NodeMode string
	// choosesNodes means that the experiment itself chooses who simulates the nodes.
	choosesNodes bool
	// zeroNodes creates the cluster without nodes, for experiments that create nodes themselves.
	zeroNodes bool
	// changeSettings, if not nil, changes further settings of the cluster.
	changeSettings func(*clusterdir.Settings)
}

func defaultClusters(nodes experiment.Count) clusters {
	return clusters{
		Stores: []string{clusterdir.StoreMemEtcd, clusterdir.StoreEtcd}, Scheduler: clusterdir.SchedulerKube,
		Nodes: nodes, Timeout: defaultTimeout, NodeSimulator: clusterdir.SimulatorKwok,
	}
}

// AddFlags binds the options to flags.
func (c *clusters) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Stores, "stores", c.Stores,
		"stores to measure, in this order; ignored if --name selects a running cluster")
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "kube-scheduler|dist-scheduler")
	fs.Var(&c.Nodes, "nodes", c.Nodes.Usage("number of nodes"))
	fs.BoolVar(&c.Keep, "keep", c.Keep, "do not remove the cluster of the last store")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout,
		"time limit for the start of the cluster, and for waiting without progress")
	if c.choosesNodes {
		return
	}
	fs.StringVar(&c.NodeSimulator, "node-simulator", c.NodeSimulator,
		"program that simulates the nodes: kwok|node-sim; nodes of node-sim are written into the store if they exist from the start")
	fs.StringVar(&c.NodeMode, "node-mode", c.NodeMode, "how node-sim connects the nodes: shared|wire (default shared)")
}

// Validate returns the first invalid option as a usage error.
func (c *clusters) Validate() error {
	for i, store := range c.Stores {
		if store != clusterdir.StoreMemEtcd && store != clusterdir.StoreEtcd {
			return usage.Errorf("--stores %q: no such store; choose mem_etcd, etcd or both", store)
		}
		if slices.Contains(c.Stores[:i], store) {
			return usage.Errorf("--stores %s: %s is given twice; list each once", strings.Join(c.Stores, ","), store)
		}
	}
	switch {
	case len(c.Stores) == 0:
		return usage.Errorf("--stores: the list is empty; choose mem_etcd, etcd or both")
	case c.Scheduler != clusterdir.SchedulerKube && c.Scheduler != clusterdir.SchedulerDist:
		return usage.Errorf("--scheduler %q: no such scheduler; choose kube-scheduler or dist-scheduler", c.Scheduler)
	case c.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", c.Timeout)
	case c.NodeMode != "" && c.NodeMode != clusterdir.NodesShared && c.NodeMode != clusterdir.NodesWire:
		return usage.Errorf("--node-mode %q: choose shared or wire", c.NodeMode)
	}
	settings := c.settings(clusterdir.StoreMemEtcd)
	settings.Complete()
	return settings.Validate()
}

// settings returns the settings of the cluster with a store.
func (c *clusters) settings(store string) clusterdir.Settings {
	settings := clusterdir.DefaultSettings()
	settings.Store, settings.Scheduler, settings.Nodes = store, c.Scheduler, c.Nodes.N
	settings.NodeSimulator, settings.NodeMode = c.NodeSimulator, c.NodeMode
	if c.zeroNodes {
		settings.Nodes = 0
	}
	if c.changeSettings != nil {
		c.changeSettings(&settings)
	}
	return settings
}

// up creates the cluster with a store, or connects to the running cluster that the user selected. Nodes of node-sim are
// written into the store.
func (c *clusters) up(ctx context.Context, run *experiment.Run, store string) (*experiment.Cluster, error) {
	settings := c.settings(store)
	if settings.NodeSimulator == clusterdir.SimulatorNodeSim && settings.Nodes > 0 && !run.UsesExisting() {
		return run.UpSeeded(ctx, settings, on(store), connections, c.Timeout, nil)
	}
	return run.Up(ctx, settings, on(store), connections, c.Timeout)
}

// fit returns a usage error if the nodes have no room for the pods. If --nodes is not set, there are enough nodes.
func (c *clusters) fit(pods experiment.Count) error {
	room := bulk.DefaultNodeShape().Pods
	if c.Nodes.N == 0 {
		c.Nodes.AtLeast((pods.N + room - 1) / room)
		return nil
	}
	if pods.N > c.Nodes.N*room {
		return usage.Errorf("--pods %d: %d nodes have room for %d pods; use fewer pods or more nodes",
			pods.N, c.Nodes.N, c.Nodes.N*room)
	}
	return nil
}

// storeRun is the run of an experiment on the cluster of one store.
type storeRun struct {
	*experiment.Run
	*experiment.Cluster
	store   string
	timeout time.Duration
	figures []experiment.Figure
}

// each calls measure on one store after the other, and compares the figures that both stores have.
func (c *clusters) each(ctx context.Context, run *experiment.Run, measure func(context.Context, *storeRun) error) error {
	stores := c.Stores
	if run.UsesExisting() {
		config, err := clusterdir.Load(run.Dir)
		if err != nil {
			return err
		}
		stores = []string{config.Settings.StoreKind()}
		run.Result.Note("Measured on the existing cluster %q; the run has no other store for comparison.", config.Name)
	}
	figures := make([][]experiment.Figure, len(stores))
	for i, store := range stores {
		keep := c.Keep && i == len(stores)-1
		var err error
		if figures[i], err = c.runOnStore(ctx, run, store, keep, measure); err != nil {
			return fmt.Errorf("on %s: %w", store, err)
		}
	}
	if len(stores) == 2 {
		ours := slices.Index(stores, clusterdir.StoreMemEtcd)
		run.Result.Compare(stores[ours], stores[1-ours], figures[ours], figures[1-ours])
	}
	return nil
}

// runOnStore creates a cluster with this store, calls measure, and removes the cluster unless keep is
// set and there was no error. In a running cluster that the user selected, it removes only its namespace.
func (c *clusters) runOnStore(
	ctx context.Context, run *experiment.Run, store string, keep bool, measure func(context.Context, *storeRun) error,
) (figures []experiment.Figure, err error) {
	cluster, err := c.up(ctx, run, store)
	if err != nil {
		return nil, err
	}
	t := &storeRun{Run: run, Cluster: cluster, store: store, timeout: c.Timeout}
	defer func() {
		if !cluster.Own() {
			err = errors.Join(err, t.cleanUp())
		}
		err = errors.Join(err, run.Close(cluster, keep && err == nil))
	}()
	err = measure(ctx, t)
	return t.figures, err
}

// simulator returns the role of the program that simulates the nodes.
func (t *storeRun) simulator() string { return t.Config.Settings.NodeSimulator }

// on returns the suffix that names the store in titles of charts and in names of verdicts.
func on(store string) string { return ", on " + store }

// figure appends a figure by which the stores are compared.
func (t *storeRun) figure(name, unit string, value float64, moreIsBetter bool) {
	t.figures = append(t.figures, experiment.Figure{Name: name, Unit: unit, Value: value, MoreIsBetter: moreIsBetter})
}

// judge appends verdicts to the result, with the name of this store.
func (t *storeRun) judge(verdicts ...experiment.Verdict) {
	for _, v := range verdicts {
		v.Name += on(t.store)
		t.Result.Verdicts = append(t.Result.Verdicts, v)
	}
}

// mark appends a marker to the result. The charts of this store show it.
func (t *storeRun) mark(name string, at time.Time) {
	t.Result.Markers = append(t.Result.Markers, experiment.Marker{ChartSuffix: on(t.store), Name: name, Seconds: at.Sub(t.Result.Time).Seconds()})
}

// nodes returns the number of nodes in the cluster. This is requested, if the run created the cluster.
func (t *storeRun) nodes(ctx context.Context, requested int) (int, error) {
	if t.Own() {
		return requested, nil
	}
	return bulk.CountNodes(ctx, t.Clients)
}

// createNodes creates count nodes, numbered from first, and waits until they are ready.
func (t *storeRun) createNodes(ctx context.Context, first, count int, shape bulk.NodeShape) (bulk.Summary, error) {
	nodes, err := bulk.NewNodes(shape)
	if err != nil {
		return bulk.Summary{}, err
	}
	o := bulk.DefaultOptions(bulk.NodePrefix)
	o.Range.First, o.Range.Count = first, count
	task := t.Display.Task("nodes created", count)
	o.Progress = task.Set
	summary, err := bulk.CreateNodes(ctx, t.Clients, nodes, o)
	t.tally(summary)
	if err != nil {
		task.Interrupt()
		return summary, fmt.Errorf("creating nodes: %w", err)
	}
	task.Done(fmt.Sprintf("%d, %.0f/s", summary.Done, summary.PerSecond))
	task = t.Display.Task("nodes ready", count)
	o.Progress = task.Set
	if err := bulk.AwaitNodesReady(ctx, t.Clients, o, t.timeout); err != nil {
		task.Interrupt()
		return summary, fmt.Errorf("waiting for nodes: %w; see `k1m logs %s --name %s`", err, t.simulator(), t.Run.Dir.Name())
	}
	task.Done(fmt.Sprint(count))
	return summary, nil
}

// tally adds the requests of a bulk operation to those that the result counts, including failed requests
// that were retried.
func (t *storeRun) tally(summary bulk.Summary) {
	requests, byKind := int64(summary.Done), map[string]int64{}
	for kind, count := range summary.Errors {
		byKind[kind] = int64(count)
		requests += int64(count)
	}
	t.Result.Errors.AddMany(requests, byKind)
}

// deleteNodes deletes nodes that createNodes created.
func (t *storeRun) deleteNodes(ctx context.Context, first, count int) error {
	o := bulk.DefaultOptions(bulk.NodePrefix)
	o.Range.First, o.Range.Count = first, count
	task := t.Display.Task("nodes deleted", count)
	o.Progress = task.Set
	if _, err := bulk.DeleteNodes(ctx, t.Clients, o); err != nil {
		task.Interrupt()
		return fmt.Errorf("deleting nodes: %w", err)
	}
	task.Done(fmt.Sprint(count))
	return nil
}

// prepare creates the namespace, creates and deletes warm-up pods, and waits until the control plane is
// idle. One-time costs, such as those of opening connections, are then not measured.
func (t *storeRun) prepare(ctx context.Context) error {
	task := t.Display.Task("warming up", 0)
	err := t.Clients.EnsureNamespace(ctx, namespace)
	if err == nil {
		err = t.warmUp(ctx)
	}
	if err == nil {
		err = t.AwaitQuiet(ctx)
	}
	if err != nil {
		task.Interrupt()
		return fmt.Errorf("warming up: %w", err)
	}
	task.Done("done")
	return nil
}

// warmUp creates some pods, waits until they run, and deletes them.
func (t *storeRun) warmUp(ctx context.Context) error {
	const warmUpPods = 20
	pods, err := usualPods()
	if err != nil {
		return err
	}
	o := bulk.DefaultOptions("warm-")
	o.Range.Count, o.Progress = warmUpPods, func(int) {}
	if _, err = bulk.CreatePods(ctx, t.Clients, pods, namespace, o); err != nil {
		return err
	}
	if err = bulk.AwaitPodsRunning(ctx, t.Clients, namespace, o, t.timeout); err != nil {
		return err
	}
	if _, err = bulk.DeletePods(ctx, t.Clients, namespace, o); err != nil {
		return err
	}
	return bulk.AwaitPodsGone(ctx, t.Clients, namespace, o, t.timeout)
}

// usualPods returns the pods of default shape in the namespace of the experiment.
func usualPods() (*bulk.Pods, error) {
	shape := bulk.DefaultPodShape()
	shape.Namespace = namespace
	return bulk.NewPods(shape)
}

// podCosts returns cells of a table: the CPU time per operation of each component, in microseconds, and the
// peak memory of the API server and the store, in MiB.
func (t *storeRun) podCosts(m experiment.Measured, operations int) []any {
	return []any{
		m.MicrosPer(apiServer, operations), m.MicrosPer(scheduler, operations), m.MicrosPer(component.Store, operations),
		m.MicrosPer(component.ControllerManager, operations), m.MicrosPer(t.simulator(), operations),
		float64(m.Peak[apiServer]) / mebibyte, float64(m.Peak[component.Store]) / mebibyte,
	}
}
