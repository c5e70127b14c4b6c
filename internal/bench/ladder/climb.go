package ladder

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// climbNodes are the numbers of nodes that are tried, below that of the rung.
var climbNodes = []int{5000, 10_000, 20_000, 30_000, 50_000, 75_000}

// climbSteps returns the numbers of nodes to try, up to most.
func climbSteps(most int) []int {
	steps := slices.DeleteFunc(slices.Clone(climbNodes), func(nodes int) bool { return nodes >= most })
	return append(steps, most)
}

// climb looks for the largest number of nodes that holds. It holds each step for a short time until one does not hold,
// and then measures the largest completely; if that does not hold, the one below, and so on.
func (r *run) climb(ctx context.Context, g rung, keep bool) error {
	steps := climbSteps(g.nodes)
	top := len(steps) - 1
	for i, nodes := range steps[:len(steps)-1] {
		reason, err := r.try(ctx, g.with(nodes))
		if err != nil {
			return err
		}
		if reason != "" {
			r.tables.limits.Add(g.with(nodes).title(), "step does not hold", "", reason)
			top = i - 1
			break
		}
	}
	largest := 0
	for i := top; i >= 0 && largest == 0; i-- {
		holds, err := r.measure(ctx, g.with(steps[i]), keep)
		if err != nil {
			return err
		}
		if holds {
			largest = steps[i]
		}
	}
	limits := verdict{name: "largest number of nodes that holds, must", unit: "nodes", measured: float64(largest), limit: float64(g.mustNodes), atLeast: true, must: true, operations: len(steps)}
	aims := limits
	aims.name, aims.limit, aims.must = "largest number of nodes that holds, aim", float64(g.nodes), false
	// These verdicts are those of the whole rung.
	g.climbs = false
	r.verdict(g, limits)
	r.verdict(g, aims)
	return nil
}

// with returns the rung with another number of nodes.
func (g rung) with(nodes int) rung {
	g.nodes = nodes
	return g
}

// try holds a cluster for a short time. It returns the reason if the step does not hold; the error is that of an
// interrupted run.
func (r *run) try(ctx context.Context, g rung) (reason string, err error) {
	s, err := r.open(ctx, g)
	if ctx.Err() != nil {
		return "", errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return err.Error(), nil
	}
	defer func() { err = errors.Join(err, s.close(false)) }()
	h, err := s.hold(ctx, r.options.StepHold.D)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return err.Error(), nil
	}
	s.addHeld(h)
	return s.tooMany(h), nil
}

// tooMany says why so many nodes do not hold; "" if they do.
func (s *step) tooMany(h held) string {
	nodes := s.rung.nodes
	switch arrived := s.arrivedShare(h); {
	case h.broken != "":
		return h.broken
	case h.becameNotReady() > 0 || h.readiness.ready < nodes:
		return fmt.Sprintf("%d nodes became NotReady, %d of %d are Ready at the end", h.becameNotReady(), h.readiness.ready, nodes)
	case arrived < mustArrive:
		return fmt.Sprintf("%.0f %% of the due heartbeats arrived", 100*arrived)
	case float64(h.leastRenewed) < mustInTime*float64(nodes):
		return fmt.Sprintf("%d of %d Leases were renewed in time", h.leastRenewed, nodes)
	}
	return ""
}
