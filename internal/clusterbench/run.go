package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster"
	"github.com/k8s-1m/k8s-1m/internal/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/progress"
)

// ErrClusterExists says that a run would have to remove somebody's cluster.
var ErrClusterExists = errors.New("the cluster exists already")

// Run measures the schedulers, each on a cluster of its own that was just made: one
// that is only restarted has a history, and kwok waits for leases that it held.
func Run(ctx context.Context, dir cluster.Dir, o Options, display progress.Display) (result Result, err error) {
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
	for i, c := range contenders {
		keep := o.Keep && i == len(contenders)-1
		measured, err := runOne(ctx, dir, o, c, pods, keep, display)
		if err != nil {
			return result, fmt.Errorf("measuring %s: %w", c, err)
		}
		result.Schedulers = append(result.Schedulers, measured)
	}
	return result, nil
}

// runOne makes a cluster, measures its scheduler, and removes the cluster again.
func runOne(
	ctx context.Context, dir cluster.Dir, o Options, c contender, pods *bulk.Pods, keep bool, display progress.Display,
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
		Dir: dir, Flags: flags, Timeout: o.Timeout, MinFree: minFreeDisk, Display: display,
	})
	if err != nil {
		return Scheduler{}, err
	}
	t, err := newTurn(dir, up.Config, o, pods, display)
	if err != nil {
		return Scheduler{}, err
	}
	return t.measure(ctx)
}

func remove(dir cluster.Dir) error {
	err := lifecycle.Down(dir, false)
	if errors.Is(err, cluster.ErrUnknown) {
		return nil
	}
	return err
}

// awaitQuiet gives a control plane that has just started the time to settle: its
// first seconds would count as work for pods.
func awaitQuiet(ctx context.Context, cpu func() (time.Duration, error)) error {
	const (
		sample  = 500 * time.Millisecond
		quiet   = sample / 5 // of CPU
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
