package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

const nodeSimCluster = "node-sim"

var heartbeatsOnPage = regexp.MustCompile(`(?m)^node_sim_heartbeats_total (\d+)$`)

// TestNodeSim checks a cluster whose nodes node-sim simulates: some with a connection of their own, the others
// without, and two processes divide them. Stopped nodes must become NotReady, and no other ones, and come back.
func TestNodeSim(t *testing.T) {
	const nodes, stopped = 60, 7
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", nodeSimCluster) })
	w.succeed(t, "up", "--name", nodeSimCluster, "--nodes", fmt.Sprint(nodes), "--store", storeKind(), "--node-simulator", "node-sim",
		"--node-sims", "2", "--node-mode", "mixed", "--wire-nodes", "20", "--controller-manager-arg", "node-monitor-grace-period=25s")
	w.succeed(t, "pods", "create", "--name", nodeSimCluster, "--count", "100")
	awaitReady := func(want int) {
		t.Helper()
		eventually(t, patience, fmt.Sprintf("%d nodes are Ready", want), func() error {
			if s := w.status(t, nodeSimCluster); s.Nodes.Ready != want {
				return fmt.Errorf("%d are", s.Nodes.Ready)
			}
			return nil
		})
	}
	awaitReady(nodes)
	for _, invalid := range [][]string{
		{"stop"}, {"stop", "--all", "--count", "1"}, {"slow", "--all", "--delay", "-1s"}, {"slow", "--all"}, {"flap", "--count", "0"},
	} {
		if r := w.k1m(t, append([]string{"nodes", "--name", nodeSimCluster}, invalid...)...); r.code != 2 {
			t.Errorf("k1m nodes %v: exit code %d, want 2: %s", invalid, r.code, r.stderr)
		}
	}
	printed := w.succeed(t, "nodes", "stop", "--name", nodeSimCluster, "--count", fmt.Sprint(stopped)).stdout
	if want := fmt.Sprintf("%d nodes are stopped", stopped); !strings.Contains(printed, want) {
		t.Errorf("k1m nodes stop printed %q, want %q", printed, want)
	}
	awaitReady(nodes - stopped)
	w.succeed(t, "nodes", "start", "--name", nodeSimCluster, "--all")
	awaitReady(nodes)

	// The settings are kept, and nodes and pods go on.
	w.succeed(t, "down", "--name", nodeSimCluster, "--keep-data")
	w.succeed(t, "up", "--name", nodeSimCluster)
	awaitReady(nodes)
	metrics := w.status(t, nodeSimCluster).component(t, "node-sim").Address + "/metrics"
	eventually(t, patience, "all nodes renew their Leases", func() error {
		if heartbeats, err := countOnPage(metrics, heartbeatsOnPage); err != nil || heartbeats < nodes {
			return fmt.Errorf("%d heartbeats were sent (%v)", heartbeats, err)
		}
		return nil
	})
}
