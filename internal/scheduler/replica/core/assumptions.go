package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// assumption is a pod that is assumed to be on a node.
type assumption struct {
	pod *v1.Pod
	// attempt distinguishes this placement of the pod from earlier ones, whose answers may arrive late.
	attempt  uint64
	termKeys wire.TermKeys
	// acked is true when the owner of the node has answered. refusal is the reason for which the
	// owner did not reserve capacity, or has released it; "" if it has reserved capacity. lastAck is
	// the time of its last answer, or of the placement before the first answer.
	acked   bool
	refusal string
	lastAck time.Time
	// sent is true if a bind has passed the guard. unanswered is true if its answer does not say whether it was executed.
	sent, unanswered bool
}

// reserved returns whether the owner of the node has reserved capacity for the pod.
func (a *assumption) reserved() bool { return a.acked && a.refusal == "" }

// request returns the message that requests the reservation.
func (a *assumption) request() wire.Reservation {
	reservation := NewReservation(a.pod, a.termKeys)
	reservation.Attempt = a.attempt
	return reservation
}

// maxAckAge is the maximal age of the owner's last answer when the pod is bound. It is shorter
// than the life of a reservation, so the owner cannot have released the reservation.
const maxAckAge = 15 * time.Second

// ErrReservationLost means that a pod is not assumed any more, or that the owner has not answered yet.
var ErrReservationLost = errors.New("the pod lost its reservation before it was bound")

// ErrReplaced means that another replica leads.
var ErrReplaced = errors.New("another replica has become the leader")

// Assume records a pod as placed on the node in its spec, and requests a reservation from the owner of the node.
func (l *Leader) Assume(now time.Time, pod *v1.Pod, termKeys wire.TermKeys, view View) (out Output, err error) {
	if l.assumed[pod.UID] != nil {
		return out, fmt.Errorf("pod %v(%v) is in the cache, so can't be assumed", pod.UID, klog.KObj(pod))
	}
	l.lastAttempt++
	assumed := &assumption{pod: pod, attempt: l.lastAttempt, termKeys: termKeys, lastAck: now}
	l.assumed[pod.UID] = assumed
	l.uids[toolscache.MetaObjectToName(pod)] = pod.UID
	out.Reservations = append(out.Reservations, assumed.request())
	l.recordPlaced(pod, view.NodeOwner(pod.Spec.NodeName), now)
	return out, nil
}

// remove removes an assumed pod.
func (l *Leader) remove(a *assumption, out *Output) {
	delete(l.assumed, a.pod.UID)
	if name := toolscache.MetaObjectToName(a.pod); l.uids[name] == a.pod.UID {
		delete(l.uids, name)
	}
	if !a.acked {
		out.Answered = append(out.Answered, a.attempt)
	}
}

// Forget removes an assumed pod and releases its reservation. If its bind may still arrive, it keeps the reservation.
func (l *Leader) Forget(now time.Time, uid types.UID) (out Output) {
	l.forget(now, uid, &out)
	return out
}

func (l *Leader) forget(now time.Time, uid types.UID, out *Output) {
	assumed := l.assumed[uid]
	if assumed == nil {
		return
	}
	l.remove(assumed, out)
	if assumed.unanswered && l.config.Fault != ReleaseUnanswered {
		l.keepUnanswered(now, assumed, out)
	} else {
		l.release(assumed.pod, out)
	}
}

// Bound records that a pod is bound to the node in its spec. The owner of the node receives the pod from the replica that
// watches it.
func (l *Leader) Bound(pod *v1.Pod) (out Output) {
	if l.Earlier(pod.UID) != pod.Spec.NodeName {
		l.releaseEarlier(pod.UID, &out)
	}
	l.settleBound(pod.UID, &out)
	if assumed := l.assumed[pod.UID]; assumed != nil {
		l.remove(assumed, &out)
		if assumed.pod.Spec.NodeName != pod.Spec.NodeName {
			l.release(assumed.pod, &out)
		}
	}
	return out
}

// Deleted releases the reservations of a pod that was deleted before it was known to be bound.
func (l *Leader) Deleted(now time.Time, uid types.UID) (out Output) {
	l.forget(now, uid, &out)
	l.settleDeleted(uid, &out)
	return out
}

// Assumed returns an assumed pod; nil for other pods.
func (l *Leader) Assumed(uid types.UID) *v1.Pod {
	if assumed := l.assumed[uid]; assumed != nil {
		return assumed.pod
	}
	return nil
}

// AssumedCount returns the number of assumed pods.
func (l *Leader) AssumedCount() int { return len(l.assumed) }

// AssumedPods returns the UIDs of the assumed pods.
func (l *Leader) AssumedPods() sets.Set[string] {
	uids := sets.New[string]()
	for uid := range l.assumed {
		uids.Insert(string(uid))
	}
	return uids
}

// UsedNodes returns the names of the nodes on which pods are assumed.
func (l *Leader) UsedNodes() sets.Set[string] {
	nodes := sets.New[string]()
	for _, assumed := range l.assumed {
		nodes.Insert(assumed.pod.Spec.NodeName)
	}
	return nodes
}

// NodeOf returns the node of an assumed pod; "" for other pods.
func (l *Leader) NodeOf(uid types.UID) string {
	if assumed := l.assumed[uid]; assumed != nil {
		return assumed.pod.Spec.NodeName
	}
	return ""
}

// Placement is the placement of an assumed pod.
type Placement struct {
	// Attempt is the number of the placement, and Node its node.
	Attempt uint64
	Node    string
	// Answered is true if the owner of the node has answered.
	Answered bool
}

// Placement returns the placement of an assumed pod; false for other pods.
func (l *Leader) Placement(uid types.UID) (Placement, bool) {
	assumed := l.assumed[uid]
	if assumed == nil {
		return Placement{}, false
	}
	return Placement{assumed.attempt, assumed.pod.Spec.NodeName, assumed.acked}, true
}

// Ack records a replica's answer to a reservation, or to its renewal. It ignores an answer for an earlier placement of the
// pod, which says nothing about the current one, and the answer of a replica that does not own the node according to the
// current assignment: it counts either before the reservations are sent to a new owner, or not at all.
func (l *Leader) Ack(now time.Time, from string, ack wire.Ack, view View) (out Output) {
	assumed := l.assumed[ack.UID]
	switch {
	case assumed == nil, assumed.attempt != ack.Attempt && l.config.Fault != AckOfEarlierPlacement:
	case view.NodeOwner(assumed.pod.Spec.NodeName) != from && l.config.Fault != AckOfFormerOwner:
	default:
		l.answer(now, assumed, ack.Refused, &out)
	}
	return out
}

// NoOwner records that a reservation was not sent, because no replica owns the node.
func (l *Leader) NoOwner(now time.Time, r *wire.Reservation) (out Output) {
	if assumed := l.assumed[r.UID]; assumed != nil && assumed.attempt == r.Attempt {
		l.answer(now, assumed, "no replica owns the node", &out)
	}
	return out
}

func (l *Leader) answer(now time.Time, a *assumption, refused string, out *Output) {
	a.lastAck, a.refusal = now, refused
	if !a.acked {
		a.acked = true
		out.Answered = append(out.Answered, a.attempt)
	}
}

// leads returns whether this replica leads, according to the last assignment that it has received.
func (l *Leader) leads(view View) bool {
	a := view.Assignment()
	return a != nil && a.Leader.Name == l.config.Self.Name && a.Term == l.term
}

// Valid returns nil if this replica leads and the reservation of a placement is valid. tenure is the reason for which this
// replica must not bind pods; nil if it may. The age of the acknowledgement is not sufficient: this replica may own the
// node, and a process that was suspended renews its own reservations before it learns that another replica leads.
func (l *Leader) Valid(now time.Time, uid types.UID, attempt uint64, tenure error, view View) error {
	assumed := l.assumed[uid]
	switch {
	case !l.leads(view):
		return ErrReplaced
	case tenure != nil && l.config.Fault != BindWithoutTenure:
		return tenure
	case assumed == nil || assumed.attempt != attempt || !assumed.acked && l.config.Fault != BindBeforeAck:
		return ErrReservationLost
	case assumed.refusal != "" && l.config.Fault != BindAfterRefusal:
		return fmt.Errorf("the replica that owns node %s: %s", assumed.pod.Spec.NodeName, assumed.refusal)
	case now.Sub(assumed.lastAck) > maxAckAge && l.config.Fault != BindWithOldAck:
		return fmt.Errorf("the replica that owns node %s has not answered for %v", assumed.pod.Spec.NodeName, now.Sub(assumed.lastAck).Round(time.Second))
	}
	return nil
}

// MayBind returns nil if the reservation of a pod is valid now. Then the bind counts as sent.
func (l *Leader) MayBind(now time.Time, pod toolscache.ObjectName, tenure error, view View) error {
	uid := l.uids[pod]
	assumed := l.assumed[uid]
	if assumed == nil {
		return ErrReservationLost
	}
	err := l.Valid(now, uid, assumed.attempt, tenure, view)
	assumed.sent = assumed.sent || err == nil
	return err
}

// BindFailed records that the bind of an assumed pod has failed. unanswered tells, for whether the bind has passed the
// guard, whether the API server may have executed it.
func (l *Leader) BindFailed(uid types.UID, unanswered func(sent bool) bool) {
	if assumed := l.assumed[uid]; assumed != nil {
		assumed.unanswered = unanswered(assumed.sent)
	}
}

// assumedInOrder returns the assumptions in the order of the placements.
func (l *Leader) assumedInOrder() []*assumption {
	all := make([]*assumption, 0, len(l.assumed))
	for _, assumed := range l.assumed {
		all = append(all, assumed)
	}
	slices.SortFunc(all, func(a, b *assumption) int { return cmp.Compare(a.attempt, b.attempt) })
	return all
}
