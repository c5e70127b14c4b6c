package controlplane

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const maxParallel = 20_000

var podsParallel = experiment.Experiment{
	Name:  "pods-parallel",
	Short: "Create and delete an increasing number of pods concurrently",
	Long: `Create pods concurrently, wait until they run, delete them concurrently, and wait until they
	are gone. Do this with 10, 100, … and finally --parallel pods, and --repeat times with each number.
	All create requests of one repetition are sent at the same time, and later all its delete requests.
	The client measures latencies and errors.`,
	Example: `  k1m bench pods-parallel
  k1m bench pods-parallel --parallel 5000 --stores mem_etcd`,
	New: func() experiment.Options {
		return &podsParallelOptions{
			clusters: defaultClusters(experiment.ByScale(500, 20)), Parallel: experiment.ByScale(1000, 20), Repeat: 3,
		}
	},
}

type podsParallelOptions struct {
	clusters
	Parallel experiment.Count
	Repeat   int
}

// AddFlags binds the options to flags.
func (o *podsParallelOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Parallel, "parallel", o.Parallel.Usage("largest number of concurrent calls"))
	fs.IntVar(&o.Repeat, "repeat", o.Repeat, "number of repetitions of each step")
}

// Validate returns the first invalid option as a usage error.
func (o *podsParallelOptions) Validate() error {
	switch {
	case o.Parallel.N > maxParallel:
		return usage.Errorf("--parallel %d: choose 1 to %d", o.Parallel.N, maxParallel)
	case o.Repeat < 1:
		return usage.Errorf("--repeat %d: choose 1 or more", o.Repeat)
	}
	return o.clusters.Validate()
}

// Run implements experiment.Options.
func (o *podsParallelOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := parallelTable(run.Result)
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepare(ctx); err != nil {
			return err
		}
		return o.measure(ctx, t, table)
	})
}

func parallelTable(r *experiment.Result) *experiment.Table {
	return r.Table("Concurrent calls", "store", "verb", "concurrent calls", "total calls",
		"p50, ms", "p75, ms", "p90, ms", "p95, ms", "p99, ms", "errors, %")
}

// measure measures all numbers of pods.
func (o *podsParallelOptions) measure(ctx context.Context, t *storeRun, table *experiment.Table) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := t.watchOthers(watching)
	for _, parallel := range steps(10, o.Parallel.N) {
		if err := o.step(ctx, t, s, parallel, table); err != nil {
			return err
		}
	}
	return nil
}

// step measures the creation and deletion of this number of pods.
func (o *podsParallelOptions) step(ctx context.Context, t *storeRun, s *startups, parallel int, table *experiment.Table) error {
	creates, deletes := newCalls("POST"), newCalls("DELETE")
	for i := range o.Repeat {
		prefix := fmt.Sprintf("parallel-%d-%d-", parallel, i)
		created, err := t.createPods(ctx, s, prefix, parallel, parallel, 0)
		if err != nil {
			return err
		}
		creates.add(created)
		if err := t.awaitRunning(ctx, s, int(created.Latencies.Count())); err != nil {
			return err
		}
		deleted, err := t.deletePods(ctx, prefix, parallel, parallel)
		if err != nil {
			return err
		}
		deletes.add(deleted)
		if err := t.awaitGone(ctx, s, 0); err != nil {
			return err
		}
	}
	for _, c := range []*calls{creates, deletes} {
		l := c.latencies
		table.Add(t.store, c.verb, parallel, c.tally.Operations(),
			l.Millis(50), l.Millis(75), l.Millis(90), l.Millis(95), l.Millis(99), 100*c.tally.Rate())
		for _, percentile := range []float64{50, 99} {
			t.Result.Line(experiment.Series{
				Plot: c.verb + ": latency by concurrent calls", Name: fmt.Sprintf("p%g%s", percentile, on(t.store)),
				X: "concurrent calls", Unit: "ms", LogX: true, LogY: true,
			}, float64(parallel), l.Millis(percentile))
		}
		t.figure(fmt.Sprintf("p99 of %s, %d concurrent", c.verb, parallel), "ms", l.Millis(99), false)
	}
	return nil
}

// steps returns the numbers first × 10ⁿ that are below last, and last.
func steps(first, last int) (all []int) {
	for n := first; n < last; n *= 10 {
		all = append(all, n)
	}
	return append(all, last)
}
