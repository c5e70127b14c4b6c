package app

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// A replica that has little to do is woken up often for little, and each time Go's
// scheduler looks on all of its threads for more. With one thread there is nowhere to
// look. A replica that could use a second one gets them all at once.
const (
	watchLoad = time.Second
	// Of a core: above busy one thread may be too few, below idle it is enough.
	busy, idle = 0.6, 0.3
	// So many looks in a row have to find it idle.
	idleLooks = 5
)

// governor says whether one thread is enough, by what the process used of a core.
type governor struct {
	single bool
	quiet  int
}

// look takes what was used since the last look.
func (g *governor) look(used float64) (single bool) {
	switch {
	case used > busy:
		g.single, g.quiet = false, 0
	case used > idle:
		g.quiet = 0
	default:
		if g.quiet++; g.quiet >= idleLooks {
			g.single = true
		}
	}
	return g.single
}

// fitThreads has the process use one thread while that is enough, by the CPU time that it
// has used, unless GOMAXPROCS says how many.
func fitThreads(ctx context.Context, cpuTime func() time.Duration) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	g, before, at := governor{}, cpuTime(), time.Now()
	pacing.EachBeat(ctx, watchLoad, func(context.Context) {
		now, was := cpuTime(), g.single
		used := (now - before).Seconds() / time.Since(at).Seconds()
		before, at = now, time.Now()
		switch single := g.look(used); {
		case single && !was:
			runtime.GOMAXPROCS(1)
		case was && !single:
			runtime.SetDefaultGOMAXPROCS()
		}
	})
}
