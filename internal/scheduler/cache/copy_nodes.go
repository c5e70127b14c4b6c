package cache

import (
	"maps"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// replaceByCopies replaces everything that plugins can read by copies, because a plugin call that has timed
// out may still read the originals. It copies all nodes.
func (c *Cluster) replaceByCopies() {
	list := make([]fwk.NodeInfo, len(*c.Snapshot.list))
	nodes := make(map[string]*framework.NodeInfo, len(list))
	for name, n := range c.Nodes {
		images := n.Info.ImageStates
		n.Info = n.Info.SnapshotConcrete()
		// SnapshotConcrete has copied the image counts. Keep the shared ones, which are updated.
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
