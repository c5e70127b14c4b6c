package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const pollInterval = 100 * time.Millisecond

// Await waits until done returns the wanted number, and shows the progress. It returns an error if the number
// does not change for the timeout.
func (r *Run) Await(ctx context.Context, what string, wanted int, timeout time.Duration, done func() int) error {
	task := r.Display.Task(what, wanted)
	changed, before := time.Now(), -1
	for {
		now := done()
		task.Set(now)
		if now >= wanted {
			task.Done(fmt.Sprint(now))
			return nil
		}
		if now != before {
			changed, before = time.Now(), now
		}
		if time.Since(changed) > timeout {
			task.Fail(fmt.Sprintf("%d of %d", now, wanted))
			return fmt.Errorf("%s: %w for %s at %d of %d", what, bulk.ErrStalled, timeout, now, wanted)
		}
		select {
		case <-ctx.Done():
			task.Interrupt()
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// Sleep waits for a duration, or until ctx ends; then it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
