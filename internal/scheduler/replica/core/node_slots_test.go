package core

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestDeletedNodesAreForgotten deletes nodes of another replica: one with a message, and one while the connection
// is interrupted. Their slots are removed, unless a watched pod is on the node or the node was created again.
func TestDeletedNodesAreForgotten(t *testing.T) {
	m := newAnnouncing(t)
	m.table = make(membership.Table, membership.SlotCount)
	m.table[1] = "other"
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "used"
	m.pods = []*v1.Pod{pod}
	node := func(name string) wire.NodeName {
		return wire.NodeName{Hash: HashOf(name), Slot: 1, Created: 10, Number: 5}
	}
	listed := &wire.Refresh{Term: 1, Number: 1, Slots: []int{1}, Since: []int64{5}, ID: 6}
	m.Connected("other")
	m.HandleNodes("other", []wire.NodeName{node("kept"), node("deleted"), node("used"), node("missed"), node("again")})
	m.HandleNodesListed("other", listed)
	m.reportGone(t, "other", node("deleted"), node("used"), node("again"))
	m.Connected("other")
	m.HandleNodes("other", []wire.NodeName{node("kept"), {Hash: HashOf("again"), Slot: 1, Created: 20, Number: 5}})
	m.HandleNodesListed("other", listed)
	m.forgetNodes()
	if len(m.slots) != 5 {
		t.Errorf("%d slots right after the deletion, want 5", len(m.slots))
	}
	for hash, since := range m.goneNodes {
		m.goneNodes[hash] = since.Add(-2 * goneNodeLife)
	}
	m.forgetNodes()
	for name, want := range map[string]bool{"kept": true, "deleted": false, "used": true, "missed": false, "again": true} {
		if _, got := m.slots[HashOf(name)]; got != want {
			t.Errorf("the slot of node %s is known: %v, want %v", name, got, want)
		}
	}
	// A pod may appear on the node while forgetNodes looks for pods.
	m.pods = nil
	m.PodChanged(m.now, nil, pod, false)
	m.forgetNodes()
	if _, known := m.slots[HashOf("used")]; !known {
		t.Error("the slot of a node on which a pod has just appeared is not known any more")
	}
	for hash, since := range m.goneNodes {
		m.goneNodes[hash] = since.Add(-2 * goneNodeLife)
	}
	m.forgetNodes()
	if len(m.slots) != 2 || len(m.goneNodes) != 0 {
		t.Errorf("%d slots and %d deleted nodes, want 2 and 0", len(m.slots), len(m.goneNodes))
	}
}
