package cache

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// setHost updates the numbers of nodes by hostname label after a change of a node. object is nil if the node
// was deleted.
func (c *Cluster) setHost(n *Node, object *v1.Node) {
	if n.host != "" {
		if c.hosts[n.host]--; c.hosts[n.host] == 1 {
			c.SharedHosts--
		} else if c.hosts[n.host] == 0 {
			delete(c.hosts, n.host)
		}
	}
	n.host = ""
	if object != nil {
		n.host = object.Labels[v1.LabelHostname]
	}
	if n.host != "" {
		if c.hosts[n.host]++; c.hosts[n.host] == 2 {
			c.SharedHosts++
		}
	}
}

// setImages updates the images of a node and their numbers of nodes. before is nil for a new node, and after
// for a deleted one.
func (c *Cluster) setImages(n *Node, before, after *v1.Node) {
	if before != nil {
		for _, found := range before.Status.Images {
			for _, name := range found.Names {
				if shared := c.Images[name]; shared != nil {
					if shared.NumNodes--; shared.NumNodes <= 0 {
						delete(c.Images, name)
					}
				}
			}
		}
	}
	if after == nil {
		return
	}
	states := make(map[string]*fwk.ImageStateSummary, len(after.Status.Images))
	for _, found := range after.Status.Images {
		for _, name := range found.Names {
			shared := c.Images[name]
			if shared == nil {
				shared = &fwk.ImageStateSummary{Size: found.SizeBytes}
				c.Images[name] = shared
			}
			shared.NumNodes++
			states[name] = shared
		}
	}
	n.Info.ImageStates = states
}
