package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// gets is a load of small GETs through a front.
type gets struct {
	c    *connections
	path string
	// rate is the number of requests per second; 0 for as many as possible with one request in flight on
	// each connection.
	rate float64
}

// getsResult is what was measured while a load ran.
type getsResult struct {
	requests  int
	perSecond float64
	// cpu is the CPU time of the front per request, and ownCPU that of this process, in microseconds.
	cpu, ownCPU float64
	p50, p99    float64 // milliseconds
	tally       *experiment.Tally
}

// run runs the load until it is warm, and then measures it for the duration d.
func (g gets) run(ctx context.Context, f *front, d time.Duration) (getsResult, error) {
	g.load(ctx, d/warmUpShare)
	cpu, err := f.cpu()
	if err != nil {
		return getsResult{}, err
	}
	own, begun := process.OwnCPUTime(), time.Now()
	load, requests := g.load(ctx, d)
	seconds := time.Since(begun).Seconds()
	own = process.OwnCPUTime() - own
	after, err := f.cpu()
	if err = errors.Join(ctx.Err(), err); err != nil {
		return getsResult{}, err
	}
	perRequest := func(used time.Duration) float64 {
		return float64(used.Nanoseconds()) / 1000 / float64(max(requests, 1))
	}
	return getsResult{
		requests: requests, perSecond: float64(requests) / seconds, cpu: perRequest(after - cpu), ownCPU: perRequest(own),
		p50: load.Latencies.Millis(50), p99: load.Latencies.Millis(99), tally: load.Tally,
	}, nil
}

// load sends requests for the duration d. It returns the load and the number of successful requests.
func (g gets) load(ctx context.Context, d time.Duration) (experiment.Load, int) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	load := experiment.Load{
		Workers: len(g.c.conns), Rate: g.rate, Kind: kindOf,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
		Do: func(ctx context.Context, _, worker int) error {
			_, err := g.c.get(ctx, worker, g.path, protobuf)
			return err
		},
	}
	return load, load.Run(ctx)
}
