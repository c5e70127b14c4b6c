package replica

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newTestHolder has one node, of four cores.
func newTestHolder(t *testing.T) *holder {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	cache := l.Sched.Cache.(*cache.Cache)
	cache.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	return newHolder(klog.Logger{}, l.Ranker, cache)
}

func onNode(name, cpu string) *v1.Pod {
	pod := schedtest.PlainPod(name, cpu)
	pod.Spec.NodeName = "node"
	return pod
}

func (h *holder) ask(t *testing.T, pod *v1.Pod, ready, held bool) string {
	t.Helper()
	r := reservationOf(pod, wire.Demands{})
	r.Held = held
	return h.reserve(t.Context(), "leader", 1, ready, &r)
}

func (h *holder) wants(t *testing.T, pods, reservations int) {
	t.Helper()
	if have := h.counts(); have.pods != pods || have.reservations != reservations {
		t.Errorf("%d pods and %d reservations instead of %d and %d", have.pods, have.reservations, pods, reservations)
	}
}

// TestTwoTellings: a replica that tells anew while it still does so does not sweep away
// what it has told, and does what it has not.
func TestTwoTellings(t *testing.T) {
	h := newTestHolder(t)
	every := every().of(make(wire.Table, wire.Slots), "")
	h.set(onNode("gone", "1"))
	h.begin("a", 1)
	h.set(onNode("told", "1"))
	h.begin("a", 2)
	h.refreshed("a", 1, every)
	h.wants(t, 1, 0)
	h.refreshed("a", 2, []int{(wire.Slot("told") + 1) % wire.Slots})
	h.wants(t, 1, 0)
	// What ends without having begun on this connection says nothing.
	h.begin("a", 3)
	h.connected("a")
	h.refreshed("a", 3, every)
	h.wants(t, 1, 0)
}

// TestPlaces: who does not know all pods gives places only to those that had one before,
// and a place is given back by its node only.
func TestPlaces(t *testing.T) {
	h := newTestHolder(t)
	if refused := h.ask(t, onNode("new", "1"), false, false); refused == "" {
		t.Error("a place was given by who is not ready")
	}
	if refused := h.ask(t, onNode("before", "3"), false, true); refused != "" {
		t.Error(refused)
	}
	if refused := h.ask(t, onNode("large", "2"), true, false); refused == "" {
		t.Error("more was given than there is")
	}
	h.reserve(t.Context(), "leader", 1, true, &wire.Reservation{UID: "before", Node: "another"})
	h.wants(t, 0, 1)
	if acks := h.keep([]types.UID{"before", "large"}); acks[0].Refused != "" || acks[1].Refused == "" {
		t.Errorf("kept: %v", acks)
	}
	h.set(onNode("before", "3"))
	h.wants(t, 1, 0)
	h.gone("before")
	h.wants(t, 0, 0)
	if refused := h.ask(t, onNode("large", "4"), true, false); refused != "" {
		t.Error(refused)
	}
}

// TestExpiry: a place ends when nobody asks to keep it, and sooner if another leads; but
// not if the pod is bound.
func TestExpiry(t *testing.T) {
	h := newTestHolder(t)
	h.ask(t, onNode("pod", "3"), true, false)
	now := time.Now()
	h.bequeath(1, now)
	if late := h.overdue(now.Add(bequestLife + time.Second)); len(late) != 0 {
		t.Error("who leads lost a place to itself")
	}
	h.bequeath(2, now)
	late := now.Add(bequestLife + time.Second)
	if len(h.overdue(late)) != 1 {
		t.Fatal("the place is not overdue")
	}
	h.expire("pod", late, true)
	h.wants(t, 0, 1)
	if len(h.overdue(late)) != 0 {
		t.Error("the place of a bound pod is overdue still")
	}
	late = late.Add(reservationLife + time.Second)
	h.expire("pod", late, false)
	h.wants(t, 0, 0)
	if have := h.counts(); have.freed != 1 {
		t.Errorf("%d places were freed", have.freed)
	}
	if refused := h.ask(t, onNode("other", "4"), true, false); refused != "" {
		t.Error(refused)
	}
}

// TestNodeMadeAnew: of two nodes with a name the later one counts, whoever is told of
// first, and pods of the other are not kept by who owned that.
func TestNodeMadeAnew(t *testing.T) {
	table := make(wire.Table, wire.Slots)
	table[1], table[2] = "me", "other"
	r := &Replica{
		options: Options{Self: wire.Member{Name: "me"}}, table: table, holder: newTestHolder(t),
		slots: map[uint64]nodeSlot{}, strays: map[string]sets.Set[types.UID]{}, peers: map[string]*peer{},
	}
	r.pods = newShare(&v1.Pod{}, nil, nil, r.podChanged, func() {})
	first := wire.NodeName{Hash: hashOf("node"), Slot: 1, Created: 10}
	second := wire.NodeName{Hash: hashOf("node"), Slot: 2, Created: 20}
	r.learn([]wire.NodeName{first})
	r.holder.set(onNode("pod", "1"))
	r.learn([]wire.NodeName{second})
	r.learn([]wire.NodeName{first})
	if owner := r.owner("node"); owner != "other" {
		t.Errorf("%q owns the node", owner)
	}
	r.holder.wants(t, 0, 0)
}
