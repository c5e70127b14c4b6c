package core

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestConnectedForgetsLists checks that a new connection ends the lists that the sender had started on the previous
// one, and no list of another replica.
func TestConnectedForgetsLists(t *testing.T) {
	p := NewPending()
	for _, from := range []string{"a", "b"} {
		if err := p.BeginList(from, 1); err != nil {
			t.Fatal(err)
		}
	}
	p.Connected("a")
	if len(p.lists["a"]) != 0 || len(p.lists["b"]) != 1 {
		t.Errorf("the lists are %v, want only that of replica b", p.lists)
	}
}

// TestPendingPodsThatAreMissingFromAList checks what becomes of pods that a list lacks: a pod that nobody has placed was
// deleted, and of a placed one it is not known whether it was bound.
func TestPendingPodsThatAreMissingFromAList(t *testing.T) {
	p := NewPending()
	for _, name := range []string{"placed", "plain"} {
		p.Set(schedtest.PlainPod(name, "1"))
	}
	if err := p.BeginList("a", 1); err != nil {
		t.Fatal(err)
	}
	p.Set(schedtest.PlainPod("listed", "1"))
	slots := make([]int, 0, len(refresh.AllSlots()))
	for slot := range refresh.AllSlots() {
		slots = append(slots, slot)
	}
	deleted, unclear := p.EndList("a", 1, slots, func(uid types.UID) bool { return uid == "placed" })
	if len(deleted) != 1 || deleted[0].Before.Name != "plain" || len(unclear) != 1 || unclear[0].Name != "placed" {
		t.Errorf("EndList() = %v deleted and %v unclear, want one each", deleted, unclear)
	}
	for name, want := range map[string]bool{"placed": true, "plain": false, "listed": true} {
		if got := p.Has(types.UID(name)); got != want {
			t.Errorf("Has(%s) = %t, want %t", name, got, want)
		}
	}
}

// TestNewerPodReplacesItsName has two pods of one name arrive in either order. The older one was deleted.
func TestNewerPodReplacesItsName(t *testing.T) {
	older, newer := schedtest.PlainPod("pod", "1"), schedtest.PlainPod("pod", "1")
	older.UID, older.ResourceVersion, newer.UID, newer.ResourceVersion = "older", "5", "newer", "7"
	p := NewPending()
	p.Set(older)
	if changes := p.Set(newer); len(changes) != 2 || changes[0].Before != older || changes[0].After != nil || changes[1].After != newer {
		t.Errorf("Set() of the newer pod = %v, want the deletion of the older one first", changes)
	}
	if changes := p.Set(older); len(changes) != 0 || !p.Has("newer") || p.Has("older") {
		t.Errorf("Set() of the older pod = %v, want no change", changes)
	}
}
