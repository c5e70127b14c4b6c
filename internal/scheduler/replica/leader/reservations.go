package leader

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// resendReservations sends the confirmed reservations again: to the given owner, or to all owners if
// owner is "". ready means that the owner is ready for the current assignment; then the leader also
// sends the unconfirmed reservations.
func (l *Leader) resendReservations(owner string, ready bool) {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() && !ready || a.isAcked() && a.refusal != "" {
			return
		}
		if owner == "" || l.member.NodeOwner(a.pod.Spec.NodeName) == owner {
			reservation := holder.NewReservation(a.pod, a.termKeys)
			reservation.Granted = a.reserved()
			l.sendToOwner(a.pod, reservation)
		}
	})
}

// NodesMoved sends the reservations to a replica that owns nodes which were created again. The owners of the earlier nodes
// had them.
func (l *Leader) NodesMoved(owner string) {
	l.mu.Lock()
	leads, ready := l.number > 0, l.ready.Has(owner)
	l.mu.Unlock()
	if leads {
		l.resendReservations(owner, ready)
	}
}

// HandleAck records a replica's answer to a reservation. It ignores the answer if the replica does not
// own the node according to the current assignment.
func (l *Leader) HandleAck(from string, ack wire.Ack) {
	l.assumptions.ack(ack.UID, ack.Refused, func(node string) bool { return l.member.NodeOwner(node) == from })
}

// reserve requests a reservation for a pod from the owner of its node.
func (l *Leader) reserve(pod *v1.Pod, termKeys wire.TermKeys) {
	l.sendToOwner(pod, holder.NewReservation(pod, termKeys))
	if holder.HasAntiAffinityBeyondNode(pod) {
		owner := l.member.NodeOwner(pod.Spec.NodeName)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lastAntiAffinityPlaced[owner] = time.Now()
	}
}

// release asks the owner of a pod's node to release the reservation, unless an earlier leader had reserved the
// same node: its bind may still arrive, also if the own one has failed.
func (l *Leader) release(pod *v1.Pod) {
	if l.Earlier(pod.UID) == pod.Spec.NodeName {
		return
	}
	l.sendToOwner(pod, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
	// Only now, because a query that is sent before the release still counts the pod.
	l.search.invalidate()
}

// Earlier returns the node on which a leader of an earlier term has reserved capacity for a pod; "" if none has.
func (l *Leader) Earlier(uid types.UID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.earlier[uid]
}

// IsUnsettled returns whether a leader of an earlier term has reserved capacity for a pod that is not known to be bound or
// deleted. This leader may have placed the pod already: it takes such pods first, so another pod may want to evict it while
// it is being bound.
func (l *Leader) IsUnsettled(uid types.UID) bool { return l.Earlier(uid) != "" }

// addEarlier records the reservations of earlier terms that an owner has reported, and returns their pods. It omits those
// of settled pods: no later message would settle these pods again. The caller holds the lock.
func (l *Leader) addEarlier(reported []wire.EarlierReservation) (added []types.UID) {
	for _, r := range reported {
		if !l.settled.Has(r.UID) {
			l.earlier[r.UID] = r.Node
			l.first.insert(r.UID)
			added = append(added, r.UID)
		}
	}
	return added
}

// removeEarlier forgets the reservation of an earlier term for a pod. The caller holds the lock.
func (l *Leader) removeEarlier(uid types.UID) {
	delete(l.earlier, uid)
	l.first.remove(uid)
}

// ReleaseEarlier releases the reservation that a leader of an earlier term requested for a pod. Otherwise the pod
// would count on two nodes once it is placed on another one, and pods with spread constraints would be placed by
// wrong counts until the reservation expires.
func (l *Leader) ReleaseEarlier(uid types.UID) {
	if l.releaseEarlier(uid) {
		// No event reports that, but other pods may fit now.
		l.search.invalidate()
		go l.retryUnschedulable()
	}
}

// releaseEarlier forgets and releases the reservation that a leader of an earlier term requested for a pod. It
// returns false if there is none.
func (l *Leader) releaseEarlier(uid types.UID) bool {
	l.mu.Lock()
	node, found := l.earlier[uid]
	l.removeEarlier(uid)
	l.mu.Unlock()
	if found {
		l.member.SendToOwner(node, func(b *wire.Batch) { b.Reservations = append(b.Reservations, wire.Reservation{UID: uid, Node: node}) })
	}
	return found
}

// settleBound forgets the reservation that a leader of an earlier term requested for a pod, because the pod is bound.
func (l *Leader) settleBound(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(uid)
	l.removeEarlier(uid)
}

// settleDeleted releases the reservation that a leader of an earlier term requested for a deleted pod.
func (l *Leader) settleDeleted(uid types.UID) {
	l.mu.Lock()
	l.settle(uid)
	l.mu.Unlock()
	l.ReleaseEarlier(uid)
}

// settle remembers that a pod was bound or deleted, until the reservations of earlier terms expire. The caller holds
// the lock.
func (l *Leader) settle(uid types.UID) {
	if l.settled != nil {
		l.settled.Insert(uid)
	}
}

// forgetEarlier forgets the reservation that a leader of an earlier term requested for a pod, because the reservation
// is only this leader's own by now.
func (l *Leader) forgetEarlier(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeEarlier(uid)
}

// expireEarlier forgets all reservations of earlier terms when their binds cannot arrive any more: a pod whose bind
// to that node keeps failing may then be placed on another one. It releases those that this leader does not use.
func (l *Leader) expireEarlier(now time.Time) {
	l.mu.Lock()
	var expired []types.UID
	if now.Sub(l.termStart) > holder.LateBindLife {
		expired = slices.Collect(maps.Keys(l.earlier))
		l.settled = nil
	}
	l.mu.Unlock()
	if len(expired) == 0 {
		return
	}
	l.assumptions.mu.Lock()
	for _, uid := range expired {
		if assumed := l.assumptions.assumed[uid]; assumed != nil && assumed.pod.Spec.NodeName == l.Earlier(uid) {
			l.forgetEarlier(uid)
		} else {
			l.releaseEarlier(uid)
		}
	}
	l.assumptions.mu.Unlock()
	l.search.invalidate()
	l.retryUnschedulable()
}

// sendToOwner sends a reservation to the owner of the pod's node. If no replica owns the node, the
// leader records the reservation as refused.
func (l *Leader) sendToOwner(pod *v1.Pod, reservation wire.Reservation) {
	if !l.member.SendToOwner(pod.Spec.NodeName, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) }) {
		// The caller holds the lock of the assumptions. ack takes the same lock, so it must run in
		// another goroutine.
		go l.assumptions.ack(pod.UID, "no replica owns the node", func(string) bool { return true })
	}
}

// renewReservations asks the owners of nodes to renew the confirmed reservations.
func (l *Leader) renewReservations() {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() {
			return
		}
		uid := a.pod.UID
		l.member.SendToOwner(a.pod.Spec.NodeName, func(b *wire.Batch) { b.Kept = append(b.Kept, uid) })
	})
}
