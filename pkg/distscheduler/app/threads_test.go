package app

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestGovernor(t *testing.T) {
	g := governor{}
	for i, step := range []struct {
		used   float64
		single bool
	}{
		{0.9, false}, {0.1, false}, {0.1, false}, {0.1, false}, {0.1, false}, {0.1, true}, // five idle samples
		{0.5, true}, {0.7, false}, // busy
		{0.1, false}, {0.1, false}, {0.1, false}, {0.1, false}, {0.4, false}, {0.1, false}, // interrupted
	} {
		if got := g.sample(step.used); got != step.single {
			t.Errorf("sample %d with %.1f cores: %v", i, step.used, got)
		}
	}
}

// TestThreadsFollowTheLoad simulates a process that uses no CPU and then one core.
func TestThreadsFollowTheLoad(t *testing.T) {
	all := runtime.GOMAXPROCS(0)
	if all == 1 {
		t.Skip("this machine has one CPU")
	}
	t.Cleanup(runtime.SetDefaultGOMAXPROCS)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	t.Setenv("GOMAXPROCS", "")
	var busySince atomic.Pointer[time.Time]
	go fitThreads(ctx, func() time.Duration {
		if since := busySince.Load(); since != nil {
			return time.Since(*since)
		}
		return 0
	})
	settle := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); runtime.GOMAXPROCS(0) != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d threads, want %d", runtime.GOMAXPROCS(0), want)
			}
		}
	}
	settle(1)
	now := time.Now()
	busySince.Store(&now)
	settle(all)
}
