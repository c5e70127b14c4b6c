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
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// reservation is capacity that is kept for a pod until it is bound.
type reservation struct {
	pod *v1.Pod
	// term is the term of the leader that requested it, and until is when it expires unless it is
	// renewed.
	term  int64
	until time.Time
}

// A reservation that no leader renews expires after reservationLife, or after earlierLeaderReservationLife if it is
// of an earlier leader. It does not expire if the pod is bound by then.
const (
	reservationLife = 30 * time.Second
	earlierLeaderReservationLife     = 5 * time.Second
)

// Reserve reserves capacity for a pod, or releases it, and returns why it is refused. While not all
// pods on the nodes here are known, it accepts only pods that had a reservation before.
func (h *Holder) Reserve(ctx context.Context, from string, term int64, ready bool, r *wire.Reservation) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reservationsSeen[from]++
	h.reservationArrived.Broadcast()
	if r.Nominated {
		return h.nominate(r)
	}
	if len(r.Pod) == 0 {
		if before := h.reservations[r.UID]; before != nil && before.pod.Spec.NodeName == r.Node {
			h.unreserve(r.UID)
		}
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
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
		h.unreserve(pod.UID)
	}
	if !r.Granted {
		if !ready {
			return "the replica that owns the node has not received all its pods yet"
		}
		if refused := h.misfit(ctx, pod, r); refused != "" {
			return refused
		}
	}
	if err := h.cache.AssumePod(h.logger, pod); err != nil {
		return err.Error()
	}
	h.count(pod, 1)
	h.reservations[pod.UID] = &reservation{pod: pod, term: term, until: time.Now().Add(reservationLife)}
	return ""
}

// nominate adds or removes the nomination of a pod in the leader's queue.
func (h *Holder) nominate(r *wire.Reservation) (refused string) {
	if node, ok := h.nominated[r.UID]; ok {
		h.ranker.Nominations.RemoveRemote(node, r.UID)
		delete(h.nominated, r.UID)
	}
	if len(r.Pod) == 0 {
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
	}
	info, _ := framework.NewPodInfo(pod)
	h.nominated[pod.UID] = r.Node
	h.ranker.Nominations.AddRemote(r.Node, info)
	return ""
}

// ForgetNominated removes all nominations, which an earlier leader has sent.
func (h *Holder) ForgetNominated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.nominated {
		h.nominate(&wire.Reservation{UID: uid})
	}
}

// misfit returns why a pod does not fit on a node any more, as far as the node itself decides. The
// leader has checked the rest.
func (h *Holder) misfit(ctx context.Context, pod *v1.Pod, r *wire.Reservation) (refused string) {
	_, err := h.withSnapshot(func() (*wire.Answer, error) {
		n := h.ranker.Cluster.Lookup(r.Node)
		if n == nil {
			refused = "the node does not exist"
			return nil, nil
		}
		// The leader's query had a pod without a node.
		unbound := *pod
		unbound.Spec.NodeName = ""
		info, _ := framework.NewPodInfo(&unbound)
		profile := h.ranker.Profiles[r.Profile]
		if profile == nil {
			refused = "unknown profile"
			return nil, nil
		}
		// If pods have come with terms that the leader does not know, there is no such class, and
		// the leader's next query finds where the pod may go.
		found, _, err := h.ranker.Class(ctx, profile, info, &rank.Agreement{TermKeys: r.TermKeys})
		fits := err == nil && found.FitsAlone(n.ID)
		if errors.As(err, new(rank.FallbackReason)) {
			// Nodes are evaluated one by one for this pod. Only what other pods may have taken
			// since is checked here.
			fits, err = len(kubescheduler.AdmissionCheck(&unbound, n.Info, false)) == 0, nil
		}
		if err == nil && !fits {
			refused = "the pod does not fit any more"
		}
		return nil, err
	})
	if err != nil {
		return err.Error()
	}
	return refused
}

// unreserve releases a reservation.
func (h *Holder) unreserve(uid types.UID) {
	if r := h.reservations[uid]; r != nil {
		delete(h.reservations, uid)
		h.count(r.pod, -1)
		if err := h.cache.RemoveAssumedPod(h.logger, r.pod); err != nil {
			h.logger.Error(err, "Releasing a reservation failed", "pod", klog.KObj(r.pod))
		}
	}
}

// count adds to the number of pods with anti-affinity beyond their node.
func (h *Holder) count(pod *v1.Pod, by int) {
	if HasAntiAffinityBeyondNode(pod) {
		h.antiAffinityPods += by
	}
}

// HasAntiAffinityBeyondNode returns whether a pod has anti-affinity beyond its own node.
func HasAntiAffinityBeyondNode(pod *v1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(term v1.PodAffinityTerm) bool { return term.TopologyKey != v1.LabelHostname })
}

// Renew renews reservations, and returns which of them have expired.
func (h *Holder) Renew(uids []types.UID) []wire.Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	acks := make([]wire.Ack, 0, len(uids))
	for _, uid := range uids {
		ack := wire.Ack{UID: uid}
		if r := h.reservations[uid]; r != nil {
			r.until = time.Now().Add(reservationLife)
		} else if _, ok := h.pods[uid]; !ok {
			ack.Refused = "the reservation has expired"
		}
		acks = append(acks, ack)
	}
	return acks
}

// Overdue returns the pods whose reservations were not renewed in time.
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

// Expire releases a reservation that was not renewed. If its pod is bound, it is kept until a
// replica sends the pod.
func (h *Holder) Expire(uid types.UID, now time.Time, bound bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.reservations[uid]
	if r == nil || !now.After(r.until) {
		return
	}
	if bound {
		r.until = now.Add(reservationLife)
		return
	}
	h.logger.Info("Reservation expired", "pod", klog.KObj(r.pod), "node", r.pod.Spec.NodeName)
	h.expired++
	h.unreserve(uid)
}

// ShortenOld shortens the reservations of earlier terms.
func (h *Holder) ShortenOld(term int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reservations {
		if end := now.Add(earlierLeaderReservationLife); r.term < term && end.Before(r.until) {
			r.until = end
		}
	}
}

// NewReservation returns the message that requests a reservation for a pod.
func NewReservation(pod *v1.Pod, termKeys wire.TermKeys) wire.Reservation {
	return wire.Reservation{
		Pod: wire.MarshalObject(pod), UID: pod.UID, Node: pod.Spec.NodeName, Profile: pod.Spec.SchedulerName, TermKeys: termKeys,
	}
}
