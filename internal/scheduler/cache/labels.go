package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// labelledNodes has the nodes with each label except the usual ones, by the key of the label. When a pod refers
// to a label that is not part of node shapes, only these nodes get another shape. To look for them among all nodes
// would delay the scheduling cycle, and anybody who creates pods could cause it again and again with new keys.
type labelledNodes map[string]*nodesWithLabel

// nodesWithLabel has the nodes with one label.
type nodesWithLabel struct {
	// ids has each node with the label at least once. It may also have nodes that have lost the label,
	// and unused numbers. It is empty if the label is part of node shapes.
	ids []index.NodeID
	// count is the number of nodes with the label.
	count int
}

// noteLabels updates labelled after a change of a node. before is nil for a new node, and after for a deleted
// one.
func (c *Cluster) noteLabels(id index.NodeID, before, after *v1.Node) {
	var old, now map[string]string
	if before != nil {
		old = before.Labels
	}
	if after != nil {
		now = after.Labels
	}
	for label := range old {
		if _, kept := now[label]; !kept {
			c.removeLabel(label)
		}
	}
	for label := range now {
		if _, had := old[label]; !had && !isUsual(label) {
			c.addLabel(id, label)
		}
	}
}

// addLabel adds a node to the nodes with a label.
func (c *Cluster) addLabel(id index.NodeID, label string) {
	nodes := c.labelled[label]
	if nodes == nil {
		nodes = &nodesWithLabel{}
		c.labelled[label] = nodes
		c.Names.noteFirstCarrier(label)
	}
	nodes.count++
	if c.Names.refersTo(label) {
		return
	}
	nodes.ids = append(nodes.ids, id)
	if len(nodes.ids) > 2*nodes.count+sparePositions {
		// Most entries are outdated.
		nodes.ids = slices.DeleteFunc(nodes.ids, func(other index.NodeID) bool { return other != id && !c.hasLabel(other, label) })
		slices.Sort(nodes.ids)
		nodes.ids = slices.Compact(nodes.ids)
	}
}

// sparePositions is the number of outdated entries of [nodesWithLabel] that are not worth a cleanup.
const sparePositions = 16

// removeLabel subtracts a node from the number of nodes with a label.
func (c *Cluster) removeLabel(label string) {
	nodes := c.labelled[label]
	if nodes == nil {
		return
	}
	if nodes.count--; nodes.count == 0 {
		delete(c.labelled, label)
	}
}

// hasLabel returns whether the node with a number has a label.
func (c *Cluster) hasLabel(id index.NodeID, label string) bool {
	n := c.ByID[id]
	if n == nil || n.Position < 0 {
		return false
	}
	_, labelled := n.Info.Node().Labels[label]
	return labelled
}

// valueCount is the number of values of a label when there were this many nodes.
type valueCount struct {
	nodes, values int
}

// fewValues is the default of [Cluster.FewValues].
const fewValues = 1000

// IsPerNode returns whether a label has another value on nearly each node, as labels of drivers with local volumes. As a part of
// shapes it would make each node a state of its own. It reads all nodes when it is first called for a label, and again
// when there are twice as many nodes.
func (c *Cluster) IsPerNode(label string) bool {
	if isUsual(label) {
		return label == v1.LabelHostname
	}
	known := c.valueCounts[label]
	if nodes := c.Index.Len(); nodes >= 2*known.nodes {
		values := map[string]struct{}{}
		for _, n := range c.Nodes {
			if n.Position < 0 {
				continue
			}
			if value, labelled := n.Info.Node().Labels[label]; labelled {
				values[value] = struct{}{}
			}
		}
		known = valueCount{max(nodes, 1), len(values)}
		if len(c.valueCounts) >= fewValues {
			clear(c.valueCounts)
		}
		c.valueCounts[label] = known
	}
	return known.values > max(c.FewValues, known.nodes/4)
}

// ReferToLabels makes the labels with the given keys part of node shapes. Nodes with such a label get
// another shape; nodes without keep theirs.
func (c *Cluster) ReferToLabels(keys []string) {
	for _, label := range c.Names.referToLabels(keys) {
		nodes := c.labelled[label]
		if nodes == nil {
			continue
		}
		ids := nodes.ids
		nodes.ids = nil
		for _, id := range ids {
			if c.hasLabel(id, label) {
				n := c.ByID[id]
				n.Shape = c.Names.shape(n.Info)
				c.Index.Place(n.ID, c.Names.State(n))
			}
		}
	}
}
