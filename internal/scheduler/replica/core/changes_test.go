package core

import (
	"slices"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestRecreatedNodeMovesToItsNewOwner announces two nodes with one name, as after a node was
// deleted and created again. The newer one counts when the owner of the older one has reported its deletion, and this owner
// removes its pods.
func TestRecreatedNodeMovesToItsNewOwner(t *testing.T) {
	m := newAnnouncing(t)
	m.table = make(membership.Table, membership.SlotCount)
	m.table[1], m.table[2] = "self", "other"
	older := wire.NodeName{Hash: HashOf("node"), Slot: 1, Created: 10}
	newer := wire.NodeName{Hash: HashOf("node"), Slot: 2, Created: 20}
	announce := func(from string, node wire.NodeName) {
		if _, err := m.HandleNodes(from, []wire.NodeName{node}); err != nil {
			t.Fatal(err)
		}
	}
	announce("self", older)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	yes := func() bool { return true }
	m.ledger.SetPod(pod, yes, yes)
	announce("other", newer)
	m.reportGone(t, "other", older)
	if owner := m.NodeOwner("node"); owner != "self" || !m.waits("other") {
		t.Errorf("NodeOwner(node) = %q before the owner has reported its deletion, want self", owner)
	}
	m.reportGone(t, "self", older)
	announce("other", older)
	if settled := m.TakeSettled(); !slices.Equal(settled, []string{"other"}) {
		t.Errorf("TakeSettled() = %v, want [other]", settled)
	}
	if owner := m.NodeOwner("node"); owner != "other" {
		t.Errorf("NodeOwner(node) = %q, want other", owner)
	}
	if got := m.ledger.Counts(); got.Pods != 0 || got.Reservations != 0 {
		t.Errorf("Counts() = %d pods and %d reservations, want 0 and 0", got.Pods, got.Reservations)
	}
}
