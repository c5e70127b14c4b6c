package core

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newTestLeader returns a leader of term 2.
func newTestLeader() (l *Leader, now time.Time) {
	l, now = NewLeader(LeaderConfig{Self: membership.Member{Name: "self"}}), time.Unix(1_000_000, 0)
	l.Begin(2, now, nil)
	return l, now
}

// TestEarlierReservationsEnd checks that pods are bound to the nodes that an earlier leader chose only until the
// binds of that leader cannot arrive any more.
func TestEarlierReservationsEnd(t *testing.T) {
	l, now := newTestLeader()
	assumed := schedtest.PlainPod("assumed", "1")
	assumed.Spec.NodeName = "node"
	if _, err := l.Assume(now, assumed, wire.TermKeys{}, noView{}); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]string{LateBindLife - time.Second: "node", LateBindLife + time.Second: ""} {
		late := earlierReservation{node: "node", until: now.Add(LateBindLife)}
		l.earlier = map[types.UID]earlierReservation{"pending": late, assumed.UID: late}
		l.expireEarlier(now.Add(after), &Output{})
		for _, uid := range []types.UID{"pending", assumed.UID} {
			if got := l.Earlier(uid); got != want {
				t.Errorf("%v after the term started: Earlier(%s) = %q, want %q", after, uid, got, want)
			}
		}
	}
}

// ownerView is the view of a leader that takes one replica for the owner of all nodes.
type ownerView struct {
	noView
	owner string
}

func (v ownerView) NodeOwner(string) string { return v.owner }

// TestLateAnswerDoesNotCountForNextPlacement has the owner of two nodes answer the reservations of a pod. The pod is placed
// on one node after the other, and the answers for the first node arrive late.
func TestLateAnswerDoesNotCountForNextPlacement(t *testing.T) {
	l, now := newTestLeader()
	view := ownerView{owner: "owner"}
	place := func(node string) uint64 {
		pod := schedtest.PlainPod("pod", "1")
		pod.Spec.NodeName = node
		out, err := l.Assume(now, pod, wire.TermKeys{}, view)
		if err != nil || len(out.Reservations) != 1 {
			t.Fatalf("Assume() = %+v, %v, want a request", out, err)
		}
		return out.Reservations[0].Attempt
	}
	first := place("first")
	l.Forget(now, "pod")
	second := place("second")
	for _, refusal := range []string{"", "the reservation has expired"} {
		l.Ack(now, "owner", wire.Ack{UID: "pod", Attempt: first, Refused: refusal}, view)
		l.Ack(now, "owner", wire.Ack{UID: "pod", Refused: refusal}, view)
		l.Ack(now, "another", wire.Ack{UID: "pod", Attempt: second, Refused: refusal}, view)
		if placed, _ := l.Placement("pod"); placed.Answered {
			t.Errorf("an answer for the first node, or of another replica, with refusal %q, counts for the second", refusal)
		}
	}
	l.Ack(now, "owner", wire.Ack{UID: "pod", Attempt: second}, view)
	if !l.assumed["pod"].reserved() {
		t.Error("the answer for the second node does not count")
	}
}

// TestSettledPodsHaveNoEarlierReservations has a leader learn that pods of an earlier leader were bound or deleted,
// before an owner that does not know that yet reports their reservations. Nothing would remove these reservations later,
// and they would block preemption on the node.
func TestSettledPodsHaveNoEarlierReservations(t *testing.T) {
	l, _ := newTestLeader()
	l.SettleBound("bound")
	l.SettleDeleted("deleted")
	l.addEarlier([]wire.EarlierReservation{
		{UID: "bound", Node: "node"}, {UID: "deleted", Node: "node"}, {UID: "pending", Node: "node"},
	}, func(string) bool { return true })
	for _, uid := range []types.UID{"bound", "deleted"} {
		if got := l.Earlier(uid); got != "" {
			t.Errorf("Earlier(%s) = %q, want none: the pod is settled", uid, got)
		}
	}
	if got := l.Earlier("pending"); got != "node" {
		t.Errorf("Earlier(pending) = %q, want node", got)
	}
}

// TestSettledPodsAreForgotten checks that a leader does not keep the UIDs of all pods that are bound.
func TestSettledPodsAreForgotten(t *testing.T) {
	l, now := newTestLeader()
	expired := now.Add(LateBindLife + time.Second)
	for name, forget := range map[string]func(){
		"the next term":                         func() { l.Begin(l.term+1, now, nil) },
		"the end of the reservations' lifetime": func() { l.expireEarlier(expired, &Output{}) },
	} {
		l.Begin(l.term+1, now, nil)
		l.SettleBound("before")
		if !l.settled.Has("before") {
			t.Errorf("%s: the pod is not remembered before", name)
		}
		forget()
		if len(l.settled) > 0 {
			t.Errorf("%s: %d pods are still remembered", name, len(l.settled))
		}
	}
	l.expireEarlier(expired, &Output{})
	l.SettleBound("after")
	if len(l.settled) > 0 {
		t.Error("a pod is remembered after the reservations of earlier terms have expired")
	}
}

// TestLaterUnansweredBindExtendsTheReservation has two binds of a pod to the same node fail without a definite answer. The
// reservation stays until the second cannot arrive any more, also if an earlier leader has sent the first.
func TestLaterUnansweredBindExtendsTheReservation(t *testing.T) {
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	for name, own := range map[string]*assumption{"own": {pod: pod}, "of an earlier leader": nil} {
		t.Run(name, func(t *testing.T) {
			l, now := newTestLeader()
			ends := now.Add(time.Second)
			l.earlier[pod.UID] = earlierReservation{node: "node", until: ends, own: own}
			second := &assumption{pod: pod}
			l.keepUnanswered(now, second, &Output{})
			if got := l.earlier[pod.UID]; got.own != second || !got.until.After(ends) {
				t.Errorf("the reservation ends at %v, renewed %t; want it renewed for the second bind", got.until, got.own == second)
			}
		})
	}
}
