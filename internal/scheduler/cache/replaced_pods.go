package cache

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// A watch that missed events reports the deletion of a pod and the creation of another with the
// same name as one update. Upstream's cache exits to start over if the pods are on different nodes;
// this cache removes the first and adds the second.

// requeuer gives pods to the scheduling queue.
type requeuer struct{ sched *kubescheduler.Scheduler }

// enqueue queues a pod if it is for this scheduler.
func (w requeuer) enqueue(logger klog.Logger, pod *v1.Pod) {
	if w.sched.Profiles.HandlesSchedulerName(pod.Spec.SchedulerName) {
		w.sched.SchedulingQueue.Add(klog.NewContext(context.Background(), logger), pod)
	}
}

// podLeft retries pods that may fit now that a pod has left its node; pod may be nil.
func (w requeuer) podLeft(logger klog.Logger, pod *v1.Pod) {
	if pod != nil {
		w.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, framework.EventAssignedPodDelete, pod, nil, nil)
	}
}

// replaceUnseen replaces a pod by another of the same name. A pod without a node in its new version
// is removed until the watch reports more: no API server unbinds a pod.
func (c *Cache) replaceUnseen(logger klog.Logger, oldPod, newPod *v1.Pod) {
	logger.Info("Pod was replaced by another of its name in one update", "pod", klog.KObj(newPod), "before", oldPod.UID, "now", newPod.UID)
	c.mu.Lock()
	left := c.removeLocked(logger, oldPod.UID)
	if state := c.pods[newPod.UID]; newPod.Spec.NodeName == "" {
		c.removeLocked(logger, newPod.UID)
	} else if state.Pod != nil {
		c.replace(logger, state, newPod)
	} else {
		c.add(logger, newPod)
	}
	c.mu.Unlock()
	c.requeuer.podLeft(logger, left)
	if newPod.Spec.NodeName == "" && newPod.UID != oldPod.UID {
		c.requeuer.enqueue(logger, newPod)
	}
}

// removeLocked removes a pod and returns it, or nil if it is unknown.
func (c *Cache) removeLocked(logger klog.Logger, uid types.UID) *v1.Pod {
	state := c.pods[uid]
	if state.Pod == nil {
		return nil
	}
	delete(c.pods, uid)
	c.unassume(state.Pod)
	c.note(logger, operation{remove: state.Pod})
	return state.Pod
}

// unassume removes a pod from the assumed pods.
func (c *Cache) unassume(pod *v1.Pod) {
	if name := NameOf(pod); c.assumed[name] == pod.UID {
		delete(c.assumed, name)
	}
}

// removeAssumedNamesake removes and returns an assumed pod that has the name of another pod: it was
// deleted, and no event will report that.
func (c *Cache) removeAssumedNamesake(logger klog.Logger, pod *v1.Pod) (left *v1.Pod) {
	if uid, assumed := c.assumed[NameOf(pod)]; assumed && uid != pod.UID {
		return c.removeLocked(logger, uid)
	}
	return nil
}

// NameOf returns the namespaced name of a pod.
func NameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// UpdatePodGroupMember takes every update of a pod without a node.
func (c *Cache) UpdatePodGroupMember(logger klog.Logger, oldPod, newPod *v1.Pod) {
	c.Cache.UpdatePodGroupMember(logger, oldPod, newPod)
	c.mu.Lock()
	left := c.removeAssumedNamesake(logger, newPod)
	c.mu.Unlock()
	c.requeuer.podLeft(logger, left)
}
