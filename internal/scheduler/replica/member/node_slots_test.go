package member

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestDeletedNodesAreForgotten deletes nodes of another replica: one with a message, and one while the connection
// is interrupted. Their slots are removed, unless a watched pod is on the node or the node was created again.
func TestDeletedNodesAreForgotten(t *testing.T) {
	table := make(membership.Table, membership.SlotCount)
	table[1] = "other"
	m := &Member{
		options: Options{Self: membership.Member{Name: "self"}}, table: table, assignment: &wire.Assignment{Term: 1, Number: 1},
		slots: map[uint64]nodeSlot{}, goneNodes: map[uint64]time.Time{}, connections: map[string]int32{}, unchecked: map[string]*listedNodes{},
		podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, peers: map[string]*peer{}, earlyRequests: map[string]*wire.Refresh{},
	}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, m.podChanged, func() {})
	m.ctx = t.Context()
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "used"
	m.pods.objects[pod.UID] = pod
	node := func(name string) wire.NodeName {
		return wire.NodeName{Hash: hashOf(name), Slot: 1, Created: 10, Number: 5}
	}
	listed := &wire.Refresh{Term: 1, Number: 1, Slots: []int{1}, Since: []int64{5}, ID: 6}
	m.Connected("other")
	m.HandleNodes("other", []wire.NodeName{node("kept"), node("deleted"), node("used"), node("missed"), node("again")})
	m.HandleNodesListed("other", listed)
	m.HandleGoneNodes("other", []wire.NodeName{node("deleted"), node("used"), node("again")})
	m.Connected("other")
	m.HandleNodes("other", []wire.NodeName{node("kept"), {Hash: hashOf("again"), Slot: 1, Created: 20, Number: 5}})
	m.HandleNodesListed("other", listed)
	m.forgetNodes(t.Context())
	if len(m.slots) != 5 {
		t.Errorf("%d slots right after the deletion, want 5", len(m.slots))
	}
	for hash, since := range m.goneNodes {
		m.goneNodes[hash] = since.Add(-2 * goneNodeLife)
	}
	m.forgetNodes(t.Context())
	for name, want := range map[string]bool{"kept": true, "deleted": false, "used": true, "missed": false, "again": true} {
		if _, got := m.slots[hashOf(name)]; got != want {
			t.Errorf("the slot of node %s is known: %v, want %v", name, got, want)
		}
	}
	// A pod may appear on the node while forgetNodes looks for pods.
	delete(m.pods.objects, pod.UID)
	m.podChanged(nil, pod, false)
	m.forgetNodes(t.Context())
	if _, known := m.slots[hashOf("used")]; !known {
		t.Error("the slot of a node on which a pod has just appeared is not known any more")
	}
	for hash, since := range m.goneNodes {
		m.goneNodes[hash] = since.Add(-2 * goneNodeLife)
	}
	m.forgetNodes(t.Context())
	if len(m.slots) != 2 || len(m.goneNodes) != 0 {
		t.Errorf("%d slots and %d deleted nodes, want 2 and 0", len(m.slots), len(m.goneNodes))
	}
}
