package app

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestGovernorWantsOneThreadWhenIdle feeds samples of used cores to a governor, which decides after
// several idle samples in a row that one thread is sufficient.
func TestGovernorWantsOneThreadWhenIdle(t *testing.T) {
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
			t.Errorf("sample(%.1f) in step %d = %v, want %v", step.used, i, got, step.single)
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
	awaitThreads := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(3 * time.Minute); runtime.GOMAXPROCS(0) != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("GOMAXPROCS = %d after 30 s, want %d", runtime.GOMAXPROCS(0), want)
			}
		}
	}
	awaitThreads(1)
	now := time.Now()
	busySince.Store(&now)
	awaitThreads(all)
}
