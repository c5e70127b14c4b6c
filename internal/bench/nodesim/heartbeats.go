package nodesim

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// kwokInterval is the time between two renewals of a Lease by kwok, a quarter of the duration with which k1m starts it.
const kwokInterval = 10 * time.Second

// heartbeatCost is what was measured while nodes renewed their Leases.
type heartbeatCost struct {
	sent, failed float64
	seconds      float64
	cores        float64
	memory       float64 // of the process, in bytes
	nodes        int
	p50, p99     float64 // milliseconds; 0 for kwok, which does not measure them
}

// perHeartbeat returns the CPU time for a heartbeat in microseconds. It contains everything that the program does
// meanwhile: reports of the status of nodes, and watches.
func (c heartbeatCost) perHeartbeat() float64 { return 1e6 * c.cores * c.seconds / max(c.sent, 1) }

// perNode returns the memory of the process for a node in KiB.
func (c heartbeatCost) perNode() float64 { return c.memory / kibibyte / float64(max(c.nodes, 1)) }

// heartbeats measures the row heartbeats.
func (b *bench) heartbeats(ctx context.Context) error {
	table := b.Result.Table("Heartbeats", "nodes of", "nodes", "interval, s", "heartbeats, /s", "failed", "CPU for a heartbeat, µs", "cores",
		"memory, MiB", "memory for a node, KiB", "p50, ms", "p99, ms")
	costs := map[contender]heartbeatCost{} // the last of each contender
	for _, c := range contenders {
		nodes, intervals := b.options.nodesOf(c), b.options.Intervals
		if c == kwok {
			intervals = []time.Duration{kwokInterval}
		}
		for _, interval := range intervals {
			cost, err := b.measureHeartbeats(ctx, c, nodes, interval)
			if err != nil {
				return err
			}
			costs[c] = cost
			table.Add(c.String(), nodes, interval.Seconds(), cost.sent/cost.seconds, cost.failed, cost.perHeartbeat(), cost.cores,
				cost.memory/mebibyte, cost.perNode(), cost.p50, cost.p99)
			b.judgeHeartbeats(c, interval, cost)
		}
	}
	for _, c := range contenders {
		if c != kwok {
			b.Result.Compare(c.String(), kwok.String(), costs[c].figures(), costs[kwok].figures())
		}
	}
	b.Result.Note("CPU for a heartbeat is the CPU time of the process divided by the renewals that were answered with success. " +
		"Memory of a node is the resident memory of the process divided by the nodes.")
	return nil
}

// nodesOf returns the number of nodes of a contender.
func (o *options) nodesOf(c contender) int {
	switch c.mode {
	case shared:
		return o.Shared.N
	case wire:
		return o.Wire.N
	}
	return o.Kwok.N
}

// figures are compared with those of kwok.
func (c heartbeatCost) figures() []experiment.Figure {
	return []experiment.Figure{
		{Name: "CPU for a heartbeat", Unit: "µs", Value: c.perHeartbeat()}, {Name: "memory of a node", Unit: "KiB", Value: c.perNode()},
	}
}

// judgeHeartbeats appends the verdicts on node-sim. The limits must be met at each interval.
func (b *bench) judgeHeartbeats(c contender, interval time.Duration, cost heartbeatCost) {
	if c == kwok {
		return
	}
	heartbeat, memory := limitHeartbeat[c.mode], limitMemory[c.mode]
	suffix := fmt.Sprintf(", %d nodes every %s", cost.nodes, interval)
	heartbeat.Name, memory.Name = heartbeat.Name+suffix, memory.Name+suffix
	b.Judge(heartbeat, cost.perHeartbeat(), int(cost.sent), "")
	b.Judge(memory, cost.perNode(), cost.nodes, "")
}

// measureHeartbeats measures the nodes of a contender in a new cluster.
func (b *bench) measureHeartbeats(ctx context.Context, c contender, nodes int, interval time.Duration) (cost heartbeatCost, err error) {
	what := fmt.Sprintf("%s every %s", c, interval)
	err = b.with(ctx, c, what, c.heartbeatSettings(nodes, interval), func(running *cluster) error {
		// Each node has renewed its Lease once when the measurement begins.
		task := b.Display.Task(what+": settles", 0)
		if err := experiment.Sleep(ctx, interval+interval/2); err != nil {
			task.Interrupt()
			return err
		}
		if err := running.AwaitQuiet(ctx); err != nil {
			task.Interrupt()
			return err
		}
		task.Done("done")
		cost, err = running.measureHeartbeats(ctx, what)
		return err
	})
	return cost, err
}

// measureHeartbeats measures nodes that renew their Leases.
func (c *cluster) measureHeartbeats(ctx context.Context, what string) (cost heartbeatCost, err error) {
	task := c.Display.Task(what, 0)
	task.Say("for " + c.options.Duration.D.String())
	window := c.Sampler.Begin(ctx)
	before, err := c.sent(ctx)
	if err == nil {
		err = experiment.Sleep(ctx, c.options.Duration.D)
	}
	if err != nil {
		task.Interrupt()
		return cost, err
	}
	after, err := c.sent(ctx)
	measured := window.End(ctx)
	if err != nil {
		task.Fail(err.Error())
		return cost, err
	}
	role := c.contender.program
	cost = heartbeatCost{
		sent: after.answered - before.answered, failed: after.failed - before.failed, seconds: measured.Seconds,
		cores: measured.Cores(role), memory: float64(measured.Resident[role]), nodes: c.nodes,
	}
	if latency := after.latency.Minus(before.latency); latency.Count() > 0 {
		cost.p50, cost.p99 = 1000*latency.Quantile(0.5), 1000*latency.Quantile(0.99)
	}
	if role == clusterdir.SimulatorKwok {
		cost.sent = renewals(measured.Calls)
	}
	c.Result.Errors.AddMany(int64(cost.sent+cost.failed), map[string]int64{"heartbeat": int64(cost.failed)})
	task.Done(fmt.Sprintf("%.0f heartbeats/s, %.1f µs, %.1f KiB for a node", cost.sent/cost.seconds, cost.perHeartbeat(), cost.perNode()))
	return cost, nil
}

// sent are counters of node-sim at a time.
type sent struct {
	answered, failed float64
	latency          experiment.Histogram // in seconds
}

// sent reads the counters of node-sim. kwok has none.
func (c *cluster) sent(ctx context.Context) (s sent, err error) {
	if c.contender == kwok {
		return s, nil
	}
	const answered, failed, latency = "node_sim_heartbeats_total", "node_sim_heartbeat_failures_total", "node_sim_heartbeat_duration_seconds"
	for _, name := range c.Config.Settings.SimulatorNames() {
		page, err := c.Metrics(ctx, name, answered, failed, latency)
		if err != nil {
			return s, err
		}
		s.answered += page.Sum(answered)
		s.failed += page.Sum(failed)
		s.latency = s.latency.Plus(page.Histogram(latency))
	}
	return s, nil
}

// renewals returns the updates of Leases that the API servers have counted. In clusters of k1m only nodes renew Leases,
// and each API server one of its own every 10 s.
func renewals(calls []experiment.Call) (count float64) {
	for _, call := range calls {
		if call.Verb == "PUT" && call.Resource == "leases" {
			count += float64(call.Count)
		}
	}
	return count
}
