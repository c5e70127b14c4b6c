package cache

import (
	"maps"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// moveOut leaves everything that plugins can reach as it is, and goes on with
// copies: a plugin that was left behind in a call may read for as long as it likes.
// That looks at every node, once for a pod that a plugin does not return from.
func (c *Cluster) replaceByCopies() {
	list := make([]fwk.NodeInfo, len(*c.Snapshot.list))
	nodes := make(map[string]*framework.NodeInfo, len(list))
	for name, n := range c.Nodes {
		images := n.Info.ImageStates
		n.Info = n.Info.SnapshotConcrete()
		// Its copy of them is of this moment; ours count on.
		n.Info.ImageStates = images
		if n.Position >= 0 {
			list[n.Position] = n.Info
			nodes[name] = n.Info
		}
	}
	*c.Snapshot.list, *c.Snapshot.nodes, *c.Snapshot.claims = list, nodes, maps.Clone(*c.Snapshot.claims)
	for i := range c.Snapshot.affinity {
		sub := &c.Snapshot.affinity[i]
		*sub.list = nil
		clear(sub.positions)
	}
	for _, info := range list {
		c.Snapshot.refresh(info.(*framework.NodeInfo))
	}
}
