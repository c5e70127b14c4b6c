package offline

import (
	"context"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
)

// Place places the pod of a decision on a node in memory: it runs the Reserve plugins, and the pod then counts as running.
// If a Reserve plugin rejects the pod, Place returns its reason, and nothing has changed. It returns the placed pod.
func (c *Cluster) Place(ctx context.Context, d *Decision, node string) (placed *v1.Pod, reason string, err error) {
	placed = d.Pod.DeepCopy()
	placed.Spec.NodeName, placed.Status.NominatedNodeName = node, ""
	var reserved []*side
	if node != d.Node {
		if err := c.askAbout(ctx, d, node); err != nil {
			return nil, "", err
		}
	}
	for _, s := range c.sides() {
		if reason = s.reserve(ctx, d, placed); reason != "" {
			reason = fmt.Sprintf("%s: %s", s.name, reason)
			break
		}
		reserved = append(reserved, s)
	}
	if reason != "" {
		for _, s := range reserved {
			s.framework(placed.Spec.SchedulerName).RunReservePluginsUnreserve(ctx, d.states[s], placed, node)
			if err := s.sched.Cache.ForgetPod(klog.Logger{}, placed); err != nil {
				return nil, "", err
			}
		}
		return nil, reason, nil
	}
	c.pods[placed.UID] = placed
	c.placed.Insert(placed.UID)
	for _, s := range c.sides() {
		s.unnominate(placed)
		if err := s.pods().Update(placed); err != nil {
			return nil, "", err
		}
		if err := s.sched.Cache.AddPod(klog.Logger{}, placed); err != nil {
			return nil, "", err
		}
	}
	return placed, "", c.allocateClaims(placed)
}

// askAbout runs the filters of dist-scheduler for a node that it has not chosen: Reserve plugins need what filters of their
// own found out about the node.
func (c *Cluster) askAbout(ctx context.Context, d *Decision, node string) error {
	fw, state := c.indexed.framework(d.Pod.Spec.SchedulerName), framework.NewCycleState()
	info, err := c.indexed.snapshot(d.Pod.Spec.SchedulerName).NodeInfos().Get(node)
	if err != nil {
		return err
	}
	if _, status, _ := fw.RunPreFilterPlugins(ctx, state, d.Pod); !status.IsSuccess() {
		return status.AsError()
	}
	if status := fw.RunFilterPluginsWithNominatedPods(ctx, state, d.Pod, info); !status.IsSuccess() {
		return fmt.Errorf("node %s fits pod %s for kube-scheduler only: %w", node, klog.KObj(d.Pod), status.AsError())
	}
	d.states[c.indexed] = state
	return nil
}

// reserve assumes the pod on its node and runs the Reserve plugins. It returns the reason if one of them rejects the pod.
func (s *side) reserve(ctx context.Context, d *Decision, placed *v1.Pod) string {
	fw, node := s.framework(placed.Spec.SchedulerName), placed.Spec.NodeName
	if err := s.sched.Cache.AssumePod(klog.Logger{}, placed); err != nil {
		return err.Error()
	}
	status := fw.RunReservePluginsReserve(ctx, d.states[s], placed, node)
	if status.IsSuccess() {
		return ""
	}
	fw.RunReservePluginsUnreserve(ctx, d.states[s], placed, node)
	if err := s.sched.Cache.ForgetPod(klog.Logger{}, placed); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s: %s", status.Plugin(), status.Message())
}

// Nominate nominates a pod that has no node to a node. It returns the changed pod.
func (c *Cluster) Nominate(pod *v1.Pod, node string) (*v1.Pod, error) {
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = node
	c.pods[nominated.UID] = nominated
	for _, s := range c.sides() {
		if err := s.pods().Update(nominated); err != nil {
			return nil, err
		}
		s.unnominate(nominated)
		s.nominate(nominated)
	}
	return nominated, nil
}

// Evict removes a pod from its node at once, and lowers its disruption budgets.
func (c *Cluster) Evict(pod *v1.Pod) error {
	known := c.pods[pod.UID]
	if known == nil {
		return fmt.Errorf("pod %s is not in the cluster", klog.KObj(pod))
	}
	delete(c.pods, pod.UID)
	for _, s := range c.sides() {
		if err := s.sched.Cache.RemovePod(klog.Logger{}, known); err != nil {
			return err
		}
		if err := s.pods().Delete(known); err != nil {
			return err
		}
	}
	if err := c.spendBudgets(known); err != nil {
		return err
	}
	c.placed.Delete(known.UID)
	return c.releaseClaims(known)
}

// claimsOf calls change with the claims of a pod, and stores what it returns. As the API server does, it stores the
// allocations that kube-scheduler writes in PreBind.
func (c *Cluster) claimsOf(pod *v1.Pod, change func(*resourcev1.ResourceClaim) *resourcev1.ResourceClaim) error {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		before, err := c.indexed.framework(pod.Spec.SchedulerName).SharedDRAManager().ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			continue
		}
		after := change(before.DeepCopy())
		after.ResourceVersion = nextVersion(before.ResourceVersion)
		for _, s := range c.sides() {
			if err := pushinformer.Push(s.informers, after); err != nil {
				return err
			}
			s.framework(pod.Spec.SchedulerName).SharedDRAManager().ResourceClaims().MaybeRemoveClaimPendingAllocation(after.UID, true)
		}
	}
	return nil
}

// nextVersion returns a resource version that is later than another one.
func nextVersion(version string) string {
	number, err := strconv.ParseUint(version, 10, 63)
	if err != nil {
		return version
	}
	return strconv.FormatUint(number+1, 10)
}

// allocateClaims stores the allocations of the claims of a placed pod, and that the pod uses them.
func (c *Cluster) allocateClaims(pod *v1.Pod) error {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	claims := c.indexed.framework(pod.Spec.SchedulerName).SharedDRAManager().ResourceClaims()
	return c.claimsOf(pod, func(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		if pending := claims.GetPendingAllocation(claim.UID); pending != nil && claim.Status.Allocation == nil {
			claim.Status.Allocation = pending.DeepCopy()
		}
		if !resourceclaim.IsReservedForPod(pod, claim, false) {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		}
		return claim
	})
}

// releaseClaims undoes [Cluster.allocateClaims]. A claim that no pod uses loses its allocation.
func (c *Cluster) releaseClaims(pod *v1.Pod) error {
	return c.claimsOf(pod, func(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		var others []resourcev1.ResourceClaimConsumerReference
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.UID != pod.UID {
				others = append(others, consumer)
			}
		}
		if claim.Status.ReservedFor = others; len(others) == 0 {
			claim.Status.Allocation = nil
		}
		return claim
	})
}
