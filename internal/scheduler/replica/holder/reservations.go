package holder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// reservation is capacity of a node that the holder keeps for a pod until a watch shows the pod there.
type reservation struct {
	pod *v1.Pod
	// term is the term of the leader that last requested the reservation. until is the time at which
	// the reservation expires unless it is renewed.
	term  int64
	until time.Time
	// keptUntil is the time until which the reservation does not expire while the pod is pending; zero if
	// no earlier leader requested it. keptFor is the term of the leader whose late bind it waits for.
	keptUntil time.Time
	keptFor   int64
	// bound is true if the pod was known to be bound, but is missing in a later list of pods.
	bound bool
}

// A reservation that no leader renews expires after reservationLife. If it was requested in an earlier
// term, the holder checks at most earlierLeaderReservationLife after it knows the new leader whether the pod was
// bound elsewhere or deleted. Otherwise the bind of the earlier leader may still arrive, so the reservation
// remains until [LateBindLife] has passed. That is longer than the API server processes a request (60 s by default).
// A reservation does not expire if the pod is bound to the node.
const (
	reservationLife              = 30 * time.Second
	earlierLeaderReservationLife = 5 * time.Second
	// LateBindLife is the time after which no bind of an earlier leader arrives any more.
	LateBindLife = 2 * time.Minute
)

// Reserve reserves capacity for a pod, or releases it, or changes the nomination of a pod. It returns the
// reason for a refusal; "" if it does not refuse. ready means that the holder has received all pods on
// its nodes. Otherwise it accepts only reservations that exist, or that the previous owner has granted.
func (h *Holder) Reserve(ctx context.Context, from string, term int64, ready bool, r *wire.Reservation) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.countSeen(from)
	if r.Nominated {
		return h.nominate(from, r)
	}
	if len(r.Pod) == 0 {
		if before := h.reservations[r.UID]; before != nil && !before.bound && before.pod.Spec.NodeName == r.Node {
			h.unreserve(r.UID)
		}
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
	}
	if pod.UID != r.UID {
		return fmt.Sprintf("the pod has UID %s, and the reservation is for UID %s", pod.UID, r.UID)
	}
	pod.Spec.NodeName = r.Node
	if known, ok := h.pods[pod.UID]; ok {
		if known.Pod.Spec.NodeName == r.Node {
			return ""
		}
		return fmt.Sprintf("the pod is on node %s", known.Pod.Spec.NodeName)
	}
	if before := h.reservations[pod.UID]; before != nil {
		if before.pod.Spec.NodeName == r.Node {
			before.term, before.until = term, time.Now().Add(reservationLife)
			return ""
		}
		if before.bound {
			return fmt.Sprintf("the pod is on node %s", before.pod.Spec.NodeName)
		}
		h.unreserve(pod.UID)
	}
	if !r.Granted {
		if !ready {
			return "the replica that owns the node has not received all its pods yet"
		}
		if refused := h.checkFit(ctx, pod, r); refused != "" {
			return refused
		}
	}
	if err := h.cache.AssumePod(h.logger, pod); err != nil {
		return err.Error()
	}
	h.countAntiAffinity(pod, 1)
	h.reservations[pod.UID] = &reservation{pod: pod, term: term, until: time.Now().Add(reservationLife)}
	return ""
}

// SkipReservation counts a reservation of a replica that does not lead. The replica counts it as well, and may lead
// later on the same connection. Then each of its queries would wait for a reservation that has already arrived.
func (h *Holder) SkipReservation(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.countSeen(from)
}

// countSeen counts a reservation that has arrived. The caller holds the lock.
func (h *Holder) countSeen(from string) {
	h.reservationsSeen[from]++
	h.reservationArrived.Broadcast()
}

// nomination is the nomination of a pod to a node. from is the leader that has sent it.
type nomination struct{ node, from string }

// nominate adds, changes or removes the nomination of a pod in the leader's queue.
func (h *Holder) nominate(from string, r *wire.Reservation) (refused string) {
	if n, ok := h.nominated[r.UID]; ok && (len(r.Pod) > 0 || n.node == r.Node) {
		h.removeNomination(r.UID)
	}
	if len(r.Pod) == 0 {
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
	}
	info, _ := framework.NewPodInfo(pod)
	h.nominated[pod.UID] = nomination{r.Node, from}
	h.ranker.Nominations.AddRemote(r.Node, info)
	return ""
}

// ForgetNominated removes all nominations, because a new leader sends its own.
func (h *Holder) ForgetNominated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetNominated(func(nomination) bool { return true })
}

// forgetNominated removes the nominations for which which returns true. The caller holds the lock.
func (h *Holder) forgetNominated(which func(nomination) bool) {
	for uid, n := range h.nominated {
		if which(n) {
			h.removeNomination(uid)
		}
	}
}

func (h *Holder) removeNomination(uid types.UID) {
	h.ranker.Nominations.RemoveRemote(h.nominated[uid].node, uid)
	delete(h.nominated, uid)
}

// checkFit returns the reason for which a pod no longer fits on a node; "" if it fits. It checks only
// rules for which this node and its pods suffice. The leader has checked spreading and affinity.
func (h *Holder) checkFit(ctx context.Context, pod *v1.Pod, r *wire.Reservation) (refused string) {
	_, err := h.withSnapshot(func() (_ *wire.Answer, err error) {
		defer h.ranker.Rescue(ctx, pod, &err)
		n := h.ranker.Cluster.Lookup(r.Node)
		if n == nil {
			refused = "the node does not exist"
			return nil, nil
		}
		// The class of the leader's query was made for a pod without a node name.
		unbound := *pod
		unbound.Spec.NodeName = ""
		info, _ := framework.NewPodInfo(&unbound)
		profile := h.ranker.Profiles[r.Profile]
		if profile == nil {
			refused = "unknown profile"
			return nil, nil
		}
		// Class returns an error if pods have arrived whose affinity terms use topology keys that the
		// leader does not know. Then the reservation is refused, and the leader's next query includes
		// these keys.
		found, _, err := h.ranker.Class(ctx, profile, info, &rank.Agreement{TermKeys: r.TermKeys})
		fits := err == nil && found.FitsAlone(n.ID)
		if errors.As(err, new(rank.FallbackReason)) {
			// The index cannot rank this pod, so it has no verdict. Check the resources, ports and
			// other node properties that may have changed since the query.
			fits, err = profile.Admits(&unbound, n.Info), nil
		}
		if err == nil && !fits {
			refused = "the pod no longer fits on the node"
		}
		return nil, err
	})
	if err != nil {
		return err.Error()
	}
	return refused
}

// unreserve releases the reservation of a pod, if there is one.
func (h *Holder) unreserve(uid types.UID) {
	if r := h.reservations[uid]; r != nil {
		delete(h.reservations, uid)
		h.countAntiAffinity(r.pod, -1)
		if err := h.cache.RemoveAssumedPod(h.logger, r.pod); err != nil {
			h.logger.Error(err, "Releasing a reservation failed", "pod", klog.KObj(r.pod))
		}
	}
}

// without removes the reservation of a pod, and returns a function that restores it. The caller holds the lock
// until then.
func (h *Holder) without(uid types.UID) (restore func()) {
	r := h.reservations[uid]
	if r == nil || r.bound {
		return func() {}
	}
	h.unreserve(uid)
	return func() {
		if err := h.cache.AssumePod(h.logger, r.pod); err != nil {
			h.logger.Error(err, "Restoring a reservation failed", "pod", klog.KObj(r.pod))
			return
		}
		h.countAntiAffinity(r.pod, 1)
		h.reservations[uid] = r
	}
}

// countAntiAffinity adds a number to antiAffinityPods if a pod has anti-affinity beyond its node.
func (h *Holder) countAntiAffinity(pod *v1.Pod, by int) {
	if HasAntiAffinityBeyondNode(pod) {
		h.antiAffinityPods += by
	}
}

// HasAntiAffinityBeyondNode returns whether a pod has a required anti-affinity term with another topology
// key than the hostname. Such a term can forbid nodes of other owners.
func HasAntiAffinityBeyondNode(pod *v1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(term v1.PodAffinityTerm) bool { return term.TopologyKey != v1.LabelHostname })
}

// Renew renews reservations. It returns an answer for each: a refusal if the reservation has expired.
func (h *Holder) Renew(renewals []wire.Renewal) []wire.Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	acks := make([]wire.Ack, 0, len(renewals))
	for _, renewal := range renewals {
		ack := wire.Ack{UID: renewal.UID, Attempt: renewal.Attempt}
		if r := h.reservations[renewal.UID]; r != nil {
			r.until = time.Now().Add(reservationLife)
		} else if _, ok := h.pods[renewal.UID]; !ok {
			ack.Refused = "the reservation has expired"
		}
		acks = append(acks, ack)
	}
	return acks
}

// Overdue returns the pods of the reservations that were not renewed in time.
func (h *Holder) Overdue(now time.Time) []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pods []*v1.Pod
	for _, r := range h.reservations {
		if now.After(r.until) {
			pods = append(pods, r.pod)
		}
	}
	return pods
}

// PodState is what the API server says about the pod of a reservation.
type PodState int

const (
	// PodGone means that the pod was deleted, is being deleted, or is bound to another node. It cannot be bound
	// to the node of the reservation.
	PodGone PodState = iota
	// PodPending means that the pod is not bound.
	PodPending
	// PodBound means that the pod is bound to the node of the reservation.
	PodBound
)

// Expire releases the reservation of a pod if it was not renewed in time. If the pod is bound, it extends
// the reservation, because a replica will send the pod. If the pod is pending, it extends a reservation that an
// earlier leader requested.
func (h *Holder) Expire(uid types.UID, now time.Time, state PodState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.reservations[uid]
	if r == nil || !now.After(r.until) {
		return
	}
	switch {
	case state == PodBound:
		r.until = now.Add(reservationLife)
		return
	case state == PodPending && now.Before(r.keptUntil):
		r.until = now.Add(earlierLeaderReservationLife)
		return
	}
	h.logger.Info("Reservation expired", "pod", klog.KObj(r.pod), "node", r.pod.Spec.NodeName)
	h.expired++
	h.unreserve(uid)
}

// ShortenOld makes the reservations of earlier terms overdue after at most earlierLeaderReservationLife. Each
// leader that requested a reservation may have a late bind, so LateBindLife starts again if the last one has
// changed.
func (h *Holder) ShortenOld(term int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reservations {
		if r.term >= term {
			continue
		}
		if end := now.Add(earlierLeaderReservationLife); end.Before(r.until) {
			r.until = end
		}
		if r.keptUntil.IsZero() || r.keptFor != r.term {
			r.keptUntil, r.keptFor = now.Add(LateBindLife), r.term
		}
	}
}

// EarlierReservations returns the reservations that a leader of an earlier term than the given one
// requested, for pods that are not known to be bound. The leader does not know these reservations.
func (h *Holder) EarlierReservations(term int64) []wire.EarlierReservation {
	h.mu.Lock()
	defer h.mu.Unlock()
	var earlier []wire.EarlierReservation
	for uid, r := range h.reservations {
		if r.term < term && !r.bound {
			earlier = append(earlier, wire.EarlierReservation{UID: uid, Node: r.pod.Spec.NodeName})
		}
	}
	return earlier
}

// reserveBound replaces a bound pod by a reservation, because a list of pods that is older than the
// bind does not contain the pod. The next message about the pod confirms it; otherwise the reservation
// expires if the API server does not have the pod.
func (h *Holder) reserveBound(pod *v1.Pod) {
	h.remove(pod.UID)
	if err := h.cache.AssumePod(h.logger, pod); err != nil {
		h.logger.Error(err, "Reserving capacity for a bound pod failed", "pod", klog.KObj(pod))
		return
	}
	h.countAntiAffinity(pod, 1)
	h.reservations[pod.UID] = &reservation{pod: pod, until: time.Now().Add(earlierLeaderReservationLife), bound: true}
}

// NewReservation returns the message that requests a reservation for a pod on the node in its spec.
func NewReservation(pod *v1.Pod, termKeys wire.TermKeys) wire.Reservation {
	return wire.Reservation{
		Pod: wire.MarshalObject(pod), UID: pod.UID, Node: pod.Spec.NodeName, Profile: pod.Spec.SchedulerName, TermKeys: termKeys,
	}
}
