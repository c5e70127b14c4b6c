package experiment

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Load executes an operation repeatedly in several workers.
type Load struct {
	Workers int
	// Rate is the number of operations that all workers together start per second; 0 means as fast as
	// possible. With a rate, the latency of an operation counts from its scheduled start, so that it
	// includes the time for which earlier operations delayed it.
	Rate float64
	// Count is the number of operations; 0 means that operations are started until ctx ends.
	Count int
	// Do executes the operation with this number, counted from 0.
	Do func(ctx context.Context, number, worker int) error
	// Kind classifies an error. If it returns "", the operation counts as successful.
	Kind func(error) string

	Latencies *Latencies
	Tally     *Tally
	// Progress, if not nil, is called with the number of operations that have succeeded so far.
	Progress func(done int)
}

// Run executes the operations until the count is reached or ctx ends, and returns the number that
// succeeded.
func (l Load) Run(ctx context.Context) int {
	var next, done atomic.Int64
	begun := time.Now()
	var workers sync.WaitGroup
	for worker := range l.Workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				number := int(next.Add(1)) - 1
				if l.Count > 0 && number >= l.Count {
					return
				}
				due, ok := l.await(ctx, begun, number)
				if !ok {
					return
				}
				if l.execute(ctx, due, number, worker) {
					if n := done.Add(1); l.Progress != nil {
						l.Progress(int(n))
					}
				}
			}
		})
	}
	workers.Wait()
	return int(done.Load())
}

// await blocks until the scheduled start of an operation.
func (l Load) await(ctx context.Context, begun time.Time, number int) (due time.Time, ok bool) {
	if l.Rate <= 0 {
		return time.Now(), true
	}
	due = begun.Add(time.Duration(float64(number) / l.Rate * float64(time.Second)))
	select {
	case <-ctx.Done():
		return due, false
	case <-time.After(time.Until(due)):
		return due, true
	}
}

// execute executes one operation, counts it, and reports whether it succeeded.
func (l Load) execute(ctx context.Context, due time.Time, number, worker int) bool {
	err := l.Do(ctx, number, worker)
	if err != nil && ctx.Err() != nil {
		return false // interrupted: neither succeeded nor failed
	}
	kind := ""
	if err != nil {
		if kind = l.Kind(err); kind == "" {
			err = nil
		}
	}
	l.Tally.Add(kind, err)
	if err != nil {
		return false
	}
	l.Latencies.Record(time.Since(due))
	return true
}
