package scheduler

import (
	"maps"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// moveOut leaves everything that plugins can reach as it is, and goes on with
// copies: a plugin that was left behind in a call may read for as long as it likes.
// That looks at every node, once for a pod that a plugin does not return from.
func (c *cluster) moveOut() {
	list := make([]fwk.NodeInfo, len(*c.snapshot.list))
	nodes := make(map[string]*framework.NodeInfo, len(list))
	for name, n := range c.nodes {
		images := n.info.ImageStates
		n.info = n.info.SnapshotConcrete()
		// Its copy of them is of this moment; ours count on.
		n.info.ImageStates = images
		if n.position >= 0 {
			list[n.position] = n.info
			nodes[name] = n.info
		}
	}
	*c.snapshot.list, *c.snapshot.nodes, *c.snapshot.claims = list, nodes, maps.Clone(*c.snapshot.claims)
	for i := range c.snapshot.affinity {
		sub := &c.snapshot.affinity[i]
		*sub.list = nil
		clear(sub.positions)
	}
	for _, info := range list {
		c.snapshot.refresh(info.(*framework.NodeInfo))
	}
}
