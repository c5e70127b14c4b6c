// Package pacing makes all replicas do periodic work at the same instants, called beats. Waking up a mostly
// idle process costs more CPU than the work itself, so several pieces of work at one beat are cheaper than
// the same work at different times.
package pacing

import (
	"context"
	"time"
)

// Interval is the time between two beats for messages between replicas and for reads from
// paced connections.
const Interval = 50 * time.Millisecond

// Beat returns the first multiple of the period after now. It is the same instant in all processes of a
// machine, and about the same instant on other machines.
func Beat(now time.Time, period time.Duration) time.Time { return now.Truncate(period).Add(period) }

// EachBeat calls f immediately and then at each beat, until the context ends.
func EachBeat(ctx context.Context, period time.Duration, f func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		f(ctx)
		timer.Reset(time.Until(Beat(time.Now(), period)))
	}
}
