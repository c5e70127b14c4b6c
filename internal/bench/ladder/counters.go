package ladder

import (
	"context"
	"errors"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// counters are counters of node-sim, kube-gateway and kube-controller-manager at a time.
type counters struct {
	// answered are the heartbeats that were answered with success, and failed the others.
	answered, failed float64
	latency          experiment.Histogram // of heartbeats, in seconds
	// served are the renewals that gateways have written into the store, and forwarded those that they have sent to an
	// API server.
	served, forwarded float64
	// passes is the number of passes of kube-controller-manager over all nodes, and passSeconds the time for all of
	// them. notReady is how many nodes it holds to be NotReady now.
	passes, passSeconds, notReady float64
}

// heartbeats reads the counters of node-sim.
func (s *step) heartbeats(ctx context.Context) (c counters, err error) {
	const sent, failed, latency = "node_sim_heartbeats_total", "node_sim_heartbeat_failures_total", "node_sim_heartbeat_duration_seconds"
	for _, name := range s.cluster.Config.Settings.SimulatorNames() {
		page, err := s.cluster.Metrics(ctx, name, sent, failed, latency)
		if err != nil {
			return c, err
		}
		c.answered += page.Sum(sent)
		c.failed += page.Sum(failed)
		c.latency = c.latency.Plus(page.Histogram(latency))
	}
	return c, nil
}

// health reads the counters of kube-controller-manager's health check of nodes, if it runs.
func (s *step) health(ctx context.Context, c *counters) error {
	if !s.hasControllers {
		return nil
	}
	const pass, notReady = "node_collector_update_all_nodes_health_duration_seconds", "node_collector_unhealthy_nodes_in_zone"
	page, err := s.cluster.Metrics(ctx, component.ControllerManager, pass, notReady)
	c.passes, c.passSeconds = page.Observations(pass)
	c.notReady = page.Sum(notReady)
	return err
}

// counters reads all counters.
func (s *step) counters(ctx context.Context) (counters, error) {
	c, err := s.heartbeats(ctx)
	errs := []error{err, s.health(ctx, &c)}
	for _, name := range s.cluster.Config.Settings.GatewayNames() {
		const renewals = "kube_gateway_node_path_lease_renewals_total"
		page, err := s.cluster.Metrics(ctx, name, renewals)
		errs = append(errs, err)
		c.served += page.Sum(renewals, "result", "served")
		c.forwarded += page.Sum(renewals, "result", "forwarded")
	}
	return c, errors.Join(errs...)
}

// since returns the differences to counters that were read before. notReady stays what it is now.
func (c counters) since(before counters) counters {
	return counters{
		answered: c.answered - before.answered, failed: c.failed - before.failed, latency: c.latency.Minus(before.latency),
		served: c.served - before.served, forwarded: c.forwarded - before.forwarded,
		passes: c.passes - before.passes, passSeconds: c.passSeconds - before.passSeconds, notReady: c.notReady,
	}
}
