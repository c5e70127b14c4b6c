package leader

import v1 "k8s.io/api/core/v1"

// maxKeptNodes is the number of nodes at which [Leader.KeepNode] discards those that no assumed pod uses. If more
// than half of them are used, it keeps twice as many as are used.
const maxKeptNodes = 4096

// KeepNode stores the node that was chosen for a pod with volumes or resource claims, because plugins look it up
// while they bind the pod. Only the scheduling cycle calls it.
func (l *Leader) KeepNode(node *v1.Node) {
	if len(l.nodeEvents.indexer.ListKeys()) >= max(l.keptNodes, maxKeptNodes) {
		l.discardNodes()
	}
	_ = l.nodeEvents.indexer.Add(node)
}

// discardNodes discards the nodes that no assumed pod uses.
func (l *Leader) discardNodes() {
	l.mu.Lock()
	used := l.core.UsedNodes()
	l.mu.Unlock()
	kept := 0
	for _, stored := range l.nodeEvents.indexer.List() {
		if used.Has(stored.(*v1.Node).Name) {
			kept++
		} else {
			_ = l.nodeEvents.indexer.Delete(stored)
		}
	}
	l.keptNodes = 2 * kept
}
