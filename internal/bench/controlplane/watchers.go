package controlplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

var watchers = experiment.Experiment{
	Name:  "watchers",
	Short: "Update pods while an increasing number of clients watch all of them",
	Long: `Update pods at a fixed rate while 0, 10, 100, … up to --watchers clients watch all of them.
Clients do not decode the watch events, so that they use little CPU. The latency of an update
counts from the time for which the update was scheduled.`,
	Example: `  k1m bench watchers
  k1m bench watchers --watchers 5000 --rate 20 --stores mem_etcd`,
	New: func() experiment.Options {
		return &watchersOptions{
			underUpdates: newUnderUpdates(), Watchers: experiment.ByScale(1000, 20),
		}
	},
}

// underUpdates are the options of the experiments that measure a cluster while pods are updated.
type underUpdates struct {
	clusters
	Pods     experiment.Count
	Rate     float64
	Duration experiment.Span
}

func newUnderUpdates() underUpdates {
	return underUpdates{
		clusters: defaultClusters(experiment.ByScale(100, 10)), Pods: experiment.ByScale(2000, 50),
		Rate: 50, Duration: experiment.SpanByScale(15*time.Second, 5*time.Second),
	}
}

// AddFlags binds the options to flags.
func (o *underUpdates) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods in the cluster"))
	fs.Float64Var(&o.Rate, "rate", o.Rate, "pod updates per second")
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each step"))
}

// Validate returns the first invalid option as a usage error.
func (o *underUpdates) Validate() error {
	if err := errors.Join(positive("--rate", o.Rate), o.fit(o.Pods)); err != nil {
		return err
	}
	return o.clusters.Validate()
}

type watchersOptions struct {
	underUpdates
	Watchers experiment.Count
}

// AddFlags binds the options to flags.
func (o *watchersOptions) AddFlags(fs *pflag.FlagSet) {
	o.underUpdates.AddFlags(fs)
	fs.Var(&o.Watchers, "watchers", o.Watchers.Usage("largest number of watching clients"))
}

// Run implements experiment.Options.
func (o *watchersOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := watchersTable(run.Result)
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepareFilled(ctx, o.Pods.N); err != nil {
			return err
		}
		return o.measure(ctx, t, table)
	})
}

func watchersTable(r *experiment.Result) *experiment.Table {
	return r.Table("Updates with watchers", "store", "watchers", "updates, /s", "errors, %", "watches closed by the server", "events, /s", "events, % of expected",
		"memory: kube-apiserver, MiB", "store, MiB", "cores: kube-apiserver", "store", "k1m", "update p75, ms", "p90, ms", "p95, ms")
}

// measure measures all numbers of watchers.
func (o *watchersOptions) measure(ctx context.Context, t *storeRun, table *experiment.Table) error {
	for _, count := range append([]int{0}, steps(10, o.Watchers.N)...) {
		if err := o.step(ctx, t, count, table); err != nil {
			return err
		}
	}
	return nil
}

// step measures one number of watchers.
func (o *watchersOptions) step(ctx context.Context, t *storeRun, count int, table *experiment.Table) error {
	watching, stop := context.WithCancel(ctx)
	var events, closed atomic.Int64
	group, err := t.startWatchers(watching, count, &events, &closed)
	defer group.Wait()
	defer stop()
	if err != nil {
		return err
	}
	before := events.Load()
	load, m, err := t.measureUpdates(ctx, fmt.Sprintf("%d watchers", count), o.Duration.D, o.Pods.N, o.Rate, nil)
	if err != nil {
		return err
	}
	delivered := float64(events.Load() - before)
	updates := float64(load.Latencies.Count())
	share := 100.0
	if count > 0 && updates > 0 {
		share = 100 * delivered / (updates * float64(count))
	}
	l := load.Latencies
	table.Add(t.store, count, updates/m.Seconds, 100*load.Tally.Rate(), closed.Load(), delivered/m.Seconds, share,
		float64(m.Peak[apiServer])/mebibyte, float64(m.Peak[component.Store])/mebibyte,
		m.Cores(apiServer), m.Cores(component.Store), m.Cores(loader), l.Millis(75), l.Millis(90), l.Millis(95))
	if count > 0 {
		t.Result.Line(experiment.Series{Plot: "update latency by watchers", Name: "p95" + on(t.store), X: "watchers", Unit: "ms", LogX: true, LogY: true}, float64(count), l.Millis(95))
		t.Result.Line(experiment.Series{Plot: "events delivered by watchers", Name: t.store, X: "watchers", Unit: "events/s", LogX: true, LogY: true}, float64(count), delivered/m.Seconds)
		t.figure(fmt.Sprintf("p95 of updates, %d watchers", count), "ms", l.Millis(95), false)
		t.figure(fmt.Sprintf("store's CPU per update, %d watchers", count), "µs", m.MicrosPer(component.Store, int(updates)), false)
	}
	return nil
}

// startWatchers opens watches that end with ctx. The server closes the watches of slow clients. Such a
// watch is counted in closed and opened again.
func (t *storeRun) startWatchers(ctx context.Context, count int, events, closed *atomic.Int64) (*sync.WaitGroup, error) {
	var group sync.WaitGroup
	clients, err := t.connect(count, streamsPerConnection, nil)
	if err != nil {
		return &group, err
	}
	now, err := t.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return &group, fmt.Errorf("reading pods: %w", err)
	}
	for i := range count {
		group.Go(func() {
			w, from := stream{clients.Connection(i), "pods", events}, now.ResourceVersion
			for {
				// follow always returns an error.
				_ = w.follow(ctx, metav1.ListOptions{ResourceVersion: from})
				if ctx.Err() != nil {
					return
				}
				closed.Add(1)
				// The previous resource version may be too old to resume from. A watch from version 0
				// starts with all existing pods.
				from = "0"
				time.Sleep(pollInterval)
			}
		})
	}
	return &group, nil
}
