package realcluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// A rate at which the API server accepts less than this fraction of the requests is the last one.
const reached = 0.9

// RunIntake measures each intake in a new cluster, at increasing rates.
func RunIntake(ctx context.Context, dir clusterdir.Dir, o IntakeOptions, display progress.Display) (IntakeResult, error) {
	pods, err := bulk.NewPods(o.Shape)
	if err != nil {
		return IntakeResult{}, err
	}
	if dir.Exists() {
		return IntakeResult{}, fmt.Errorf("cluster %q: %w; remove it with `k1m down --name %s`, or choose another --name",
			dir.Name(), ErrClusterExists, dir.Name())
	}
	result := IntakeResult{Nodes: o.Cluster.Nodes, Store: o.Cluster.Store, Seconds: o.Duration.Seconds(), Intakes: []IntakeMeasured{}}
	for i, intake := range o.Intakes {
		keep := o.Keep && i == len(o.Intakes)-1
		measured, err := runIntake(ctx, dir, o, intake, pods, keep, display)
		if len(measured.Rates) > 0 {
			result.Intakes = append(result.Intakes, measured)
		}
		if err != nil {
			return result, fmt.Errorf("measuring intake by %s: %w", intake, err)
		}
	}
	return result, nil
}

// runIntake creates a cluster, measures at each rate, and removes the cluster.
func runIntake(
	ctx context.Context, dir clusterdir.Dir, o IntakeOptions, intake string, pods *bulk.Pods, keep bool, display progress.Display,
) (measured IntakeMeasured, err error) {
	measured.Name = intake
	flags, err := o.clusterFlags(intake)
	if err != nil {
		return measured, err
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
		return measured, err
	}
	t, err := newTurn(dir, up.Config, o.base(), pods, display)
	if err != nil {
		return measured, err
	}
	if err := t.warmUp(ctx); err != nil {
		return measured, err
	}
	for _, rate := range o.Rates {
		step := &intakeStep{measurement: t, log: dir.Log(clusterdir.SchedulerDist), intake: intake, rate: rate, count: o.count(rate)}
		at, err := step.measure(ctx)
		if err != nil {
			return measured, err
		}
		measured.Rates = append(measured.Rates, at)
		if at.CreatedPerSecond < reached*float64(rate) {
			break
		}
	}
	return measured, nil
}

// intakeStep is the measurement of one rate.
type intakeStep struct {
	*measurement
	log    string
	intake string
	rate   int
	count  int
}

func (s *intakeStep) prefix() string { return fmt.Sprintf("at-%d-", s.rate) }

// measure creates pods, and reads from the log of the scheduler when it saw them.
func (s *intakeStep) measure(ctx context.Context) (IntakeRate, error) {
	task := s.display.Task(fmt.Sprintf("pods by %s, %d/s", s.intake, s.rate), s.count)
	fail := func(err error) (IntakeRate, error) {
		progress.Fail(ctx, task, err.Error())
		return IntakeRate{}, err
	}
	sightings, err := openSightings(s.log, s.options.Shape.Namespace, s.prefix())
	if err != nil {
		return fail(err)
	}
	defer sightings.close()
	before, err := s.usage.read()
	if err != nil {
		return fail(err)
	}
	made, err := s.createAtRate(ctx, task)
	if err != nil {
		return fail(err)
	}
	if err := s.awaitBoundBy(ctx, sightings); err != nil {
		return fail(err)
	}
	// The cost of a pod includes the status updates until it runs.
	running := s.bulkOptions(s.prefix(), s.count)
	if err := bulk.AwaitPodsRunning(ctx, s.clients, s.options.Shape.Namespace, running, s.options.Timeout); err != nil {
		return fail(err)
	}
	after, err := s.usage.read()
	if err != nil {
		return fail(err)
	}
	task.Done(fmt.Sprintf("%d seen, %.0f/s", len(sightings.seen), made.perSecond()))
	return summarizeRate(s.rate, made, sightings, before, after), awaitQuiet(ctx, s.usage.controlPlane)
}

// awaitBoundBy reads the log until the scheduler has bound all pods, or until no progress is made
// for the timeout.
func (s *intakeStep) awaitBoundBy(ctx context.Context, sightings *sightings) error {
	progressed, before := time.Now(), 0
	for len(sightings.bound) < s.count && time.Since(progressed) < s.options.Timeout {
		if err := sightings.read(); err != nil {
			return err
		}
		if len(sightings.bound) != before {
			progressed, before = time.Now(), len(sightings.bound)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
	return nil
}
