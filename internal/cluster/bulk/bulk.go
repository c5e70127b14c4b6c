// Package bulk creates and deletes very many objects: over several connections,
// with bounded concurrency, patient with a server that is busy, and able to go
// on where an earlier run stopped, because names follow from numbers.
package bulk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
)

// ErrIncomplete says that some objects failed for good.
var ErrIncomplete = errors.New("not every object was done")

const (
	// One object is tried this often, over about half a minute.
	maxAttempts    = 9
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 8 * time.Second

	// With this many objects failed for good, the rest would fail as well.
	maxFailures = 100
)

// Range is the numbers First to First+Count-1, which become names.
type Range struct {
	Prefix string
	First  int
	Count  int
}

// Name of the i-th object; padded so that names sort as their numbers do.
func (r Range) Name(i int) string { return fmt.Sprintf("%s%06d", r.Prefix, r.First+i) }

// Number that Name made a name of.
func (r Range) Number(name string) (number int, ok bool) {
	digits, found := strings.CutPrefix(name, r.Prefix)
	number, err := strconv.Atoi(digits)
	return number, found && err == nil && number >= 0
}

// Names of the whole range.
func (r Range) Names() sets.Set[string] {
	names := sets.New[string]()
	for i := range r.Count {
		names.Insert(r.Name(i))
	}
	return names
}

// Job does one thing to every object of a range.
type Job struct {
	Range Range
	// Skip are names that need nothing done, known beforehand.
	Skip sets.Set[string]
	// Do handles one object, once; connection says over which of the clients.
	Do func(ctx context.Context, name string, number, connection int) error
	// Moot says of an error that the object is already as wanted.
	Moot        func(error) bool
	Concurrency int
	// Progress is told how many of the range are done, now and then.
	Progress func(done int)
}

// Run does the job. It returns what was done even when it fails or ctx ends.
func Run(ctx context.Context, job Job) (Summary, error) {
	r := &run{job: job, recorder: newRecorder(job.Range.Count, time.Now())}
	ctx, r.abort = context.WithCancelCause(ctx)
	defer r.abort(nil)
	var workers sync.WaitGroup
	for worker := range min(job.Concurrency, max(job.Range.Count, 1)) {
		workers.Go(func() { r.work(ctx, worker) })
	}
	reporting, stopReporting := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { r.report(reporting) })
	workers.Wait()
	stopReporting()
	reporter.Wait()
	summary := r.recorder.summary(time.Now())
	switch {
	case ctx.Err() != nil:
		summary.Interrupted = true
		return summary, context.Cause(ctx)
	case summary.Failed > 0:
		return summary, fmt.Errorf("%w: %d failed (%s)%s", ErrIncomplete, summary.Failed, summary.FirstFailure, r.hint())
	}
	return summary, nil
}

// run is a job in progress.
type run struct {
	job      Job
	next     atomic.Int64
	abort    context.CancelCauseFunc
	recorder *recorder
	// curable says that some failure may not happen to the same command again.
	curable atomic.Bool
}

func (r *run) hint() string {
	if r.curable.Load() {
		return "; the same command again continues"
	}
	return ""
}

func (r *run) work(ctx context.Context, worker int) {
	for ctx.Err() == nil {
		number := int(r.next.Add(1)) - 1
		if number >= r.job.Range.Count {
			return
		}
		name := r.job.Range.Name(number)
		if r.job.Skip.Has(name) {
			r.recorder.skipped()
			continue
		}
		r.finish(ctx, r.try(ctx, name, number, worker))
	}
}

// try handles one object until it is done or hopeless.
func (r *run) try(ctx context.Context, name string, number, worker int) error {
	backoff := newBackoff()
	for attempt := 1; ; attempt++ {
		start := time.Now()
		err := r.job.Do(ctx, name, number, worker)
		if err == nil {
			r.recorder.latency(time.Since(start))
			return nil
		}
		if r.job.Moot(err) || ctx.Err() != nil {
			return err
		}
		r.recorder.errorSeen(ErrorKind(err))
		if attempt == maxAttempts || !worthRetrying(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(backoff.Step(), serverAsksFor(err))):
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstBackoff, Factor: 2, Jitter: 0.5, Steps: maxAttempts, Cap: longestBackoff}
}

func (r *run) finish(ctx context.Context, err error) {
	switch {
	case err == nil:
		r.recorder.done()
	case r.job.Moot(err):
		r.recorder.skipped()
	case ctx.Err() != nil:
		// Interrupted in flight: neither done nor failed.
	default:
		if worthRetrying(err) {
			r.curable.Store(true)
		}
		// Not only the one that reaches the limit: others would go on meanwhile.
		if r.recorder.failed(err) >= maxFailures {
			r.abort(fmt.Errorf("%w: gave up after %d failures (%w)%s", ErrIncomplete, maxFailures, err, r.hint()))
		}
	}
}

func (r *run) report(ctx context.Context) {
	const interval = 200 * time.Millisecond
	for {
		r.job.Progress(r.recorder.finished())
		select {
		case <-ctx.Done():
			r.job.Progress(r.recorder.finished())
			return
		case <-time.After(interval):
		}
	}
}
