package leader

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestEarlierReservationsEnd checks that pods are bound to the nodes that an earlier leader chose only until the
// binds of that leader cannot arrive any more.
func TestEarlierReservationsEnd(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	l := &Leader{member: &member.Member{}, sched: f.Sched, search: &Search{}}
	l.assumptions = newAssumptions(f.Sched.Cache, l.search, l)
	assumed := schedtest.PlainPod("assumed", "1")
	assumed.Spec.NodeName = "node"
	f.Must(l.assumptions.AssumePod(l.logger, assumed))
	l.termStart = time.Now()
	for after, want := range map[time.Duration]string{holder.LateBindLife - time.Second: "node", holder.LateBindLife + time.Second: ""} {
		late := earlierReservation{node: "node", until: l.termStart.Add(holder.LateBindLife)}
		l.earlier = map[types.UID]earlierReservation{"pending": late, assumed.UID: late}
		l.expireEarlier(l.termStart.Add(after))
		for _, uid := range []types.UID{"pending", assumed.UID} {
			if got := l.Earlier(uid); got != want {
				t.Errorf("%v after the term started: Earlier(%s) = %q, want %q", after, uid, got, want)
			}
		}
	}
}

// TestLateAnswerDoesNotCountForNextPlacement has the owner of two nodes answer the reservations of a pod. The pod is placed
// on one node after the other, and the answers for the first node arrive late.
func TestLateAnswerDoesNotCountForNextPlacement(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	l := &Leader{member: &member.Member{}, sched: f.Sched, search: &Search{}, earlier: map[types.UID]earlierReservation{}}
	l.assumptions = newAssumptions(f.Sched.Cache, l.search, l)
	owns := func(string) bool { return true }
	place := func(node string) *assumption {
		pod := schedtest.PlainPod("pod", "1")
		pod.Spec.NodeName = node
		a := &assumption{pod: pod, acked: make(chan struct{})}
		l.assumptions.mu.Lock()
		defer l.assumptions.mu.Unlock()
		l.assumptions.lastAttempt++
		a.attempt = l.assumptions.lastAttempt
		l.assumptions.assumed[pod.UID] = a
		return a
	}
	first := place("first")
	f.Must(l.assumptions.ForgetPod(l.logger, first.pod))
	second := place("second")
	for _, refusal := range []string{"", "the reservation has expired"} {
		l.assumptions.ack(wire.Ack{UID: "pod", Attempt: first.attempt, Refused: refusal}, owns)
		l.assumptions.ack(wire.Ack{UID: "pod", Refused: refusal}, owns)
		if second.isAcked() {
			t.Errorf("an answer for the first node, with refusal %q, counts for the second", refusal)
		}
	}
	l.assumptions.ack(wire.Ack{UID: "pod", Attempt: second.request().Attempt}, owns)
	if !second.reserved() {
		t.Error("the answer for the second node does not count")
	}
}

// TestSettledPodsHaveNoEarlierReservations has a leader learn that pods of an earlier leader were bound or deleted,
// before an owner that does not know that yet reports their reservations. Nothing would remove these reservations later,
// and they would block preemption on the node.
func TestSettledPodsHaveNoEarlierReservations(t *testing.T) {
	l := newStallLeader(t)
	l.assumptions = newAssumptions(nil, l.search, l)
	l.begin(2)
	settled := map[types.UID]string{"bound": "node", "deleted": ""}
	for uid, node := range settled {
		if err := l.HandlePending(&wire.Item{UID: uid, Node: node}); err != nil {
			t.Fatal(err)
		}
	}
	l.addEarlier([]wire.EarlierReservation{
		{UID: "bound", Node: "node"}, {UID: "deleted", Node: "node"}, {UID: "pending", Node: "node"},
	}, func(string) bool { return true })
	for uid := range settled {
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
	l := newStallLeader(t)
	for name, forget := range map[string]func(){
		"the next term":                         func() { l.begin(l.term + 1) },
		"the end of the reservations' lifetime": func() { l.expireEarlier(l.termStart.Add(holder.LateBindLife + time.Second)) },
	} {
		l.begin(l.term + 1)
		l.settleBound("before")
		if !l.settled.Has("before") {
			t.Errorf("%s: the pod is not remembered before", name)
		}
		forget()
		if len(l.settled) > 0 {
			t.Errorf("%s: %d pods are still remembered", name, len(l.settled))
		}
	}
	l.expireEarlier(l.termStart.Add(holder.LateBindLife + time.Second))
	l.settleBound("after")
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
			l := newStallLeader(t)
			l.begin(2)
			ends := time.Now().Add(time.Second)
			l.earlier[pod.UID] = earlierReservation{node: "node", until: ends, own: own}
			second := &assumption{pod: pod}
			l.keepUnanswered(second)
			if got := l.earlier[pod.UID]; got.own != second || !got.until.After(ends) {
				t.Errorf("the reservation ends at %v, renewed %t; want it renewed for the second bind", got.until, got.own == second)
			}
		})
	}
}

// TestWhichBindsAreUnanswered has binds fail, some of them after an earlier attempt of client-go.
func TestWhichBindsAreUnanswered(t *testing.T) {
	pods := v1.Resource("pods")
	for name, test := range map[string]struct {
		err  error
		sent bool
		want bool
	}{
		"connection":                      {errors.New("connection reset by peer"), true, true},
		"stopped by the guard":            {fmt.Errorf("post: %w", errNotSent), false, false},
		"stopped by the guard, sent once": {fmt.Errorf("post: %w", errNotSent), true, true},
		"conflict":                        {apierrors.NewConflict(pods, "pod", errors.New("already assigned")), true, true},
		"internal error":                  {apierrors.NewInternalError(errors.New("store")), true, true},
		"forbidden":                       {apierrors.NewForbidden(pods, "pod", errors.New("no")), true, false},
		"not found":                       {apierrors.NewNotFound(pods, "pod"), true, false},
		"too many requests":               {apierrors.NewTooManyRequests("later", 1), true, false},
	} {
		if got := isUnanswered(test.err, test.sent); got != test.want {
			t.Errorf("%s: isUnanswered(%v, %t) = %t, want %t", name, test.err, test.sent, got, test.want)
		}
	}
}
