package ladder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
)

const (
	// clusterConnections is the number of connections with which the experiment creates objects.
	clusterConnections = 16
	// pollInterval is the time between two looks at the progress of something.
	pollInterval = time.Second
	// stateServing is the value of kube_gateway_node_path_lease_state while kube-gateway serves renewals.
	stateServing = 2
)

// step is the cluster of a rung while it runs.
type step struct {
	*run
	rung    rung
	cluster *experiment.Cluster
	leases  *leaseReader
	// begun is when the start of the cluster began.
	begun time.Time
	start start
	// interval is the time between two heartbeats of a node; period and grace are those of kube-controller-manager's
	// health check.
	interval, period, grace time.Duration
	simulators              int // processes of node-sim
	// hasControllers and hasPods report whether kube-controller-manager runs, and whether a scheduler runs too.
	hasControllers, hasPods bool
}

// start has the times of the start of a cluster, each from the end of the one before.
type start struct{ up, started, renewed, owners time.Duration }

// open starts the cluster of a rung, and waits until all nodes renew their Leases. The caller must close it.
func (r *run) open(ctx context.Context, g rung) (_ *step, err error) {
	s := &step{run: r, rung: g, begun: time.Now()}
	suffix := ", " + g.title()
	s.cluster, err = r.UpSeeded(ctx, g.settings(r.options), suffix, clusterConnections, r.options.Timeout, func(p clusterdir.AppliedProfile) {
		for _, change := range p.Changes {
			r.tables.tuning.Add(g.title(), change.String(), change.Reason)
		}
	})
	if err != nil {
		return nil, err
	}
	s.start.up = time.Since(s.begun)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(s.cluster, r.KeepFailed))
		}
	}()
	// A page of an API server costs it 0.1 s of CPU.
	s.cluster.Sampler.SampleUsageOnly()
	settings := s.cluster.Config.Settings
	s.simulators = settings.NodeSims
	s.hasControllers = settings.Runs(clusterdir.ControllerManager)
	s.hasPods = s.hasControllers && settings.Runs(clusterdir.AnyScheduler)
	s.interval, s.period, s.grace = profile.Interval(settings), profile.MonitorPeriod(settings), profile.MonitorGrace(settings)
	if s.leases, err = newLeaseReader(ctx, s.cluster); err != nil {
		return nil, err
	}
	if err = s.awaitHeartbeats(ctx); err != nil {
		return nil, errors.Join(err, s.leases.close())
	}
	return s, nil
}

// close removes the cluster, unless it is to be kept.
func (s *step) close(keep bool) error {
	return errors.Join(s.leases.close(), s.Close(s.cluster, keep))
}

// title names the rung in tables and charts.
func (g rung) title() string {
	if g.climbs {
		return fmt.Sprintf("%s, %d nodes", g.name, g.nodes)
	}
	return g.name
}

// awaitHeartbeats waits until node-sim has started all nodes, then until each has renewed its Lease, and then until
// kube-controller-manager has done what it does once after its start.
func (s *step) awaitHeartbeats(ctx context.Context) error {
	begun := time.Now()
	if err := s.await(ctx, "nodes started", s.rung.nodes, s.startedNodes); err != nil {
		return err
	}
	s.start.started = time.Since(begun)
	s.mark("all nodes started")
	if err := s.await(ctx, "nodes renew their Leases", s.rung.nodes, s.renewedLeases(begun)); err != nil {
		return err
	}
	s.start.renewed = time.Since(begun) - s.start.started
	s.mark("all nodes renew")
	var err error
	if s.start.owners, err = s.awaitOwners(ctx); err != nil {
		return err
	}
	s.tables.starts.Add(s.rung.title(), s.rung.nodes, s.start.up.Seconds(), s.start.started.Seconds(), s.start.renewed.Seconds(),
		s.start.owners.Seconds(), time.Since(s.begun).Seconds())
	s.noteServing(ctx)
	return nil
}

// startedNodes returns the number of nodes that node-sim has started.
func (s *step) startedNodes(ctx context.Context) (started int, err error) {
	const nodes = "node_sim_nodes"
	for _, name := range s.cluster.Config.Settings.SimulatorNames() {
		page, err := s.cluster.Metrics(ctx, name, nodes)
		if err != nil {
			return 0, err
		}
		started += int(page.Sum(nodes, "state", "running"))
	}
	return started, nil
}

// renewedLeases returns a function that counts the Leases that were renewed since a time. It reads all Leases, so it
// waits for a quarter of the interval between two counts.
func (s *step) renewedLeases(since time.Time) func(context.Context) (int, error) {
	last, counted := 0, time.Time{}
	return func(ctx context.Context) (int, error) {
		if last > 0 && time.Since(counted) < s.interval/4 {
			return last, nil
		}
		found, err := s.leases.read(ctx, since)
		if err == nil {
			last, counted = found.renewed, time.Now()
		}
		return last, err
	}
}

// noteServing adds a note if kube-gateway does not serve renewals. Then each of them costs kube-apiserver a
// millisecond, and the rung will hardly hold.
func (s *step) noteServing(ctx context.Context) {
	for _, name := range s.cluster.Config.Settings.GatewayNames() {
		const state = "kube_gateway_node_path_lease_state"
		page, err := s.cluster.Metrics(ctx, name, state)
		if err == nil && page.Sum(state) != stateServing {
			s.Result.Note("Rung %s: %s does not serve Lease renewals yet (%s is %.0f); its log says why.", s.rung.title(), name, state, page.Sum(state))
		}
	}
}

// await waits until count returns the wanted number, and shows the progress with its rate. It returns an error if the
// number does not change for --timeout. A count that fails is repeated.
func (s *step) await(ctx context.Context, what string, wanted int, count func(context.Context) (int, error)) error {
	last, looked := 0, time.Time{}
	var failure error
	err := s.Await(ctx, s.rung.title()+": "+what, wanted, s.options.Timeout, func() int {
		if time.Since(looked) < pollInterval {
			return last
		}
		var now int
		if now, failure = count(ctx); failure == nil {
			last = now
		}
		looked = time.Now()
		return last
	})
	if err != nil && failure != nil && ctx.Err() == nil {
		return fmt.Errorf("%w (%w)", err, failure)
	}
	return err
}

// mark marks a moment in the charts of the cluster.
func (s *step) mark(name string) {
	s.Result.Markers = append(s.Result.Markers, experiment.Marker{ChartSuffix: ", " + s.rung.title(), Name: name, Seconds: s.seconds()})
}

// seconds returns the time since the start of the run.
func (s *step) seconds() float64 { return time.Since(s.Result.Time).Seconds() }
