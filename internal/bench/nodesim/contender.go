package nodesim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	shared = clusterdir.NodesShared
	wire   = clusterdir.NodesWire

	// gatewayProfile is the profile whose clusters have kube-gateway with its node path.
	gatewayProfile = "10k"
	// clusterConnections is the number of connections with which pods are created.
	clusterConnections = 8
	pollInterval       = 500 * time.Millisecond

	kibibyte, mebibyte = 1 << 10, 1 << 20
)

// contender is a program that simulates nodes. mode is how node-sim connects them; it is empty for kwok.
type contender struct{ program, mode string }

var (
	kwok       = contender{program: clusterdir.SimulatorKwok}
	contenders = []contender{{clusterdir.SimulatorNodeSim, shared}, {clusterdir.SimulatorNodeSim, wire}, kwok}
)

func (c contender) String() string {
	if c.mode == "" {
		return c.program
	}
	return c.program + " " + c.mode
}

// settings returns the settings of a small cluster with this program.
func (c contender) settings(nodes int) clusterdir.Settings {
	s := clusterdir.DefaultSettings()
	s.Nodes, s.NodeSimulator, s.NodeMode = nodes, c.program, c.mode
	return s
}

// heartbeatSettings returns the settings of a cluster whose nodes renew their Leases with an interval. Those of node-sim
// do it through kube-gateway.
func (c contender) heartbeatSettings(nodes int, interval time.Duration) clusterdir.Settings {
	s := c.settings(nodes)
	if c != kwok {
		s.Profile = gatewayProfile
		s.NodeSimArgs = []string{"node-lease-duration-seconds=" + strconv.Itoa(int(4*interval/time.Second))}
	}
	return s
}

// cluster is the cluster of a contender.
type cluster struct {
	*bench
	*experiment.Cluster
	contender contender
	nodes     int
}

// with creates a cluster, calls use when its nodes have been started, and removes the cluster. what ends the titles of
// its charts.
func (b *bench) with(ctx context.Context, c contender, what string, settings clusterdir.Settings, use func(*cluster) error) (err error) {
	up, err := b.UpSeeded(ctx, settings, ", "+what, clusterConnections, b.options.Timeout, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { err = errors.Join(err, b.Close(up, false)) }()
	// A page of an API server costs it 0.1 s of CPU.
	up.Sampler.SampleUsageOnly()
	running := &cluster{bench: b, Cluster: up, contender: c, nodes: settings.Nodes}
	if err := running.awaitStarted(ctx, what); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := use(running); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// awaitStarted waits until node-sim has started all nodes. kwok has no such count: its nodes are ready in the store.
func (c *cluster) awaitStarted(ctx context.Context, what string) error {
	if c.contender == kwok {
		return nil
	}
	var failure error
	last, looked := 0, time.Time{}
	err := c.Await(ctx, what+": nodes started", c.nodes, c.options.Timeout, func() int {
		if time.Since(looked) < pollInterval {
			return last
		}
		if now, err := c.sum(ctx, "node_sim_nodes", "state", "running"); err == nil {
			last, failure = int(now), nil
		} else {
			failure = err
		}
		looked = time.Now()
		return last
	})
	if failure != nil && ctx.Err() == nil {
		return errors.Join(err, failure)
	}
	return err
}

// sum returns the sum of a metric of all node-sims, of those samples that have the labels, given as name and value in turn.
func (c *cluster) sum(ctx context.Context, metric string, labels ...string) (sum float64, err error) {
	for _, name := range c.Config.Settings.SimulatorNames() {
		page, err := c.Metrics(ctx, name, metric)
		if err != nil {
			return 0, err
		}
		sum += page.Sum(metric, labels...)
	}
	return sum, nil
}
