package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// bypassRoles are the processes that a renewal costs CPU time.
var bypassRoles = []string{component.Store, component.RoleAPIServer, component.ControllerManager, component.RoleGateway}

// bypassCost is what was measured during a step: without renewals, or at a rate.
type bypassCost struct {
	renewals  int64
	perSecond float64
	cores     map[string]float64 // by role
	micros    map[string]float64 // CPU time of a renewal by role, without that of the idle cluster
	peak      map[string]int64   // memory in bytes by role
	// events and served are the watch events of Leases that kube-apiserver and kube-gateway sent, for each renewal.
	events, served float64
	// opened is how many times a watch of all Leases was opened again.
	opened float64
	// pass is how long monitorNodeHealth took on average, in milliseconds.
	pass     float64
	notReady float64
	p99      float64 // latency of the store in milliseconds
}

// total returns the CPU time of all processes for a renewal in microseconds.
func (c *bypassCost) total() (micros float64) {
	for _, value := range c.micros {
		micros += value
	}
	return micros
}

// bypassColumns returns the columns of the table. The row without renewals shows only the cores in use.
func bypassColumns() []string {
	return []string{"variant", "renewals, /s", "store, µs", "kube-apiserver, µs", "kube-controller-manager, µs", "kube-gateway, µs", "sum, µs",
		"cores in use", "events of kube-apiserver for a renewal", "events of kube-gateway for a renewal", "watches opened again", "memory: store, MiB", "kube-apiserver, MiB",
		"kube-controller-manager, MiB", "kube-gateway, MiB", "monitorNodeHealth, ms", "NotReady nodes", "store p99, ms"}
}

// bypassStep measures one variant.
type bypassStep struct {
	*bypassRun
	cluster *experiment.Cluster
	variant variant
	store   *storeView
	pages   *pages
	watch   *servedWatch // nil unless the variant is served
}

// measureVariant measures the cluster without renewals, and then at each rate.
func (r *bypassRun) measureVariant(ctx context.Context, cluster *experiment.Cluster, v variant) error {
	store, err := newStoreView(ctx, cluster)
	if err != nil {
		return err
	}
	defer store.close()
	p, err := newPages(cluster)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	s := &bypassStep{bypassRun: r, cluster: cluster, variant: v, store: store, pages: p}
	if v.served {
		if s.watch, err = s.startServed(ctx); err != nil {
			stop()
			return err
		}
		defer s.watch.group.Wait()
	}
	defer stop()
	if err := s.settle(ctx); err != nil {
		return err
	}
	idle, err := s.measure(ctx, 0, nil)
	if err != nil {
		return err
	}
	s.addRow(idle)
	for _, rate := range r.rates {
		cost, err := s.measure(ctx, rate, &idle)
		if err != nil {
			return err
		}
		s.addRow(cost)
		s.addLines(cost, rate)
	}
	return nil
}

// settle waits until the cluster has settled after its start. Meanwhile all Leases are renewed again and again.
func (s *bypassStep) settle(ctx context.Context) error {
	nodes := s.own.Nodes.N
	return s.awaitQuiet(ctx, s.store, s.variant.name+": cluster settles", func() error {
		f, err := s.store.startRenewal(ctx, s.rates[len(s.rates)-1], nodes, nodes)
		if err != nil {
			return err
		}
		_, err = reportOf(ctx, f)
		return err
	})
}

// measure measures a step. idle is the step without renewals, whose CPU time is subtracted.
func (s *bypassStep) measure(ctx context.Context, rate int, idle *bypassCost) (cost bypassCost, err error) {
	task := s.Display.Task(fmt.Sprintf("%s: %d renewals/s", s.variant.name, rate), 0)
	defer func() {
		if err != nil {
			task.Interrupt()
		}
	}()
	var load *storeserver.Client
	if rate > 0 {
		if load, err = s.store.startRenewal(ctx, rate, 0, s.own.Nodes.N); err != nil {
			return cost, err
		}
		if err := experiment.Sleep(ctx, max(s.own.Duration.D/warmUpShare, time.Second)); err != nil {
			return cost, err
		}
	}
	cost, err = s.window(ctx)
	if load != nil {
		stopped := load.Stop()
		report, failed := reportOf(ctx, load)
		err = errors.Join(err, stopped, failed)
		s.countRenewals(report)
		cost.p99 = float64(report.LatencyMicros.P99) / 1000
	}
	if err != nil {
		return cost, err
	}
	if idle != nil {
		cost.subtract(idle)
	}
	task.Done(fmt.Sprintf("%.0f/s, %.1f µs, %.0f nodes NotReady", cost.perSecond, cost.total(), cost.notReady))
	return cost, nil
}

// countRenewals adds the renewals of a load to those that the result counts.
func (s *bypassStep) countRenewals(report storeserver.Report) {
	s.Result.Errors.AddMany(report.Ops+report.Errors, report.ErrorsByKind)
}

// bypassCounts are counters and gauges of a cluster, and the revision of its store when they were read.
type bypassCounts struct {
	revision                                           int64
	events, served, opened, passes, passTime, notReady float64
}

// readCounts reads the metrics pages. They cost an API server 0.1 s of CPU, so they are not read while CPU time is measured.
func (s *bypassStep) readCounts(ctx context.Context) (c bypassCounts, err error) {
	const health = "node_collector_update_all_nodes_health_duration_seconds"
	if c.revision, err = s.store.revision(ctx); err != nil {
		return c, err
	}
	var ok bool
	c.events, _ = s.pages.sum(ctx, component.RoleAPIServer, "apiserver_watch_events_total", `resource="leases"`)
	c.served, _ = s.pages.sum(ctx, component.RoleGateway, "kube_gateway_node_path_events_total", "")
	if s.watch != nil {
		c.opened = float64(s.watch.opened.Load())
	} else {
		// kube-apiserver counts a watch when it ends.
		c.opened, _ = s.pages.sum(ctx, component.RoleAPIServer, "apiserver_request_total", `resource="leases",scope="cluster",subresource="",verb="WATCH"`)
	}
	c.passes, _ = s.pages.sum(ctx, component.ControllerManager, health+"_count", "")
	c.passTime, _ = s.pages.sum(ctx, component.ControllerManager, health+"_sum", "")
	if c.notReady, ok = s.pages.sum(ctx, component.ControllerManager, "node_collector_unhealthy_nodes_in_zone", ""); !ok {
		return c, errors.Join(ctx.Err(), errors.New("kube-controller-manager does not say how many nodes are NotReady; see `k1m logs kube-controller-manager`"))
	}
	return c, nil
}

// window measures the cluster for --duration.
func (s *bypassStep) window(ctx context.Context) (cost bypassCost, err error) {
	before, err := s.readCounts(ctx)
	if err != nil {
		return cost, err
	}
	window := s.cluster.Sampler.Begin(ctx)
	first, err := s.store.revision(ctx)
	if err != nil {
		return cost, err
	}
	if err := experiment.Sleep(ctx, s.own.Duration.D); err != nil {
		return cost, err
	}
	last, err := s.store.revision(ctx)
	if err != nil {
		return cost, err
	}
	m := window.End(ctx)
	after, err := s.readCounts(ctx)
	if err != nil {
		return cost, err
	}
	cost.renewals, cost.perSecond = last-first, float64(last-first)/m.Seconds
	cost.cores, cost.peak = map[string]float64{}, m.Peak
	for _, role := range bypassRoles {
		cost.cores[role] = m.Cores(role)
	}
	cost.setCounts(before, after)
	return cost, nil
}

// setCounts sets what follows from the metrics before and after the window.
func (c *bypassCost) setCounts(before, after bypassCounts) {
	renewals := float64(max(after.revision-before.revision, 1))
	c.events, c.served = (after.events-before.events)/renewals, (after.served-before.served)/renewals
	c.opened = after.opened - before.opened
	c.pass = 1000 * (after.passTime - before.passTime) / max(after.passes-before.passes, 1)
	c.notReady = after.notReady
}

// subtract sets the CPU time of a renewal: that of the step without that of the idle cluster.
func (c *bypassCost) subtract(idle *bypassCost) {
	c.micros = map[string]float64{}
	for _, role := range bypassRoles {
		c.micros[role] = max(c.cores[role]-idle.cores[role], 0) * 1e6 / max(c.perSecond, 1)
	}
}

// addRow appends the step to the table. The row without renewals has no CPU time of a renewal, nor events for one.
func (s *bypassStep) addRow(c bypassCost) {
	cells, cores := []any{s.variant.name}, 0.0
	if c.micros == nil {
		cells = append(cells, 0, "", "", "", "", "")
	} else {
		cells = append(cells, c.perSecond)
		for _, role := range bypassRoles {
			cells = append(cells, s.ofGateway(role, c.micros[role]))
		}
		cells = append(cells, c.total())
	}
	for _, value := range c.cores {
		cores += value
	}
	events, served, p99 := any(c.events), s.ofGateway(component.RoleGateway, c.served), any(c.p99)
	if c.micros == nil {
		events, served, p99 = "", "", ""
	}
	cells = append(cells, cores, events, served, c.opened)
	for _, role := range bypassRoles {
		cells = append(cells, s.ofGateway(role, float64(c.peak[role])/mebibyte))
	}
	pass := any(c.pass)
	if c.pass == 0 {
		pass = "" // none ended during the measurement
	}
	s.table.Add(append(cells, pass, c.notReady, p99)...)
}

// ofGateway returns a cell: empty for kube-gateway if the variant has none.
func (s *bypassStep) ofGateway(role string, value float64) any {
	if role == component.RoleGateway && !s.variant.served {
		return ""
	}
	return value
}

// addLines appends the step to the charts and to the figures that are compared.
func (s *bypassStep) addLines(c bypassCost, rate int) {
	for _, role := range bypassRoles {
		if role != component.RoleGateway || s.variant.served {
			s.Result.Line(experiment.Series{Plot: "CPU for a Lease renewal, " + s.variant.name, Name: role, X: "renewals per second", Unit: "µs", LogX: true}, c.perSecond, c.micros[role])
		}
	}
	s.Result.Line(experiment.Series{Plot: "CPU for a Lease renewal", Name: s.variant.name, X: "renewals per second", Unit: "µs", LogX: true}, c.perSecond, c.total())
	s.figures[s.variant.name] = append(s.figures[s.variant.name],
		experiment.Figure{Name: fmt.Sprintf("CPU for a Lease renewal, %d/s", rate), Unit: "µs", Value: c.total()},
		experiment.Figure{Name: fmt.Sprintf("kube-apiserver's CPU for a Lease renewal, %d/s", rate), Unit: "µs", Value: c.micros[component.RoleAPIServer]},
		experiment.Figure{Name: fmt.Sprintf("peak memory of kube-apiserver, %d/s", rate), Unit: "MiB", Value: float64(c.peak[component.RoleAPIServer]) / mebibyte})
}
