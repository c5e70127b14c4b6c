package member

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestRecreatedNodeMovesToItsNewOwner announces two nodes with one name, as after a node was
// deleted and created again. The newer one counts when the owner of the older one has reported its deletion, and this owner
// removes its pods.
func TestRecreatedNodeMovesToItsNewOwner(t *testing.T) {
	table := make(membership.Table, membership.SlotCount)
	table[1], table[2] = "self", "other"
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	m := &Member{
		options: Options{Self: membership.Member{Name: "self"}}, table: table, holder: holder.New(klog.Logger{}, f.Ranker, nodes),
		slots: map[uint64]nodeSlot{}, goneNodes: map[uint64]time.Time{}, podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, peers: map[string]*peer{},
	}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, m.podChanged, func() {})
	older := wire.NodeName{Hash: hashOf("node"), Slot: 1, Created: 10}
	newer := wire.NodeName{Hash: hashOf("node"), Slot: 2, Created: 20}
	announce := func(from string, node wire.NodeName) {
		if _, err := m.HandleNodes(from, []wire.NodeName{node}); err != nil {
			t.Fatal(err)
		}
	}
	announce("self", older)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	m.holder.SetPod(pod, yes, yes)
	announce("other", newer)
	m.HandleGoneNodes("other", []wire.NodeName{older})
	if owner := m.ownerOf("node"); owner != "self" || !m.waits("other") {
		t.Errorf("ownerOf(%q) = %q before the owner has reported its deletion, want self", "node", owner)
	}
	m.HandleGoneNodes("self", []wire.NodeName{older})
	announce("other", older)
	if settled := m.TakeSettled(); !slices.Equal(settled, []string{"other"}) {
		t.Errorf("TakeSettled() = %v, want [other]", settled)
	}
	if owner := m.ownerOf("node"); owner != "other" {
		t.Errorf("ownerOf(%q) = %q, want %q", "node", owner, "other")
	}
	if got := m.holder.Counts(); got.Pods != 0 || got.Reservations != 0 {
		t.Errorf("Counts() = %d pods and %d reservations, want 0 and 0", got.Pods, got.Reservations)
	}
}

// TestReportAndDropNodesDoNotDeadlock sends status reports while pods of lost nodes are removed. Removal
// holds the lock of the holder and asks the member for the owner of a node. So a report must not call the
// holder while it holds the lock of the member.
func TestReportAndDropNodesDoNotDeadlock(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	m := &Member{
		holder: holder.New(klog.Logger{}, f.Ranker, nodes), slots: map[uint64]nodeSlot{}, peers: map[string]*peer{},
		assignment: &wire.Assignment{Term: 2, Number: 1}, appliedStamp: stamp(2, 1), refreshed: sets.New[string](),
	}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, nil, nil)
	m.nodes = newSlotWatcher(&v1.Node{}, nil, nil, nil, nil)
	m.pods.synced.Store(true)
	m.nodes.synced.Store(true)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	m.holder.SetPod(pod, yes, yes)
	done := make(chan struct{}, 2)
	for _, call := range []func(){func() { m.report("") }, func() { m.holder.DropNodes(nil, m.ownsNode) }} {
		go func() {
			for range 20_000 {
				call()
			}
			done <- struct{}{}
		}()
	}
	for range 2 {
		select {
		case <-done:
		case <-time.After(schedtest.Patience):
			t.Fatal("a status report and the removal of pods wait for each other")
		}
	}
}

func yes() bool { return true }
