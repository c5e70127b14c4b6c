// Package controlplane has the experiments that load a cluster: a real control plane with
// simulated nodes, on each of the stores in turn.
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

// Experiments that this package has.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{nodesAndPods, slo, podsParallel, watchers, lists, restart, density, limits, kubeletOrKwok}
}

const (
	// namespace of the pods that are measured.
	namespace = "k1m-bench"

	apiServer = component.RoleAPIServer
	scheduler = component.RoleScheduler
	loader    = "k1m"

	connections    = 16
	defaultTimeout = 3 * time.Minute
	mebibyte       = 1 << 20
)

// clusters are options that all experiments here have.
type clusters struct {
	Stores    []string
	Scheduler string
	Nodes     experiment.Count
	Keep      bool
	Timeout   time.Duration
	// zeroNodes makes clusters without nodes; the experiment makes its own.
	zeroNodes bool
	// more changes the settings further.
	more func(*clusterdir.Settings)
}

func defaultClusters(nodes experiment.Count) clusters {
	return clusters{
		Stores: []string{clusterdir.StoreMemEtcd, clusterdir.StoreEtcd}, Scheduler: clusterdir.SchedulerKube,
		Nodes: nodes, Timeout: defaultTimeout,
	}
}

// AddFlags binds the options to flags.
func (c *clusters) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Stores, "stores", c.Stores, "stores on which it is measured, in this order; a running cluster of --name has its own")
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "kube-scheduler|dist-scheduler")
	fs.Var(&c.Nodes, "nodes", c.Nodes.Usage("nodes of the cluster"))
	fs.BoolVar(&c.Keep, "keep", c.Keep, "leave the last cluster up")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "how long a cluster may take to get ready, and pods to make no progress")
}

// Validate reports the first option that cannot be.
func (c *clusters) Validate() error {
	for i, store := range c.Stores {
		if store != clusterdir.StoreMemEtcd && store != clusterdir.StoreEtcd {
			return usage.Errorf("--stores %q: no such store; choose mem_etcd, etcd or both", store)
		}
		if slices.Contains(c.Stores[:i], store) {
			return usage.Errorf("--stores %s: %s is there twice; name each once", strings.Join(c.Stores, ","), store)
		}
	}
	switch {
	case len(c.Stores) == 0:
		return usage.Errorf("--stores: none given; choose mem_etcd, etcd or both")
	case c.Scheduler != clusterdir.SchedulerKube && c.Scheduler != clusterdir.SchedulerDist:
		return usage.Errorf("--scheduler %q: no such scheduler; choose kube-scheduler or dist-scheduler", c.Scheduler)
	case c.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", c.Timeout)
	}
	return nil
}

// turn is that of one store.
type turn struct {
	*experiment.Run
	*experiment.Cluster
	store   string
	timeout time.Duration
	figures []experiment.Figure
}

// each measures on every store in turn, and compares what they have in common.
func (c *clusters) each(ctx context.Context, run *experiment.Run, measure func(context.Context, *turn) error) error {
	stores := c.Stores
	if run.UsesExisting() {
		config, err := clusterdir.Load(run.Dir)
		if err != nil {
			return err
		}
		stores = []string{config.Settings.StoreKind()}
		run.Result.Note("On the cluster %q that ran already: nothing was made, so there is no peer in this run.", config.Name)
	}
	figures := make([][]experiment.Figure, len(stores))
	for i, store := range stores {
		keep := c.Keep && i == len(stores)-1
		var err error
		if figures[i], err = c.one(ctx, run, store, keep, measure); err != nil {
			return fmt.Errorf("on %s: %w", store, err)
		}
	}
	if len(stores) == 2 {
		ours := slices.Index(stores, clusterdir.StoreMemEtcd)
		run.Result.Compare(stores[ours], stores[1-ours], figures[ours], figures[1-ours])
	}
	return nil
}

func (c *clusters) one(
	ctx context.Context, run *experiment.Run, store string, keep bool, measure func(context.Context, *turn) error,
) (figures []experiment.Figure, err error) {
	settings := clusterdir.DefaultSettings()
	settings.Store, settings.Scheduler, settings.Nodes = store, c.Scheduler, c.Nodes.N
	if c.zeroNodes {
		settings.Nodes = 0
	}
	if c.more != nil {
		c.more(&settings)
	}
	made, err := run.Up(ctx, settings, on(store), connections, c.Timeout)
	if err != nil {
		return nil, err
	}
	t := &turn{Run: run, Cluster: made, store: store, timeout: c.Timeout}
	defer func() {
		if !made.Own() {
			err = errors.Join(err, t.cleanUp())
		}
		err = errors.Join(err, run.Close(made, keep && err == nil))
	}()
	err = measure(ctx, t)
	return t.figures, err
}

// on is how plots and verdicts name the store.
func on(store string) string { return ", on " + store }

// figure is one in which stores are compared.
func (t *turn) figure(name, unit string, value float64, moreIsBetter bool) {
	t.figures = append(t.figures, experiment.Figure{Name: name, Unit: unit, Value: value, MoreIsBetter: moreIsBetter})
}

// judge appends verdicts, which are of this store.
func (t *turn) judge(verdicts ...experiment.Verdict) {
	for _, v := range verdicts {
		v.Name += on(t.store)
		t.Result.Verdicts = append(t.Result.Verdicts, v)
	}
}

// mark sets a marker now.
func (t *turn) mark(name string, at time.Time) {
	t.Result.Markers = append(t.Result.Markers, experiment.Marker{Of: on(t.store), Name: name, Seconds: at.Sub(t.Result.Time).Seconds()})
}

// nodes that there are: as many as were asked for, or those of a cluster that ran already.
func (t *turn) nodes(ctx context.Context, asked int) (int, error) {
	if t.Own() {
		return asked, nil
	}
	return bulk.CountNodes(ctx, t.Clients)
}

// createNodes makes nodes beyond those that there are, which may have more room for pods
// than is usual, and waits until they are ready.
func (t *turn) createNodes(ctx context.Context, first, count int, shape bulk.NodeShape) (bulk.Summary, error) {
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
		return summary, fmt.Errorf("waiting for nodes: %w; see `k1m logs kwok --name %s`", err, t.Run.Dir.Name())
	}
	task.Done(fmt.Sprint(count))
	return summary, nil
}

// tally counts what was made in bulk with the errors of the experiment, those that were retried
// too.
func (t *turn) tally(made bulk.Summary) {
	all, byKind := int64(made.Done), map[string]int64{}
	for kind, count := range made.Errors {
		byKind[kind] = int64(count)
		all += int64(count)
	}
	t.Result.Errors.AddMany(all, byKind)
}

// deleteNodes removes nodes that createNodes has made.
func (t *turn) deleteNodes(ctx context.Context, first, count int) error {
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

// prepare makes the namespace, warms up, and waits until the control plane is quiet: what
// is made once, such as connections, is no cost of what is measured.
func (t *turn) prepare(ctx context.Context) error {
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

func (t *turn) warmUp(ctx context.Context) error {
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

func usualPods() (*bulk.Pods, error) {
	shape := bulk.DefaultPodShape()
	shape.Namespace = namespace
	return bulk.NewPods(shape)
}

// costs appends CPU and memory of a window to a table's row: of API server, scheduler,
// store and the others together.
func costs(m experiment.Measured, operations int) []any {
	return []any{
		m.MicrosPer(apiServer, operations), m.MicrosPer(scheduler, operations), m.MicrosPer(component.Store, operations),
		m.MicrosPer(component.ControllerManager, operations), m.MicrosPer(component.Kwok, operations),
		float64(m.Peak[apiServer]) / mebibyte, float64(m.Peak[component.Store]) / mebibyte,
	}
}
