// Package reload reads files of a running gateway again.
package reload

import (
	"context"
	"time"
)

// Every calls read after each interval until ctx ends. Of errors that follow each other, it reports the first one.
func Every(ctx context.Context, interval time.Duration, read func() error, report func(error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := read()
		if err != nil && !failing {
			report(err)
		}
		failing = err != nil
	}
}
