package wire

import (
	"context"
	"time"
)

// Beat is the next time at which all that happens each so often does, in all replicas of a
// machine, and about so in others: to wake up is what most of it costs, and who wakes up
// for several things at once pays once.
func Beat(now time.Time, every time.Duration) time.Time { return now.Truncate(every).Add(every) }

// EachBeat calls a function at each beat, until the context ends.
func EachBeat(ctx context.Context, every time.Duration, f func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		f(ctx)
		timer.Reset(time.Until(Beat(time.Now(), every)))
	}
}
