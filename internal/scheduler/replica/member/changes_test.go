package member

import (
	"testing"

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

// TestNodeMadeAnew checks that of two nodes with one name the later one counts in either order of
// arrival, and that the owner of the first removes its pods.
func TestNodeMadeAnew(t *testing.T) {
	table := make(membership.Table, membership.SlotCount)
	table[1], table[2] = "me", "other"
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := l.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	m := &Member{
		options: Options{Self: membership.Member{Name: "me"}}, table: table, holder: holder.New(klog.Logger{}, l.Ranker, nodes),
		slots: map[uint64]nodeSlot{}, podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, peers: map[string]*peer{},
	}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, m.podChanged, func() {})
	first := wire.NodeName{Hash: hashOf("node"), Slot: 1, Created: 10}
	second := wire.NodeName{Hash: hashOf("node"), Slot: 2, Created: 20}
	m.HandleNodes([]wire.NodeName{first})
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	m.holder.SetPod(pod)
	m.HandleNodes([]wire.NodeName{second})
	m.HandleNodes([]wire.NodeName{first})
	if owner := m.ownerOf("node"); owner != "other" {
		t.Errorf("%q owns the node", owner)
	}
	if have := m.holder.Counts(); have.Pods != 0 || have.Reservations != 0 {
		t.Errorf("%d pods and %d reservations are left", have.Pods, have.Reservations)
	}
}
