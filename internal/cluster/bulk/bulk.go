// Package bulk creates and deletes large numbers of nodes and pods, and waits for them.
//
// A [Range] derives the names of the objects from numbers. A repeated command therefore skips the objects
// that an interrupted run has already handled. [Run] performs a [Job] for every object of a range, with
// bounded concurrency and with retries, and returns a [Summary]. [Clients] spread the requests over
// several connections. [CreateNodes], [CreatePods], [AwaitNodesReady] and similar functions use these.
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

// ErrIncomplete means that some objects failed: with an error that is not transient, or in all of
// maxAttempts attempts.
var ErrIncomplete = errors.New("some objects failed")

const (
	// The backoffs of all attempts for one object add up to about half a minute.
	maxAttempts  = 9
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 8 * time.Second

	// maxFailures is the number of failed objects after which a run is aborted, because the other
	// objects would probably fail too.
	maxFailures = 100
)

// Range is a range of object names: Prefix followed by the numbers First to First+Count-1.
type Range struct {
	Prefix string
	First  int
	Count  int
}

// Name returns the name of the i-th object, counted from 0. Numbers are zero-padded to six digits, so that
// names sort in numeric order.
func (r Range) Name(i int) string { return fmt.Sprintf("%s%06d", r.Prefix, r.First+i) }

// Number returns the number in a name, which need not be in the range. ok is false if the
// name does not consist of the prefix and a number.
func (r Range) Number(name string) (number int, ok bool) {
	digits, found := strings.CutPrefix(name, r.Prefix)
	number, err := strconv.Atoi(digits)
	return number, found && err == nil && number >= 0
}

// Index returns the i for which Name returns name. ok is false if the name is not in the range.
func (r Range) Index(name string) (i int, ok bool) {
	number, ok := r.Number(name)
	i = number - r.First
	if !ok || i < 0 || i >= r.Count || r.Name(i) != name {
		return 0, false
	}
	return i, true
}

// Job is an operation on every object of a range.
type Job struct {
	Range Range
	// Skip contains the names of objects that are already in the wanted state.
	Skip sets.Set[string]
	// Do makes one attempt for one object. number is the object's index in the range. connection is
	// the index of the [Clients] connection to use.
	Do func(ctx context.Context, name string, number, connection int) error
	// AlreadyDone reports whether an error of Do means that the object is already in the wanted
	// state.
	AlreadyDone func(error) bool
	Concurrency int // number of workers, each with one request at a time
	// Progress is called several times per second with the number of handled objects.
	Progress func(done int)
}

// Run performs the job. It returns a summary even if it fails or ctx is cancelled.
func Run(ctx context.Context, job Job) (Summary, error) {
	r := &run{job: job, statistics: newStatistics(job.Range.Count, time.Now())}
	ctx, r.abort = context.WithCancelCause(ctx)
	defer r.abort(nil)
	var workers sync.WaitGroup
	for worker := range min(job.Concurrency, max(job.Range.Count, 1)) {
		workers.Go(func() { r.work(ctx, worker) })
	}
	reportContext, stopReporting := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { r.reportProgress(reportContext) })
	workers.Wait()
	stopReporting()
	reporter.Wait()
	summary := r.statistics.summary(time.Now())
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
	job        Job
	next       atomic.Int64 // index of the next object
	abort      context.CancelCauseFunc
	statistics *statistics
	// retryable is true if an object failed with a transient error, so that repeating the command may
	// succeed.
	retryable atomic.Bool
}

// hint returns the remedy for failed objects, as the end of an error text.
func (r *run) hint() string {
	if r.retryable.Load() {
		return "; repeat the command to continue"
	}
	return ""
}

// work handles objects until none is left or ctx is done.
func (r *run) work(ctx context.Context, worker int) {
	for ctx.Err() == nil {
		number := int(r.next.Add(1)) - 1
		if number >= r.job.Range.Count {
			return
		}
		name := r.job.Range.Name(number)
		if r.job.Skip.Has(name) {
			r.statistics.skipped()
			continue
		}
		r.record(ctx, r.attempt(ctx, name, number, worker))
	}
}

// attempt makes attempts for one object until one succeeds or retrying is useless.
func (r *run) attempt(ctx context.Context, name string, number, worker int) error {
	backoff := newBackoff()
	for attempt := 1; ; attempt++ {
		start := time.Now()
		err := r.job.Do(ctx, name, number, worker)
		if err == nil {
			r.statistics.latency(time.Since(start))
			return nil
		}
		if r.job.AlreadyDone(err) || ctx.Err() != nil {
			return err
		}
		r.statistics.countError(ErrorKind(err))
		if attempt == maxAttempts || !isRetryable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(backoff.Step(), retryAfter(err))):
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstBackoff, Factor: 2, Jitter: 0.5, Steps: maxAttempts, Cap: maxBackoff}
}

// record counts the result for one object, and aborts the run after maxFailures failures.
func (r *run) record(ctx context.Context, err error) {
	switch {
	case err == nil:
		r.statistics.done()
	case r.job.AlreadyDone(err):
		r.statistics.skipped()
	case ctx.Err() != nil:
		// The attempt was cancelled, so the object is neither done nor failed.
	default:
		if isRetryable(err) {
			r.retryable.Store(true)
		}
		// Several workers can exceed the limit at the same time. Only the first call of abort has an
		// effect.
		if r.statistics.failed(err) >= maxFailures {
			r.abort(fmt.Errorf("%w: gave up after %d failures (%w)%s", ErrIncomplete, maxFailures, err, r.hint()))
		}
	}
}

func (r *run) reportProgress(ctx context.Context) {
	const interval = 200 * time.Millisecond
	for {
		r.job.Progress(r.statistics.finished())
		select {
		case <-ctx.Done():
			r.job.Progress(r.statistics.finished())
			return
		case <-time.After(interval):
		}
	}
}
