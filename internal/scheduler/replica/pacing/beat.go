// Package pacing makes periodic work of all replicas happen at the same instants, called
// beats. Waking up a mostly idle process costs more CPU than the work itself, so work that
// falls on one beat is cheaper than the same work spread over time.
package pacing

import (
	"context"
	"time"
)

// Interval is the time between two beats for messages between replicas and for reads from
// paced connections.
const Interval = 50 * time.Millisecond

// Beat returns the next multiple of the period after now. It is the same instant in all
// processes of a machine, and about the same on other machines.
func Beat(now time.Time, period time.Duration) time.Time { return now.Truncate(period).Add(period) }

// EachBeat calls f at once and then at each beat, until the context ends.
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
