package replica

import (
	"fmt"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestPendingPodWithManyTopologyKeys creates a pod whose affinity terms match all pods and have more topology keys
// than a class may have spread constraints. Whether it fits or not, other pods are scheduled, also after it was
// deleted.
func TestPendingPodWithManyTopologyKeys(t *testing.T) {
	for cpu, fits := range map[string]bool{"100m": true, "64": false} {
		t.Run(fmt.Sprintf("fits=%t", fits), func(t *testing.T) {
			g, _ := newGroupWithRemoteNode(t, 2)
			pod := schedtest.PodWithTopologyKeys("many", cpu, schedtest.TopologyKeys("none", 65))
			g.API.Put(pod)
			if fits {
				g.AwaitBound("many")
			} else {
				g.AwaitUnschedulable("many")
			}
			g.API.Put(schedtest.PlainPod("other", "100m"))
			g.AwaitBound("other")
			g.API.Remove(pod)
			g.API.Put(schedtest.PlainPod("after", "200m"))
			g.AwaitBound("after")
		})
	}
}

// TestPlacedPodsWithManyTopologyKeys places pods whose affinity terms match all pods. Together they have more
// topology keys than a class may have spread constraints, and the node has labels with all these keys.
func TestPlacedPodsWithManyTopologyKeys(t *testing.T) {
	g, name := newGroupWithRemoteNode(t, 2)
	node := schedtest.PlainNode(name, "4")
	for i := range 3 {
		for _, key := range schedtest.TopologyKeys(fmt.Sprint("label-", i), 40) {
			node.Labels[key] = "value"
		}
	}
	g.API.Put(node)
	for i := range 3 {
		many, other := fmt.Sprint("many-", i), fmt.Sprint("other-", i)
		g.API.Put(schedtest.PodWithTopologyKeys(many, "100m", schedtest.TopologyKeys(fmt.Sprint("label-", i), 40)))
		g.AwaitBound(many)
		g.API.Put(schedtest.PlainPod(other, "100m"))
		g.AwaitBound(other)
	}
}
