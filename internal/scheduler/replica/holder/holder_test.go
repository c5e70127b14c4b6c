package holder

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newTestHolder has one node with four CPUs.
func newTestHolder(t *testing.T) *Holder {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	cache := l.Sched.Cache.(*cache.Cache)
	cache.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	return New(klog.Logger{}, l.Ranker, cache)
}

func onNode(name, cpu string) *v1.Pod {
	pod := schedtest.PlainPod(name, cpu)
	pod.Spec.NodeName = "node"
	return pod
}

func (h *Holder) ask(t *testing.T, pod *v1.Pod, ready, held bool) string {
	t.Helper()
	r := NewReservation(pod, wire.TermKeys{})
	r.Granted = held
	return h.Reserve(t.Context(), "leader", 1, ready, &r)
}

func (h *Holder) wants(t *testing.T, pods, reservations int) {
	t.Helper()
	if have := h.Counts(); have.Pods != pods || have.Reservations != reservations {
		t.Errorf("%d pods and %d reservations instead of %d and %d", have.Pods, have.Reservations, pods, reservations)
	}
}

// TestTwoTellings checks lists that overlap: a pod that was sent since the start of a list is kept
// at its end, and a pod that was not sent is removed.
func TestTwoTellings(t *testing.T) {
	h := newTestHolder(t)
	every := refresh.AllSlots().Of(make(membership.Table, membership.SlotCount), "")
	h.SetPod(onNode("gone", "1"))
	h.BeginList("a", 1)
	h.SetPod(onNode("told", "1"))
	h.BeginList("a", 2)
	h.EndList("a", 1, every)
	h.wants(t, 1, 0)
	h.EndList("a", 2, []int{(membership.SlotOf("told") + 1) % membership.SlotCount})
	h.wants(t, 1, 0)
	// The end of a list that was not started on this connection has no effect.
	h.BeginList("a", 3)
	h.Connected("a")
	h.EndList("a", 3, every)
	h.wants(t, 1, 0)
}

// TestPlaces checks that a holder that is not ready accepts only earlier reservations, and that a
// reservation is released only for its own node.
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
	h.Reserve(t.Context(), "leader", 1, true, &wire.Reservation{UID: "before", Node: "another"})
	h.wants(t, 0, 1)
	if acks := h.Renew([]types.UID{"before", "large"}); acks[0].Refused != "" || acks[1].Refused == "" {
		t.Errorf("kept: %v", acks)
	}
	h.SetPod(onNode("before", "3"))
	h.wants(t, 1, 0)
	h.RemovePod("before")
	h.wants(t, 0, 0)
	if refused := h.ask(t, onNode("large", "4"), true, false); refused != "" {
		t.Error(refused)
	}
}

// TestExpiry checks that a reservation expires if it is not renewed, and sooner if another replica
// leads, but not if the pod is bound.
func TestExpiry(t *testing.T) {
	h := newTestHolder(t)
	h.ask(t, onNode("pod", "3"), true, false)
	now := time.Now()
	h.ShortenOld(1, now)
	if late := h.Overdue(now.Add(earlierLeaderReservationLife + time.Second)); len(late) != 0 {
		t.Error("who leads lost a place to itself")
	}
	h.ShortenOld(2, now)
	late := now.Add(earlierLeaderReservationLife + time.Second)
	if len(h.Overdue(late)) != 1 {
		t.Fatal("the place is not overdue")
	}
	h.Expire("pod", late, true)
	h.wants(t, 0, 1)
	if len(h.Overdue(late)) != 0 {
		t.Error("the place of a bound pod is overdue still")
	}
	late = late.Add(reservationLife + time.Second)
	h.Expire("pod", late, false)
	h.wants(t, 0, 0)
	if have := h.Counts(); have.Expired != 1 {
		t.Errorf("%d places were expired", have.Expired)
	}
	if refused := h.ask(t, onNode("other", "4"), true, false); refused != "" {
		t.Error(refused)
	}
}
