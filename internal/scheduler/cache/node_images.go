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

// WithHostname returns the nodes with a hostname label. It looks at all nodes only if a node of another name has the label.
func (c *Cluster) WithHostname(host string) (nodes []*Node) {
	if n := c.Lookup(host); n != nil && host != "" && n.host == host {
		nodes = append(nodes, n)
	}
	if host != "" && len(nodes) == c.hosts[host] {
		return nodes
	}
	nodes = nil
	for _, n := range c.Nodes {
		if n.Position < 0 {
			continue
		}
		if value, labelled := n.Info.Node().Labels[v1.LabelHostname]; labelled && value == host {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// setImages updates the images of a node and their numbers of nodes. object is nil if the node was deleted. As
// in upstream's cache, a name that a node lists twice counts once.
func (c *Cluster) setImages(n *Node, object *v1.Node) {
	for name := range n.Info.ImageStates {
		if shared := c.Images[name]; shared != nil {
			if shared.NumNodes--; shared.NumNodes <= 0 {
				delete(c.Images, name)
			}
		}
	}
	states := map[string]*fwk.ImageStateSummary{}
	if object != nil {
		for _, found := range object.Status.Images {
			for _, name := range found.Names {
				if states[name] == nil {
					states[name] = c.countImage(name, found.SizeBytes)
				}
			}
		}
	}
	n.Info.ImageStates = states
}

// countImage adds a node to the number of nodes of an image. The size is that on the first node.
func (c *Cluster) countImage(name string, size int64) *fwk.ImageStateSummary {
	shared := c.Images[name]
	if shared == nil {
		shared = &fwk.ImageStateSummary{Size: size}
		c.Images[name] = shared
	}
	shared.NumNodes++
	return shared
}
