package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// costRoles are the processes whose CPU time a renewal costs.
var costRoles = []string{component.RoleGateway, component.Store, component.RoleAPIServer}

// renewalCost is what was measured while nodes renewed their Leases.
type renewalCost struct {
	// renewals is the number of renewals that counted: through a gateway those that it served.
	renewals  int
	perSecond float64
	share     float64 // of the successful renewals that counted
	micros    map[string]float64
	p50, p99  float64 // milliseconds
}

// total returns the CPU time of all processes for a renewal in microseconds.
func (c renewalCost) total() (micros float64) {
	for _, value := range c.micros {
		micros += value
	}
	return micros
}

// renewals measures the CPU time for a renewal, at the highest rate and at half of it.
func (p *nodePathLab) renewals(ctx context.Context) error {
	table := p.table(&p.run.tables.renewals, fmt.Sprintf("CPU for a Lease renewal, %d nodes with a connection each", p.run.own.Nodes.N), "front", "load", "renewals, /s", "served, %",
		"kube-gateway, µs", "store, µs", "kube-apiserver, µs", "sum, µs", "p50, ms", "p99, ms")
	nodes, closeAll, err := p.startNodes(ctx, p.front, "renewing", p.run.own.Nodes.N)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := p.awaitServing(ctx, nodes); err != nil {
		return err
	}
	if err := p.AwaitQuiet(ctx); err != nil {
		return err
	}
	idle, err := p.idleCPU(ctx)
	if err != nil {
		return err
	}
	p.run.costs[p.front.name] = map[string]renewalCost{}
	rate := 0.0
	for _, load := range loads {
		task := p.Display.Task(fmt.Sprintf("%s: renewals, %s load", p.front.name, load), 0)
		cost, err := p.measureRenewals(ctx, nodes, rate, idle)
		if err != nil {
			task.Interrupt()
			return err
		}
		task.Done(fmt.Sprintf("%.0f/s, %.1f µs", cost.perSecond, cost.total()))
		p.run.costs[p.front.name][load], rate = cost, cost.perSecond/2
		share := any("")
		if p.served() {
			share = 100 * cost.share
		}
		table.Add(p.front.name, load, cost.perSecond, share, cost.micros[component.RoleGateway], cost.micros[component.Store],
			cost.micros[component.RoleAPIServer], cost.total(), cost.p50, cost.p99)
		for _, role := range costRoles {
			p.Result.Line(experiment.Series{
				Plot: "CPU for a Lease renewal, " + p.front.name, Name: role, X: "renewals per second", Unit: "µs",
			}, cost.perSecond, cost.micros[role])
		}
	}
	return nil
}

// idleCPU returns the CPU time per second of the processes without renewals.
func (p *nodePathLab) idleCPU(ctx context.Context) (map[string]float64, error) {
	before, begun := p.Sampler.Usage(), time.Now()
	if err := experiment.Sleep(ctx, p.run.own.Duration.D/2); err != nil {
		return nil, err
	}
	idle := map[string]float64{}
	after, seconds := p.Sampler.Usage(), time.Since(begun).Seconds()
	for _, role := range costRoles {
		idle[role] = (after[role].CPU - before[role].CPU).Seconds() / seconds
	}
	return idle, nil
}

// measureRenewals lets nodes renew their Leases until the load is warm, and then measures it. The CPU time of the idle
// cluster is subtracted.
func (p *nodePathLab) measureRenewals(ctx context.Context, nodes []*node, rate float64, idle map[string]float64) (cost renewalCost, err error) {
	run := func(d time.Duration) (experiment.Load, int) {
		limited, stop := context.WithTimeout(ctx, d)
		defer stop()
		load := renewAll(nodes, rate)
		return load, load.Run(limited)
	}
	run(p.run.own.Duration.D / warmUpShare)
	served, before, begun := p.front.servedRenewals(), p.Sampler.Usage(), time.Now()
	load, succeeded := run(p.run.own.Duration.D)
	seconds, after := time.Since(begun).Seconds(), p.Sampler.Usage()
	cost.renewals = succeeded
	if p.served() {
		cost.renewals = p.front.servedRenewals() - served
	}
	if err := errors.Join(ctx.Err(), p.mustServe(cost.renewals, succeeded)); err != nil {
		return cost, err
	}
	p.Result.Errors.Merge(load.Tally)
	cost.perSecond, cost.share = float64(cost.renewals)/seconds, float64(cost.renewals)/float64(max(succeeded, 1))
	cost.p50, cost.p99 = load.Latencies.Millis(50), load.Latencies.Millis(99)
	cost.micros = map[string]float64{}
	for _, role := range costRoles {
		used := (after[role].CPU - before[role].CPU).Seconds() - idle[role]*seconds
		cost.micros[role] = max(used, 0) * 1e6 / float64(max(cost.renewals, 1))
	}
	return cost, nil
}

// judgeRenewals appends the verdicts of the row renewals.
func (r *nodePathRun) judgeRenewals() {
	for _, load := range loads {
		ours, theirs := r.costs[kubeGateway][load], r.costs[direct][load]
		cost, ratio := limitRenewal, limitRenewalRatio
		cost.Name += ", " + load + " load"
		ratio.Name += ", " + load + " load"
		r.Judge(cost, ours.total(), ours.renewals, "")
		r.Judge(ratio, theirs.total()/max(ours.total(), 1e-3), min(ours.renewals, theirs.renewals), "")
		name := "CPU for a Lease renewal, " + load + " load"
		r.Result.Compare(kubeGateway, "kube-apiserver", []experiment.Figure{{Name: name, Unit: "µs", Value: ours.total()}},
			[]experiment.Figure{{Name: name, Unit: "µs", Value: theirs.total()}})
	}
	r.Result.Note("CPU for a renewal is that of kube-gateway, the store and kube-apiserver, divided by the renewals that kube-gateway served, or that succeeded without it. The CPU of the idle cluster is subtracted.")
}
