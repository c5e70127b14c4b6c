package experiment

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Load does one thing again and again, from many workers.
type Load struct {
	Workers int
	// Rate is how many a second are begun, over all workers; 0 is as many as they manage.
	// With a rate a latency counts from when the operation was due: one that has to wait
	// for others that are slow is slow as well.
	Rate float64
	// Count ends the load after so many; 0 goes on until ctx ends.
	Count int
	// Do one of them, once. Its number counts from 0.
	Do func(ctx context.Context, number, worker int) error
	// Kind names an error; one without a name does not count.
	Kind func(error) string

	Latencies *Latencies
	Tally     *Tally
	// Progress is told how many were done, if it is set.
	Progress func(done int)
}

// Run works until the count is reached or ctx ends, and returns how many succeeded.
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
				if l.one(ctx, due, number, worker) {
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

// await the moment at which an operation is due.
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

func (l Load) one(ctx context.Context, due time.Time, number, worker int) bool {
	err := l.Do(ctx, number, worker)
	if err != nil && ctx.Err() != nil {
		return false // interrupted in flight: neither done nor failed
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
