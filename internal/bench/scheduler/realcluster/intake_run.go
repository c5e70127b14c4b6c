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

// minAccepted is the fraction of a rate that must be achieved for the run to continue with the next rate.
const minAccepted = 0.9

// RunIntake measures each intake in a new cluster, with increasing rates of pod creation.
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

// runIntake creates a cluster, measures each rate, and removes the cluster unless keep is set and there was
// no error.
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
	t, err := newMeasurement(dir, up.Config, o.base(), pods, display)
	if err != nil {
		return measured, err
	}
	if err := t.warmUp(ctx); err != nil {
		return measured, err
	}
	for _, rate := range o.Rates {
		step := &intakeStep{measurement: t, log: dir.Log(clusterdir.SchedulerDist), intake: intake, rate: rate, count: o.count(rate)}
		result, err := step.measure(ctx)
		if err != nil {
			return measured, err
		}
		measured.Rates = append(measured.Rates, result)
		if result.CreatedPerSecond < minAccepted*float64(rate) {
			break
		}
	}
	return measured, nil
}

// intakeStep is the measurement of one rate.
type intakeStep struct {
	*measurement
	log    string // path of the scheduler's log
	intake string
	rate   int // pods per second
	count  int // pods
}

func (s *intakeStep) prefix() string { return fmt.Sprintf("at-%d-", s.rate) }

// measure creates pods, and reads from the scheduler's log when the scheduler received and bound them.
func (s *intakeStep) measure(ctx context.Context) (IntakeRate, error) {
	task := s.display.Task(fmt.Sprintf("pods by %s, %d/s", s.intake, s.rate), s.count)
	fail := func(err error) (IntakeRate, error) {
		progress.Fail(ctx, task, err.Error())
		return IntakeRate{}, err
	}
	log, err := openLog(s.log, s.options.Shape.Namespace, s.prefix())
	if err != nil {
		return fail(err)
	}
	defer log.close()
	before, err := s.usage.read()
	if err != nil {
		return fail(err)
	}
	created, err := s.createAtRate(ctx, task)
	if err != nil {
		return fail(err)
	}
	if err := s.awaitBoundInLog(ctx, log); err != nil {
		return fail(err)
	}
	// The CPU time per pod includes the status updates until the pod runs.
	running := s.bulkOptions(s.prefix(), s.count)
	if err := bulk.AwaitPodsRunning(ctx, s.clients, s.options.Shape.Namespace, running, s.options.Timeout); err != nil {
		return fail(err)
	}
	after, err := s.usage.read()
	if err != nil {
		return fail(err)
	}
	task.Done(fmt.Sprintf("%d seen, %.0f/s", len(log.seen), created.perSecond()))
	return summarizeRate(s.rate, created, log, before, after), awaitQuiet(ctx, s.usage.controlPlane)
}

// awaitBoundInLog reads the log until the scheduler has bound all pods, or until no further pod was bound for the
// timeout.
func (s *intakeStep) awaitBoundInLog(ctx context.Context, log *logReader) error {
	progressed, before := time.Now(), 0
	for len(log.bound) < s.count && time.Since(progressed) < s.options.Timeout {
		if err := log.read(); err != nil {
			return err
		}
		if len(log.bound) != before {
			progressed, before = time.Now(), len(log.bound)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
	return nil
}
