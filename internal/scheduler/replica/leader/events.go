package leader

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// unverifiedRetryDelay is the time after which all unschedulable pods are retried because of unverified events.
const unverifiedRetryDelay = time.Second

// handleEvent passes a change of a bound pod or a node to the scheduler's event handlers, if its sender may report it.
// These handlers remove pods from the queue and from the assumptions, so another replica must not be able to name any pod.
//
// An honest sender may fail this check while hash slots move: it follows another assignment than this leader, or this
// leader does not know the owner of the node yet. Its event is not lost, because all unschedulable pods are retried a
// little later. Pods and assumptions do not depend on the event: the replica that watches a pod reports its bind or its
// deletion with a message of its own.
func (l *Leader) handleEvent(from string, event *wire.Event) error {
	l.search.invalidate()
	if event.Node {
		before, after, err := decodeEvent[v1.Node](event)
		switch {
		case err != nil:
			return err
		case before != nil && !l.member.Trusts(from, before.UID), after != nil && !l.member.Trusts(from, after.UID):
			l.retryUnverified()
		default:
			notifyTyped(l.nodeEvents, before, after)
		}
		return nil
	}
	before, after, err := decodeEvent[v1.Pod](event)
	switch {
	case err != nil:
		return err
	case before != nil && after != nil && before.UID != after.UID, !l.mayReport(from, before), !l.mayReport(from, after):
		l.retryUnverified()
	default:
		notifyTyped(l.podEvents, before, after)
	}
	return nil
}

// mayReport returns whether a replica may send an event about a pod, which may be nil: it watches the pod, or it owns the
// node of the pod. Pending pods have no events, and the owner of a node does not decide about a pod that this leader
// has placed on another one.
func (l *Leader) mayReport(from string, pod *v1.Pod) bool {
	switch {
	case pod == nil:
		return true
	case pod.Spec.NodeName == "":
		return false
	case l.member.Trusts(from, pod.UID):
		return true
	}
	return l.member.NodeOwner(pod.Spec.NodeName) == from && !l.placedElsewhere(pod.UID, pod.Spec.NodeName)
}

// placedElsewhere returns whether the bind of a pod to another node than the given one may arrive.
func (l *Leader) placedElsewhere(uid types.UID, node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.PlacedElsewhere(uid, node)
}

// retryUnverified retries all unschedulable pods after unverifiedRetryDelay, once for all events that arrive until then.
func (l *Leader) retryUnverified() {
	if !l.retrying.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(unverifiedRetryDelay, func() {
		l.retrying.Store(false)
		if l.ctx.Err() == nil && l.Term() > 0 {
			l.search.invalidate()
			l.retryUnschedulable()
		}
	})
}
