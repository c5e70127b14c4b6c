package realcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ErrClusterExists means that a run cannot create its cluster, because a cluster of this name exists.
var ErrClusterExists = errors.New("cluster exists already")

// Run measures each contender in a new cluster. If it reused a cluster, the store would contain revisions
// of earlier measurements, and kwok would wait until its earlier Leases expire. An interrupted run returns
// the completed measurements.
func Run(ctx context.Context, dir clusterdir.Dir, o Options, display progress.Display) (result Result, err error) {
	pods, err := bulk.NewPods(o.Shape)
	if err != nil {
		return Result{}, err
	}
	if dir.Exists() {
		return Result{}, fmt.Errorf("cluster %q: %w; remove it with `k1m down --name %s`, or choose another --name",
			dir.Name(), ErrClusterExists, dir.Name())
	}
	result = newResult(o)
	contenders := o.contenders()
	samples := make([][]Scheduler, len(contenders))
	defer func() {
		for _, s := range samples {
			if len(s) > 0 {
				result.Schedulers = append(result.Schedulers, median(s, o.Pods))
			}
		}
	}()
	for sample := range o.Samples {
		for i, c := range contenders {
			keep := o.Keep && sample == o.Samples-1 && i == len(contenders)-1
			measured, err := measureContender(ctx, dir, o, c, pods, keep, display)
			if err != nil {
				return result, fmt.Errorf("measuring %s: %w", c, err)
			}
			samples[i] = append(samples[i], measured)
		}
	}
	return result, nil
}

// median returns the sample of a contender with the median CPU time per pod. If a sample violates an
// invariant, it returns that sample instead.
func median(samples []Scheduler, pods int) Scheduler {
	slices.SortFunc(samples, func(a, b Scheduler) int { return cmp.Compare(a.SchedulerCPUMicrosPerPod, b.SchedulerCPUMicrosPerPod) })
	chosen := samples[(len(samples)-1)/2]
	for _, s := range samples {
		if len(s.violations(pods)) > 0 {
			chosen = s
		}
	}
	if len(samples) > 1 {
		for _, s := range samples {
			chosen.CPUSamples = append(chosen.CPUSamples, s.SchedulerCPUMicrosPerPod)
		}
	}
	return chosen
}

// measureContender creates a cluster, measures its scheduler, and removes the cluster unless keep is set
// and there was no error.
func measureContender(
	ctx context.Context, dir clusterdir.Dir, o Options, c contender, pods *bulk.Pods, keep bool, display progress.Display,
) (measured Scheduler, err error) {
	flags, err := o.clusterFlags(c)
	if err != nil {
		return Scheduler{}, err
	}
	defer func() {
		if !keep || err != nil {
			err = errors.Join(err, remove(dir))
		}
	}()
	up, err := lifecycle.Up(ctx, lifecycle.UpOptions{
		Dir: dir, Flags: flags, Timeout: o.Timeout, MinFree: minFreeDisk, SeedStore: o.seeds(), Display: display,
	})
	if err != nil {
		return Scheduler{}, err
	}
	t, err := newMeasurement(dir, up.Config, o, pods, display)
	if err != nil {
		return Scheduler{}, err
	}
	return t.measure(ctx)
}

// remove stops and removes a cluster, if it exists.
func remove(dir clusterdir.Dir) error {
	err := lifecycle.Down(dir, false)
	if errors.Is(err, clusterdir.ErrUnknown) {
		return nil
	}
	return err
}

// awaitQuiet waits until the control plane is idle, but for at most 10 s. Otherwise work that remains from
// its start or from earlier pods would count as a cost of the measured pods. cpu returns its CPU time.
func awaitQuiet(ctx context.Context, cpu func() (time.Duration, error)) error {
	const (
		sample  = 500 * time.Millisecond
		quiet   = sample / 5 // maximum CPU time of an idle control plane during a sample
		samples = 20
	)
	before, err := cpu()
	for range samples {
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sample):
		}
		now, failure := cpu()
		if now-before < quiet {
			return failure
		}
		before, err = now, failure
	}
	return err
}
