package app

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentForHeaps(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 1 << 20: 12800, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 8 << 30: 100} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d, want %d", live, got, want)
		}
	}
}

// TestHeadroomIsKept checks that GOGC follows the size of the heap, unless GOGC is set.
func TestHeadroomIsKept(t *testing.T) {
	percent := func() int {
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	before := percent()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "100")
	keepHeadroom()
	runtime.GC()
	time.Sleep(10 * time.Millisecond)
	if got := percent(); got != before {
		t.Fatalf("the percentage is %d although GOGC is set", got)
	}
	t.Setenv("GOGC", "")
	keepHeadroom()
	settle := func(what string, is func(int) bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !is(percent()); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d", what, percent())
			}
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}
	settle("a small heap", func(p int) bool { return p > 400 })
	large := make([]byte, 2*headroom)
	settle("a large heap", func(p int) bool { return p == defaultPercent })
	runtime.KeepAlive(large)
	settle("a small heap again", func(p int) bool { return p > 400 })
}
