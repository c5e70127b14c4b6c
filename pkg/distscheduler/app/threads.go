package app

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// A mostly idle replica wakes up often for little work. Each time, Go's scheduler searches the run queues of all
// its processors (Ps) for more work. With GOMAXPROCS=1 there is only one, so the search costs nothing. A replica
// that uses more CPU time gets the default GOMAXPROCS.
const (
	samplePeriod = time.Second
	// Fractions of a core: above busy, one P may be too few; at most idle, one is enough.
	busy, idle = 0.6, 0.3
	// idleSamples is the number of consecutive idle samples after which GOMAXPROCS is set to 1.
	idleSamples = 5
)

// governor decides from the CPU usage whether GOMAXPROCS=1 is enough.
type governor struct {
	// single is the current decision.
	single bool
	// quiet is the number of consecutive idle samples.
	quiet int
}

// sample returns the decision after a sample. used is the CPU usage since the last sample, in cores.
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

// fitThreads sets GOMAXPROCS to 1 while the process uses little CPU time, and to the default otherwise, until the
// context ends. It does nothing if the environment variable GOMAXPROCS is set.
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
