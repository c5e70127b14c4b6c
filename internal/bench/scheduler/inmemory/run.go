package inmemory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// feedAhead is the maximum number of pods that wait for a decision. It is large enough that the scheduler
// never waits for pods, and small enough that the memory of these pods is negligible.
const feedAhead = 10_000

// ErrInterrupted means that the run was interrupted. The result that is returned with it is partial.
var ErrInterrupted = errors.New("interrupted; the result is partial")

// Run schedules the pods and checks a sample of the decisions.
func Run(ctx context.Context, o Options, display progress.Display) (Result, error) {
	result, err := run(ctx, o, display)
	if ctx.Err() != nil {
		return result, ErrInterrupted
	}
	return result, err
}

func run(ctx context.Context, o Options, display progress.Display) (Result, error) {
	checks, err := o.checkCount()
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := newHarness(ctx, o)
	if err != nil {
		return Result{}, err
	}
	result := newResult(o)
	w, err := h.prepare(o, display, &result)
	if err != nil {
		return result, err
	}
	if err := h.measure(ctx, o, w, display, &result); err != nil {
		return result, err
	}
	result.OversubscribedNodes = countOvercommitted(w, h.decided)
	return result, h.check(ctx, o, w, checks, display, &result)
}

// prepare creates the workload, and delivers its nodes and existing pods to the scheduler.
func (h *harness) prepare(o Options, display progress.Display, result *Result) (*workload, error) {
	task := display.Task("nodes loaded", o.Nodes)
	started := time.Now()
	w := newWorkload(o)
	err := h.load(w, throttle(task.Set))
	result.LoadSeconds = time.Since(started).Seconds()
	if err != nil {
		task.Fail(err.Error())
		return nil, fmt.Errorf("loading the cluster: %w", err)
	}
	task.Done(fmt.Sprint(o.Nodes))
	runtime.GC() // the measurement must not include the garbage of loading
	return w, nil
}

// measure runs the scheduler until every pod is bound or found unschedulable, and sets the result.
func (h *harness) measure(ctx context.Context, o Options, w *workload, display progress.Display, result *Result) error {
	task := display.Task("pods scheduled", o.Pods)
	before := fallbacks()
	start := readMeter()
	err := o.withProfiles(func() error { return h.schedule(ctx, o, w, task) })
	result.fill(h, start, readMeter())
	result.Fallbacks = since(before, fallbacks())
	if err != nil {
		progress.Fail(ctx, task, fmt.Sprintf("%d bound", h.ledger.bound))
		return err
	}
	task.Done(fmt.Sprintf("%d, %.0f/s", h.ledger.bound, result.PodsPerSecond))
	return nil
}

// schedule starts the scheduler, delivers the pods, and stops the scheduler after the last decision.
func (h *harness) schedule(ctx context.Context, o Options, w *workload, task progress.Task) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	h.sched.SchedulingQueue.Run(h.logger)
	all.Go(func() { wait.UntilWithContext(running, h.sched.ScheduleOne, 0) })
	all.Go(func() {
		if err := h.confirmAll(running, o, throttle(task.Set)); err != nil {
			stop(err)
		}
	})
	for number := 0; number < o.Pods && running.Err() == nil; number++ {
		h.ledger.awaitRoom(running, feedAhead)
		h.ledger.addSubmitted()
		if err := h.deliver(running, w.pod(number)); err != nil {
			stop(err)
		}
	}
	h.ledger.awaitRoom(running, 1)
	cause := context.Cause(running)
	stop(nil)
	h.sched.SchedulingQueue.Close()
	all.Wait()
	if cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("scheduling: %w", cause)
	}
	return ctx.Err()
}

// confirmAll delivers bound pods to the scheduler until ctx ends.
func (h *harness) confirmAll(ctx context.Context, o Options, progress func(int)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case pod := <-h.bound:
			if err := h.confirm(pod); err != nil {
				return err
			}
			h.ledger.addBound(pod.UID)
			progress(h.ledger.decidedPods())
		}
	}
}

// throttle returns a function that calls set at most ten times per second, because a display is slower than
// a scheduler.
func throttle(set func(int)) func(int) {
	const interval = 100 * time.Millisecond
	var last time.Time
	return func(done int) {
		if now := time.Now(); now.Sub(last) > interval {
			last = now
			set(done)
		}
	}
}
