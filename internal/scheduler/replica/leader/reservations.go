package leader

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// resendReservations sends the confirmed reservations again, to all owners or one. With ready it
// also sends reservations that are not confirmed.
func (l *Leader) resendReservations(owner string, ready bool) {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() && !ready {
			return
		}
		if owner == "" || l.member.NodeOwner(a.pod.Spec.NodeName) == owner {
			reservation := holder.NewReservation(a.pod, a.termKeys)
			reservation.Granted = a.reserved()
			l.sendToOwner(a.pod, reservation)
		}
	})
}

// TakeAck takes the answer of a replica about a reservation, if the replica owns the node now.
func (l *Leader) TakeAck(from string, ack wire.Ack) {
	node := l.assumptions.nodeOf(ack.UID)
	if node != "" && l.member.NodeOwner(node) == from {
		l.assumptions.ack(ack.UID, ack.Refused)
	}
}

// reserve requests a reservation from the owner of a node.
func (l *Leader) reserve(pod *v1.Pod, termKeys wire.TermKeys) {
	l.sendToOwner(pod, holder.NewReservation(pod, termKeys))
	if holder.ForbidsAround(pod) {
		owner := l.member.NodeOwner(pod.Spec.NodeName)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forbidsSince[owner] = time.Now()
	}
}

// release releases the reservation of a pod.
func (l *Leader) release(pod *v1.Pod) {
	l.search.invalidate()
	l.sendToOwner(pod, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
}

// sendToOwner sends a reservation to the owner of the pod's node. The reservation is refused if
// there is none.
func (l *Leader) sendToOwner(pod *v1.Pod, reservation wire.Reservation) {
	if !l.member.SendToOwner(pod.Spec.NodeName, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) }) {
		// The caller holds the lock of the assumptions.
		go l.assumptions.ack(pod.UID, "no replica owns the node")
	}
}

// renewReservations asks the owners of nodes to keep the confirmed reservations.
func (l *Leader) renewReservations() {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() {
			return
		}
		uid := a.pod.UID
		l.member.SendToOwner(a.pod.Spec.NodeName, func(b *wire.Batch) { b.Kept = append(b.Kept, uid) })
	})
}
