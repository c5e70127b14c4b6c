package app

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestGCPercentFollowsLiveHeap(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 1 << 20: 12800, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 8 << 30: 100} {
		if got := percentFor(live); got != want {
			t.Errorf("percentFor(%d) = %d, want %d", live, got, want)
		}
	}
}

// TestKeepHeadroomSetsGCPercent checks that the percentage of the garbage collector follows the
// size of the heap, unless the environment variable GOGC is set.
func TestKeepHeadroomSetsGCPercent(t *testing.T) {
	percent := func() int {
		current := debug.SetGCPercent(100)
		debug.SetGCPercent(current)
		return current
	}
	before := percent()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "100")
	keepHeadroom()
	runtime.GC()
	time.Sleep(10 * time.Millisecond)
	if got := percent(); got != before {
		t.Fatalf("the percentage with GOGC=100 is %d, want %d as before", got, before)
	}
	t.Setenv("GOGC", "")
	keepHeadroom()
	awaitPercent := func(heap, want string, matches func(int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !matches(percent()); {
			if time.Now().After(deadline) {
				t.Fatalf("the percentage with a %s heap is %d after 10 s, want %s", heap, percent(), want)
			}
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}
	awaitPercent("small", "more than 400", func(p int) bool { return p > 400 })
	large := make([]byte, 2*headroom)
	awaitPercent("large", "the default", func(p int) bool { return p == defaultPercent })
	runtime.KeepAlive(large)
	awaitPercent("small", "more than 400", func(p int) bool { return p > 400 })
}
