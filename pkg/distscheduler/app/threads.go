package app

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// A mostly idle replica wakes up often for little work, and each time Go's scheduler searches
// all of its threads (Ps) for more work. With GOMAXPROCS=1 it has none to search. A replica
// that needs more than one thread gets all of them at once.
const (
	samplePeriod = time.Second
	// Fractions of a core: above busy, one thread may be too few; below idle it is enough.
	busy, idle = 0.6, 0.3
	// idleSamples is the number of consecutive idle samples before the change to one thread.
	idleSamples = 5
)

// governor decides from CPU usage whether one thread is enough.
type governor struct {
	single bool
	// quiet is the number of consecutive idle samples.
	quiet int
}

// sample takes the usage since the last sample, in cores.
func (g *governor) sample(used float64) (single bool) {
	switch {
	case used > busy:
		g.single, g.quiet = false, 0
	case used > idle:
		g.quiet = 0
	default:
		if g.quiet++; g.quiet >= idleSamples {
			g.single = true
		}
	}
	return g.single
}

// fitThreads sets GOMAXPROCS to 1 while the process uses little CPU time and to the default
// otherwise. It does nothing if the environment variable GOMAXPROCS is set.
func fitThreads(ctx context.Context, cpuTime func() time.Duration) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	g, before, at := governor{}, cpuTime(), time.Now()
	pacing.EachBeat(ctx, samplePeriod, func(context.Context) {
		now, was := cpuTime(), g.single
		used := (now - before).Seconds() / time.Since(at).Seconds()
		before, at = now, time.Now()
		switch single := g.sample(used); {
		case single && !was:
			runtime.GOMAXPROCS(1)
		case was && !single:
			runtime.SetDefaultGOMAXPROCS()
		}
	})
}
