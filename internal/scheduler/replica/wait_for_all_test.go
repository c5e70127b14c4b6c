package replica

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestWaitForAll stops the owner of the best node. With WaitForAll, a pod waits until another replica owns this
// node, instead of getting a worse node.
func TestWaitForAll(t *testing.T) {
	g := startReplicasWith(t, func(o *Options) { o.WaitForAll = true }, make([]bool, 2))
	g.lead(0)
	// Pods prefer the large node.
	small, large := "", ""
	for i := 0; small == "" || large == ""; i++ {
		name := fmt.Sprintf("node-%d", i)
		switch node := schedtest.PlainNode(name, "64"); {
		case !g.replicas[0].member.Trusts("replica-0", node.UID) && large == "":
			large = name
			g.API.Put(node)
		case g.replicas[0].member.Trusts("replica-0", node.UID) && small == "":
			small = name
			g.API.Put(schedtest.PlainNode(name, "2"))
		}
	}
	g.awaitReceived(small)
	g.awaitReceived(large)
	g.API.Put(schedtest.PlainPod("first", "1"))
	if node := g.AwaitBound("first"); node != large {
		t.Fatalf("the first pod is on %s, want the large node %s", node, large)
	}
	// The leader itself watches the second pod, so it learns of the pod at once.
	second := ""
	for i := 0; second == "" || !g.replicas[0].member.Trusts("replica-0", types.UID(second)); i++ {
		second = fmt.Sprintf("second-%d", i)
	}
	g.replicas[1].stop()
	// A pod of another class needs another query.
	g.API.Put(schedtest.PlainPod(second, "2"))
	if node := g.AwaitBound(second); node != large {
		t.Errorf("the second pod is on %s, want the large node %s", node, large)
	}
}

// awaitReceived waits until the owner of a node has received it.
func (g *group) awaitReceived(node string) {
	g.T.Helper()
	g.Eventually("the owner of node "+node+" has received it", func() error {
		for _, r := range g.replicas {
			if r.member.NodeOwner(node) == r.member.Self() {
				return nil
			}
		}
		return errors.New("no replica knows that it owns the node")
	})
}

// TestWaitForAllNodes creates nodes of two replicas while the scheduler runs. Right after the owner of a node has received
// it, it does not know yet whether pods run on it. With WaitForAll, the next pod waits until it does, and gets this node,
// which is the best one.
func TestWaitForAllNodes(t *testing.T) {
	g := startReplicasWith(t, func(o *Options) { o.WaitForAll = true }, make([]bool, 2))
	g.lead(0)
	for i := range 30 {
		node, pod := fmt.Sprintf("node-%d", i), fmt.Sprintf("pod-%d", i)
		g.API.Put(schedtest.PlainNode(node, "64"))
		g.awaitReceived(node)
		// Each pod is of another class, so it needs a query.
		g.API.Put(schedtest.PlainPod(pod, fmt.Sprintf("%dm", 1000+i)))
		if got := g.AwaitBound(pod); got != node {
			t.Fatalf("pod %d is on %s, want the empty node %s", i, got, node)
		}
	}
}
