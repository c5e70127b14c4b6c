package holder

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// ownedNodes is a holder as the [core.Nodes] of its ledger. The caller of the ledger holds the lock.
type ownedNodes Holder

// AddPod implements [core.Nodes].
func (h *ownedNodes) AddPod(pod *v1.Pod) {
	h.log(h.cache.AddPod(h.logger, pod), "Adding a pod failed", pod)
}

// UpdatePod implements [core.Nodes].
func (h *ownedNodes) UpdatePod(before, after *v1.Pod) {
	h.log(h.cache.UpdatePod(h.logger, before, after), "Updating a pod failed", after)
}

// RemovePod implements [core.Nodes].
func (h *ownedNodes) RemovePod(pod *v1.Pod) {
	h.log(h.cache.RemovePod(h.logger, pod), "Removing a pod failed", pod)
}

// Assume implements [core.Nodes].
func (h *ownedNodes) Assume(pod *v1.Pod) error {
	err := h.cache.AssumePod(h.logger, pod)
	h.log(err, "Reserving capacity for a pod failed", pod)
	return err
}

// Forget implements [core.Nodes].
func (h *ownedNodes) Forget(pod *v1.Pod) {
	h.log(h.cache.RemoveAssumedPod(h.logger, pod), "Releasing a reservation failed", pod)
}

func (h *ownedNodes) log(err error, what string, pod *v1.Pod) {
	if err != nil {
		h.logger.Error(err, what, "pod", klog.KObj(pod))
	}
}

// Expired implements [core.Nodes].
func (h *ownedNodes) Expired(pod *v1.Pod) {
	h.logger.Info("Reservation expired", "pod", klog.KObj(pod), "node", pod.Spec.NodeName)
}

// Nominate implements [core.Nodes].
func (h *ownedNodes) Nominate(node string, pod *v1.Pod) {
	info, _ := framework.NewPodInfo(pod)
	h.ranker.Nominations.AddRemote(node, info)
}

// Withdraw implements [core.Nodes].
func (h *ownedNodes) Withdraw(node string, uid types.UID) {
	h.ranker.Nominations.RemoveRemote(node, uid)
}

// Refuses implements [core.Nodes]. It checks only rules for which this node and its pods suffice. The leader has checked
// spreading and affinity.
func (h *ownedNodes) Refuses(pod *v1.Pod, r *wire.Reservation) (refused string) {
	_, err := (*Holder)(h).withSnapshot(func() (_ *wire.Answer, err error) {
		defer h.ranker.Rescue(h.ctx, pod, &err)
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
		found, _, err := h.ranker.Class(h.ctx, profile, info, &rank.Agreement{TermKeys: r.TermKeys})
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
