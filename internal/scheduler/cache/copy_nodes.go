package cache

import (
	"maps"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// replaceByCopies continues with copies of everything that plugins can read, because a call that
// timed out may read the originals at any time. It costs a pass over all nodes for each such call.
func (c *Cluster) replaceByCopies() {
	list := make([]fwk.NodeInfo, len(*c.Snapshot.list))
	nodes := make(map[string]*framework.NodeInfo, len(list))
	for name, n := range c.Nodes {
		images := n.Info.ImageStates
		n.Info = n.Info.SnapshotConcrete()
		// The copy has the image counts of this moment; ours continue to change.
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
