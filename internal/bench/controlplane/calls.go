package controlplane

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// calls are the latencies and errors of the calls with one verb, over several loads.
type calls struct {
	verb      string
	latencies *experiment.Latencies
	tally     *experiment.Tally
}

func newCalls(verb string) *calls {
	return &calls{verb: verb, latencies: experiment.NewLatencies(), tally: experiment.NewTally(1)}
}

func (c *calls) add(l experiment.Load) {
	c.latencies.Merge(l.Latencies)
	c.tally.Merge(l.Tally)
}
