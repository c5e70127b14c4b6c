package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// climb is the way up on one store, and back to where it held.
type climb struct {
	*turn
	options *limitsOptions
	tables  limitTables
	pods    *startups
	// nodes that there are.
	nodes int
	// base is what the empty cluster takes, idle what it takes with these nodes.
	base, idle experiment.Measured
}

// finding is between which numbers of nodes something gives, and what.
type finding struct {
	held int
	// gaveAt is 0 if nothing gave.
	gaveAt int
	gave   []string
}

// run goes up until something gives, then looks between that and what held.
func (c *climb) run(ctx context.Context) (finding, error) {
	var found finding
	for _, nodes := range climbSteps(c.options.First.N, c.options.Nodes.N) {
		if err := c.try(ctx, nodes, &found); err != nil {
			return found, err
		}
		if found.gaveAt > 0 {
			return found, c.narrow(ctx, &found)
		}
	}
	return found, nil
}

// try a number of nodes. That it fails is something that gave, unless the run was ended.
func (c *climb) try(ctx context.Context, nodes int, found *finding) error {
	gave, err := c.step(ctx, nodes)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		gave = append(gave, err.Error())
	}
	if len(gave) > 0 {
		found.gaveAt, found.gave = nodes, gave
	} else {
		found.held = nodes
	}
	return nil
}

// narrow halves what is between the nodes that held and those at which something gave, until
// that is not worth another step. Memory that gave does not come back with the nodes gone, so
// nothing is looked for then.
func (c *climb) narrow(ctx context.Context, found *finding) error {
	for range c.options.Narrow.N {
		nodes := between(found.held, found.gaveAt)
		if nodes == 0 || strings.HasPrefix(found.gave[0], memoryGave) {
			return nil
		}
		if err := c.try(ctx, nodes, found); err != nil {
			return err
		}
	}
	return nil
}

// between two numbers, to two digits; 0 if they are a quarter apart or less.
func between(held, gave int) int {
	if held == 0 || gave*4 <= held*5 {
		return 0
	}
	return number.TwoDigits(float64(held+gave) / 2)
}

// step goes to so many nodes, lets them be idle, and starts pods. What gave is not an error.
func (c *climb) step(ctx context.Context, nodes int) (gave []string, err error) {
	before := c.idle
	made, creation, err := c.resize(ctx, nodes)
	if err != nil {
		return nil, err
	}
	var free freeShares
	if c.idle, free, err = c.hold(ctx, "nodes idle"); err != nil {
		return nil, err
	}
	starting := c.Sampler.Begin(ctx)
	theirs, err := c.start(ctx, nodes)
	pods := starting.End(ctx)
	if err != nil {
		return nil, err
	}
	calls := experiment.JudgeCalls(pods.Calls)
	renewed := float64(countCalls(c.idle.Calls, "PUT", "leases")) / c.idle.Seconds
	due := float64(nodes) / leaseInterval.Seconds()
	gave = whatGave(renewed/due, free, append(calls, experiment.JudgeStartup(theirs)))
	c.tables.steps.Add(c.store, nodes, ifAny(made.Done, made.PerSecond), renewed, 100*renewed/due, 100*free.own, 100*free.idle, 100*free.available,
		calls[0].Measured, theirs.Seconds(99), strings.Join(gave, "; "))
	c.costs(nodes)
	leases, sample := int(renewed*c.idle.Seconds), c.options.Sample.N
	c.tables.operations.Add(c.store, nodes,
		told(c.idle, c.base, apiServer, leases), told(c.idle, c.base, component.Store, leases), told(c.idle, c.base, component.Kwok, leases),
		told(creation, before, apiServer, made.Done), told(creation, before, component.Store, made.Done),
		told(pods, c.idle, apiServer, sample), told(pods, c.idle, component.Store, sample), told(pods, c.idle, scheduler, sample))
	return gave, nil
}

// resize makes or removes nodes, and waits until that is over. Made are none if it removed some.
func (c *climb) resize(ctx context.Context, nodes int) (made bulk.Summary, creation experiment.Measured, err error) {
	have := c.nodes
	// Those that it does not come to make are there in part.
	c.nodes = nodes
	changing := c.Sampler.Begin(ctx)
	if nodes > have {
		made, err = c.createNodes(ctx, have, nodes-have, bulk.DefaultNodeShape())
	} else {
		err = c.deleteNodes(ctx, nodes, have-nodes)
	}
	creation = changing.End(ctx)
	if err != nil {
		return made, creation, err
	}
	c.mark(fmt.Sprintf("%d nodes", nodes), time.Now())
	return made, creation, c.settle(ctx)
}

// settle waits until what new nodes leave to do is over: as long as the machine has more and
// more time left from one round of Leases to the next, and, if it has none, for a minute: what
// has no end by then is what the nodes take.
func (c *climb) settle(ctx context.Context) error {
	const (
		rounds = 6
		same   = 0.03
	)
	before := 0.0
	for range rounds {
		start, err := readMachine()
		if err == nil {
			err = c.wait(ctx, "nodes settle", leaseInterval)
		}
		if err != nil {
			return err
		}
		end, err := readMachine()
		if err != nil {
			return err
		}
		idle := end.idleSince(start)
		if idle > leastIdle && idle < before+same {
			return nil
		}
		before = idle
	}
	return nil
}

// told is the CPU of an operation for a table: beyond, unless there was none, or noise hides
// it: where both cores are full the rest of the cluster gets less, and a cost seems negative.
func told(with, without experiment.Measured, role string, operations int) any {
	cost := beyond(with, without, role, operations)
	if cost < 0 {
		operations = 0
	}
	return ifAny(operations, cost)
}

// none stands in a table for a figure that there is none of.
const none = "–"

// ifAny is a figure for a table, unless it is of nothing.
func ifAny(count int, figure float64) any {
	if count == 0 {
		return none
	}
	return figure
}
