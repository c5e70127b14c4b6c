package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// climb searches for the largest number of nodes within all limits on one store. It increases the number
// in steps, and then bisects between the last two steps.
type climb struct {
	*storeRun
	options *limitsOptions
	tables  limitTables
	pods    *startups
	// nodes is the current number of nodes.
	nodes int
	// base is the usage of the empty cluster. idle is the usage with the current number of idle nodes.
	base, idle experiment.Measured
}

// finding is the result of a search.
type finding struct {
	// passed is the largest number of nodes within all limits.
	passed int
	// exceededAt is the smallest number of nodes that exceeded limits, or 0 if none did. exceeded describes
	// these limits.
	exceededAt int
	exceeded   []string
}

// run increases the number of nodes until a limit is exceeded, and then searches between that step and the
// previous one.
func (c *climb) run(ctx context.Context) (finding, error) {
	var found finding
	for _, nodes := range climbSteps(c.options.First.N, c.options.Nodes.N) {
		if err := c.tryNodes(ctx, nodes, &found); err != nil {
			return found, err
		}
		if found.exceededAt > 0 {
			return found, c.narrow(ctx, &found)
		}
	}
	return found, nil
}

// tryNodes measures the cluster with this number of nodes, and records in the finding whether limits were
// exceeded. An error counts as an exceeded limit, unless the run was interrupted.
func (c *climb) tryNodes(ctx context.Context, nodes int, found *finding) error {
	exceeded, err := c.step(ctx, nodes)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		exceeded = append(exceeded, err.Error())
	}
	if len(exceeded) > 0 {
		found.exceededAt, found.exceeded = nodes, exceeded
	} else {
		found.passed = nodes
	}
	return nil
}

// narrow bisects between the largest number of nodes within all limits and the smallest number that
// exceeds one. It stops after memory was exhausted, because processes do not return memory when nodes are
// removed.
func (c *climb) narrow(ctx context.Context, found *finding) error {
	for range c.options.Narrow.N {
		nodes := between(found.passed, found.exceededAt)
		if nodes == 0 || strings.HasPrefix(found.exceeded[0], memoryExceeded) {
			return nil
		}
		if err := c.tryNodes(ctx, nodes, found); err != nil {
			return err
		}
	}
	return nil
}

// between returns the middle of two numbers, rounded to two significant digits. It returns 0 if the search
// is complete: if exceeded is at most a quarter larger than passed, or passed is 0.
func between(passed, exceeded int) int {
	if passed == 0 || exceeded*4 <= passed*5 {
		return 0
	}
	return number.TwoDigits(float64(passed+exceeded) / 2)
}

// step changes the number of nodes, measures the idle cluster, and measures the startup of pods. It returns
// the limits that were exceeded.
func (c *climb) step(ctx context.Context, nodes int) (exceeded []string, err error) {
	before := c.idle
	made, creation, err := c.resize(ctx, nodes)
	if err != nil {
		return nil, err
	}
	var shares machineShares
	if c.idle, shares, err = c.measureIdleNodes(ctx, "nodes idle"); err != nil {
		return nil, err
	}
	window := c.Sampler.Begin(ctx)
	startup, err := c.measureStartup(ctx, nodes)
	pods := window.End(ctx)
	if err != nil {
		return nil, err
	}
	calls := experiment.JudgeCalls(pods.Calls)
	renewed := float64(countCalls(c.idle.Calls, "PUT", "leases")) / c.idle.Seconds
	due := float64(nodes) / leaseInterval.Seconds()
	exceeded = exceededLimits(renewed/due, shares, append(calls, experiment.JudgeStartup(startup)))
	c.tables.steps.Add(c.store, nodes, ifAny(made.Done, made.PerSecond), renewed, 100*renewed/due, 100*shares.own, 100*shares.idle, 100*shares.available,
		calls[0].Measured, startup.Seconds(99), strings.Join(exceeded, "; "))
	c.costs(nodes)
	leases, sample := int(renewed*c.idle.Seconds), c.options.Sample.N
	c.tables.operations.Add(c.store, nodes,
		cpuPerOperation(c.idle, c.base, apiServer, leases), cpuPerOperation(c.idle, c.base, component.Store, leases), cpuPerOperation(c.idle, c.base, c.simulator(), leases),
		cpuPerOperation(creation, before, apiServer, made.Done), cpuPerOperation(creation, before, component.Store, made.Done),
		cpuPerOperation(pods, c.idle, apiServer, sample), cpuPerOperation(pods, c.idle, component.Store, sample), cpuPerOperation(pods, c.idle, scheduler, sample))
	return exceeded, nil
}

// resize creates or deletes nodes, and waits until the cluster has settled. made is empty if nodes were
// deleted.
func (c *climb) resize(ctx context.Context, nodes int) (made bulk.Summary, creation experiment.Measured, err error) {
	have := c.nodes
	// Set the new number even if the creation fails, because then some of the nodes exist.
	c.nodes = nodes
	window := c.Sampler.Begin(ctx)
	if nodes > have {
		made, err = c.createNodes(ctx, have, nodes-have, bulk.DefaultNodeShape())
	} else {
		err = c.deleteNodes(ctx, nodes, have-nodes)
	}
	creation = window.End(ctx)
	if err != nil {
		return made, creation, err
	}
	c.mark(fmt.Sprintf("%d nodes", nodes), time.Now())
	return made, creation, c.settle(ctx)
}

// settle waits until the work that new nodes cause is complete, but for at most a minute. The work is
// complete when the idle CPU of the machine no longer increases from one Lease interval to the next. CPU
// usage that remains after a minute counts as the permanent cost of the nodes.
func (c *climb) settle(ctx context.Context) error {
	const (
		rounds      = 6
		minIncrease = 0.03 // of the idle fraction of the cores
	)
	before := 0.0
	for range rounds {
		start, err := machine.ReadState()
		if err == nil {
			err = c.wait(ctx, "nodes settle", leaseInterval)
		}
		if err != nil {
			return err
		}
		end, err := machine.ReadState()
		if err != nil {
			return err
		}
		idle := end.IdleSince(start)
		if idle > leastIdle && idle < before+minIncrease {
			return nil
		}
		before = idle
	}
	return nil
}

// cpuPerOperation returns extraCPU as a table cell. The cell is none if there were no operations or if the
// result is negative. It can be negative if all cores are busy, because every component then gets less CPU.
func cpuPerOperation(with, without experiment.Measured, role string, operations int) any {
	cost := extraCPU(with, without, role, operations)
	if cost < 0 {
		operations = 0
	}
	return ifAny(operations, cost)
}

// none is a table cell without a value.
const none = "–"

// ifAny returns the figure as a table cell, or none if count is 0.
func ifAny(count int, figure float64) any {
	if count == 0 {
		return none
	}
	return figure
}
