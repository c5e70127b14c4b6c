package leader

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// earlierReservation is a reservation for a pod whose bind may still arrive: a leader of an earlier term has sent it, or
// this leader has sent it and got no definite answer.
type earlierReservation struct {
	node string
	// until is the time after which the bind does not arrive any more.
	until time.Time
	// own is the assumption if this leader has sent the bind; nil for earlier terms.
	own *assumption
}

// resendReservations sends the confirmed reservations again: to the given owner, or to all owners if
// owner is "". ready means that the owner is ready for the current assignment; then the leader also
// sends the unconfirmed reservations.
func (l *Leader) resendReservations(owner string, ready bool) {
	resend := func(a *assumption) {
		if !a.reserved() && !ready || a.isAcked() && a.refusal != "" {
			return
		}
		if owner == "" || l.member.NodeOwner(a.pod.Spec.NodeName) == owner {
			reservation := a.request()
			reservation.Granted = a.reserved()
			l.sendToOwner(a.pod, reservation)
		}
	}
	l.assumptions.each(resend)
	for _, a := range l.unansweredBinds() {
		resend(a)
	}
}

// unansweredBinds returns the assumptions whose binds this leader has sent without a definite answer.
func (l *Leader) unansweredBinds() (assumptions []*assumption) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.earlier {
		if r.own != nil {
			assumptions = append(assumptions, r.own)
		}
	}
	return assumptions
}

// keepUnanswered keeps the reservation of a pod whose bind has failed without a definite answer: the API server may have
// executed it, and the watch that shows that is slower than the next pod.
func (l *Leader) keepUnanswered(a *assumption) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.earlier[a.pod.UID]; l.settled.Has(a.pod.UID) || ok && known.node != a.pod.Spec.NodeName {
		return
	}
	// Also for a known reservation of the node: this bind may arrive later than the one before.
	l.earlier[a.pod.UID] = earlierReservation{node: a.pod.Spec.NodeName, until: time.Now().Add(holder.LateBindLife), own: a}
	l.first.insert(a.pod.UID)
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

// SettleNodes sends the reservations on nodes whose announcements have waited, and then confirms the announcements.
func (l *Leader) SettleNodes() {
	for _, owner := range l.member.TakeSettled() {
		l.NodesMoved(owner)
		l.member.ConfirmSettled(owner)
	}
}

// HandleAck records a replica's answer to a reservation. It ignores the answer if the replica does not
// own the node according to the current assignment.
func (l *Leader) HandleAck(from string, ack wire.Ack) {
	l.assumptions.ack(ack, func(node string) bool { return l.member.NodeOwner(node) == from })
}

// request returns the message that requests the reservation.
func (a *assumption) request() wire.Reservation {
	reservation := holder.NewReservation(a.pod, a.termKeys)
	reservation.Attempt = a.attempt
	return reservation
}

// reserve requests a reservation for a pod from the owner of its node.
func (l *Leader) reserve(a *assumption) {
	l.sendToOwner(a.pod, a.request())
	if holder.HasAntiAffinityBeyondNode(a.pod) {
		owner := l.member.NodeOwner(a.pod.Spec.NodeName)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lastAntiAffinityPlaced[owner] = time.Now()
	}
}

// release asks the owner of a pod's node to release the reservation, unless there is an earlier one for the same node:
// its bind may still arrive, also if the last one has failed.
func (l *Leader) release(pod *v1.Pod) {
	if l.Earlier(pod.UID) == pod.Spec.NodeName {
		return
	}
	l.sendToOwner(pod, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
	// Only now, because a query that is sent before the release still counts the pod.
	l.search.invalidate()
}

// Earlier returns the node on which capacity is reserved for a pod whose bind may still arrive; "" if there is none.
func (l *Leader) Earlier(uid types.UID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.earlier[uid].node
}

// IsUnsettled returns whether a bind of a pod may still arrive that is not known to be bound or deleted. This leader may have placed the pod already: it takes such pods first, so another pod may want to evict it while
// it is being bound.
func (l *Leader) IsUnsettled(uid types.UID) bool { return l.Earlier(uid) != "" }

// addEarlier records the reservations of earlier terms that an owner has reported, and returns their pods. It omits those
// of settled pods: no later message would settle these pods again. It also omits those on nodes for which owns returns
// false: they are not the sender's. The owner has announced its nodes before it reports the reservations on them, and both
// follow the same assignment, so none is lost. The caller holds the lock.
func (l *Leader) addEarlier(reported []wire.EarlierReservation, owns func(node string) bool) (added []types.UID) {
	for _, r := range reported {
		if !l.settled.Has(r.UID) && owns(r.Node) {
			l.earlier[r.UID] = earlierReservation{node: r.Node, until: l.termStart.Add(holder.LateBindLife)}
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
	earlier, found := l.earlier[uid]
	l.removeEarlier(uid)
	l.mu.Unlock()
	if found {
		l.member.SendToOwner(earlier.node, func(b *wire.Batch) {
			b.Reservations = append(b.Reservations, wire.Reservation{UID: uid, Node: earlier.node})
		})
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

// expireEarlier forgets the earlier reservations whose binds cannot arrive any more: a pod whose bind
// to that node keeps failing may then be placed on another one. It releases those that this leader does not use.
func (l *Leader) expireEarlier(now time.Time) {
	l.mu.Lock()
	var expired []types.UID
	for uid, r := range l.earlier {
		if now.After(r.until) {
			expired = append(expired, uid)
		}
	}
	if now.Sub(l.termStart) > holder.LateBindLife {
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
		go l.assumptions.ack(wire.Ack{UID: pod.UID, Attempt: reservation.Attempt, Refused: "no replica owns the node"}, func(string) bool { return true })
	}
}

// renewReservations asks the owners of nodes to renew the confirmed reservations.
func (l *Leader) renewReservations() {
	renew := func(a *assumption) {
		if a.reserved() {
			l.member.SendToOwner(a.pod.Spec.NodeName, func(b *wire.Batch) { b.Kept = append(b.Kept, wire.Renewal{UID: a.pod.UID, Attempt: a.attempt}) })
		}
	}
	l.assumptions.each(renew)
	for _, a := range l.unansweredBinds() {
		renew(a)
	}
}
