package process

import (
	"context"
	"time"
)

const (
	// The memory is stable if it changes by at most 0.1 % within this time.
	settleInterval = time.Second
	settleTimeout  = 30 * time.Second
)

// SettledMemory waits until the resident memory of the process is stable, but for at most 30 s, and returns
// it in bytes.
func (id Identity) SettledMemory(ctx context.Context) (int64, error) {
	before, err := id.Usage()
	for deadline := time.Now().Add(settleTimeout); err == nil && time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleInterval):
		}
		var now Usage
		now, err = id.Usage()
		if change := now.Resident - before.Resident; max(change, -change) <= now.Resident/1000 {
			return now.Resident, err
		}
		before = now
	}
	return before.Resident, err
}
