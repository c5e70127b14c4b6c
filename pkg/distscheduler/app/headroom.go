package app

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// By default, Go starts a garbage collection when the heap has doubled. A replica with few nodes has a small
// heap, so it would collect often, which increases the CPU time per pod. Therefore at least headroom bytes of
// garbage are allowed. This has no effect on large heaps, or if GOGC is set.
const (
	headroom       = 128 << 20
	defaultPercent = 100
	liveHeap       = "/gc/heap/live:bytes"
)

// percentFor returns the GOGC percentage for a live heap of live bytes.
func percentFor(live uint64) int {
	if live == 0 {
		return defaultPercent
	}
	return max(defaultPercent, int(headroom*100/live))
}

// keepHeadroom adjusts GOGC after each garbage collection. It uses no timer, because a timer would wake up the
// process.
func keepHeadroom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	set := defaultPercent
	var watch func()
	watch = func() {
		// The finalizer of an unreachable object runs after the next collection.
		runtime.SetFinalizer(&struct{ self *int }{}, func(any) {
			sample := []metrics.Sample{{Name: liveHeap}}
			metrics.Read(sample)
			if want := percentFor(sample[0].Value.Uint64()); differs(want, set) {
				debug.SetGCPercent(want)
				set = want
			}
			watch()
		})
	}
	watch()
}

// differs reports whether two percentages differ by more than 10 %. A smaller change does not justify the pause
// that SetGCPercent causes.
func differs(want, set int) bool { return want*10 > set*11 || want*11 < set*10 }
