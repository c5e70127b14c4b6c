package leader

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// reserveAgain tells the owners of nodes again, or one of them, which pods have places
// there, and if that knows its nodes which pods are to have.
func (l *Leader) resendReservations(owner string, ready bool) {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() && !ready {
			return
		}
		if owner == "" || l.member.NodeOwner(a.pod.Spec.NodeName) == owner {
			reservation := holder.NewReservation(a.pod, a.demands)
			reservation.Held = a.reserved()
			l.sendToOwner(a.pod, reservation)
		}
	})
}

// acked notes what a replica has said of a pod, if that owns the node now.
func (l *Leader) TakeAck(from string, ack wire.Ack) {
	node := l.assumptions.nodeOf(ack.UID)
	if node != "" && l.member.NodeOwner(node) == from {
		l.assumptions.ack(ack.UID, ack.Refused)
	}
}

// reserve tells the owner of a node that a pod is to be there.
func (l *Leader) reserve(pod *v1.Pod, demands wire.Demands) {
	l.sendToOwner(pod, holder.NewReservation(pod, demands))
	if holder.ForbidsAround(pod) {
		owner := l.member.NodeOwner(pod.Spec.NodeName)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forbidsSince[owner] = time.Now()
	}
}

// release tells it that it is not.
func (l *Leader) release(pod *v1.Pod) {
	l.search.invalidate()
	l.sendToOwner(pod, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
}

func (l *Leader) sendToOwner(pod *v1.Pod, reservation wire.Reservation) {
	if !l.member.SendToOwner(pod.Spec.NodeName, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) }) {
		// The caller holds the lock of the assumptions.
		go l.assumptions.ack(pod.UID, "no replica owns the node")
	}
}

// remind tells the owners of nodes which places are still of use.
func (l *Leader) renewReservations() {
	l.assumptions.each(func(a *assumption) {
		if !a.reserved() {
			return
		}
		uid := a.pod.UID
		l.member.SendToOwner(a.pod.Spec.NodeName, func(b *wire.Batch) { b.Kept = append(b.Kept, uid) })
	})
}
