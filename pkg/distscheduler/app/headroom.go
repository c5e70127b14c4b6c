package app

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Go collects garbage when there is as much of it as there are live objects. A replica
// with a small share of the nodes collects so often for little that it shows in what a
// pod costs, so there may be this much garbage in any case. Large heaps are collected as
// ever, and so are all where GOGC says how.
const (
	headroom       = 128 << 20
	defaultPercent = 100
	liveHeap       = "/gc/heap/live:bytes"
)

// percentFor is what GOGC has to be for a live heap of so many bytes.
func percentFor(live uint64) int {
	if live == 0 {
		return defaultPercent
	}
	return max(defaultPercent, int(headroom*100/live))
}

// keepHeadroom sets the collector after each collection, without a clock that would wake
// the process up.
func keepHeadroom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	set := defaultPercent
	var watch func()
	watch = func() {
		// An object that nobody has is finalized after the next collection.
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

// differs says whether a change is worth the pause that it takes.
func differs(want, set int) bool { return want*10 > set*11 || want*11 < set*10 }
