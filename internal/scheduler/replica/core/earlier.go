package core

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// resend sends the confirmed reservations again: to the given owner, or to all owners if
// owner is "". ready means that the owner is ready for the current assignment; then the leader also
// sends the unconfirmed reservations.
func (l *Leader) resend(now time.Time, owner string, ready bool, view View, out *Output) {
	if l.config.Fault == NoResend {
		return
	}
	for _, a := range append(l.assumedInOrder(), l.unansweredBinds()...) {
		if !a.reserved() && !ready || a.acked && a.refusal != "" {
			continue
		}
		if to := view.NodeOwner(a.pod.Spec.NodeName); owner == "" || to == owner {
			l.recordPlaced(a.pod, to, now)
			reservation := a.request()
			reservation.Granted = a.reserved()
			out.Reservations = append(out.Reservations, reservation)
		}
	}
}

// Renew asks the owners of nodes to renew the confirmed reservations.
func (l *Leader) Renew() (out Output) {
	for _, a := range append(l.assumedInOrder(), l.unansweredBinds()...) {
		if a.reserved() {
			out.Renewals = append(out.Renewals, NodeRenewal{a.pod.Spec.NodeName, wire.Renewal{UID: a.pod.UID, Attempt: a.attempt}})
		}
	}
	return out
}

// unansweredBinds returns the assumptions whose binds this leader has sent without a definite answer, in the order of the
// placements.
func (l *Leader) unansweredBinds() (assumptions []*assumption) {
	for _, r := range l.earlier {
		if r.own != nil {
			assumptions = append(assumptions, r.own)
		}
	}
	slices.SortFunc(assumptions, func(a, b *assumption) int { return cmp.Compare(a.attempt, b.attempt) })
	return assumptions
}

// keepUnanswered keeps the reservation of a pod whose bind has failed without a definite answer: the API server may have
// executed it, and the watch that shows that is slower than the next pod.
func (l *Leader) keepUnanswered(now time.Time, a *assumption, out *Output) {
	if known, ok := l.earlier[a.pod.UID]; l.settled.Has(a.pod.UID) || ok && known.node != a.pod.Spec.NodeName {
		return
	}
	// Also for a known reservation of the node: this bind may arrive later than the one before.
	l.earlier[a.pod.UID] = earlierReservation{node: a.pod.Spec.NodeName, until: now.Add(LateBindLife), own: a}
	out.First = append(out.First, a.pod.UID)
}

// release asks the owner of a pod's node to release the reservation, unless there is an earlier one for the same node:
// its bind may still arrive, also if the last one has failed.
func (l *Leader) release(pod *v1.Pod, out *Output) {
	if l.Earlier(pod.UID) == pod.Spec.NodeName && l.config.Fault != ReleaseEarlierToo {
		return
	}
	out.Reservations = append(out.Reservations, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
	out.Invalidate = true
}

// Earlier returns the node on which capacity is reserved for a pod whose bind may still arrive; "" if there is none.
func (l *Leader) Earlier(uid types.UID) string { return l.earlier[uid].node }

// PlacedElsewhere returns whether the bind of a pod to another node than the given one may arrive.
func (l *Leader) PlacedElsewhere(uid types.UID, node string) bool {
	for _, placed := range []string{l.NodeOf(uid), l.Earlier(uid)} {
		if placed != "" && placed != node {
			return true
		}
	}
	return false
}

// addEarlier records the reservations of earlier terms that an owner has reported, and returns their pods. It omits those
// of settled pods: no later message would settle these pods again. It also omits those on nodes for which owns returns
// false: they are not the sender's. The owner has announced its nodes before it reports the reservations on them, and both
// follow the same assignment, so none is lost.
func (l *Leader) addEarlier(reported []wire.EarlierReservation, owns func(node string) bool) (added []types.UID) {
	for _, r := range reported {
		settled := l.settled.Has(r.UID) && l.config.Fault != EarlierOfSettledPods
		if !settled && owns(r.Node) && l.config.Fault != IgnoreEarlier {
			l.earlier[r.UID] = earlierReservation{node: r.Node, until: l.termStart.Add(LateBindLife)}
			added = append(added, r.UID)
		}
	}
	return added
}

// removeEarlier forgets the reservation of an earlier term for a pod.
func (l *Leader) removeEarlier(uid types.UID, out *Output) {
	if _, found := l.earlier[uid]; found {
		delete(l.earlier, uid)
		out.NotFirst = append(out.NotFirst, uid)
	}
}

// ReleaseEarlier releases the reservation that a leader of an earlier term requested for a pod. Otherwise the pod
// would count on two nodes once it is placed on another one, and pods with spread constraints would be placed by
// wrong counts until the reservation expires. No event reports that, but other pods may fit now.
func (l *Leader) ReleaseEarlier(uid types.UID) (out Output) {
	if l.releaseEarlier(uid, &out) {
		out.Invalidate, out.RetryAll = true, true
	}
	return out
}

// releaseEarlier forgets and releases the reservation that a leader of an earlier term requested for a pod. It
// returns false if there is none.
func (l *Leader) releaseEarlier(uid types.UID, out *Output) bool {
	earlier, found := l.earlier[uid]
	if found {
		l.removeEarlier(uid, out)
		out.Reservations = append(out.Reservations, wire.Reservation{UID: uid, Node: earlier.node})
	}
	return found
}

// SettleBound forgets the reservation that a leader of an earlier term requested for a pod, because the pod is bound.
func (l *Leader) SettleBound(uid types.UID) (out Output) {
	l.settleBound(uid, &out)
	return out
}

func (l *Leader) settleBound(uid types.UID, out *Output) {
	l.settle(uid)
	l.removeEarlier(uid, out)
}

// SettleDeleted releases the reservation that a leader of an earlier term requested for a deleted pod.
func (l *Leader) SettleDeleted(uid types.UID) (out Output) {
	l.settleDeleted(uid, &out)
	return out
}

func (l *Leader) settleDeleted(uid types.UID, out *Output) {
	l.settle(uid)
	if l.releaseEarlier(uid, out) {
		out.Invalidate, out.RetryAll = true, true
	}
}

// settle remembers that a pod was bound or deleted, until the reservations of earlier terms expire.
func (l *Leader) settle(uid types.UID) {
	if l.settled != nil {
		l.settled.Insert(uid)
	}
}

// expireEarlier forgets the earlier reservations whose binds cannot arrive any more: a pod whose bind
// to that node keeps failing may then be placed on another one. It releases those that this leader does not use.
func (l *Leader) expireEarlier(now time.Time, out *Output) {
	var expired []types.UID
	for uid, r := range l.earlier {
		if now.After(r.until) {
			expired = append(expired, uid)
		}
	}
	if now.Sub(l.termStart) > LateBindLife {
		l.settled = nil
	}
	slices.Sort(expired)
	for _, uid := range expired {
		if l.NodeOf(uid) == l.Earlier(uid) {
			l.removeEarlier(uid, out)
		} else {
			l.releaseEarlier(uid, out)
		}
	}
	if len(expired) > 0 {
		out.Invalidate, out.RetryAll = true, true
	}
}
