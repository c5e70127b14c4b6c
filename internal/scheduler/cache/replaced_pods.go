package cache

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
)

// An informer that missed events reports the deletion of a pod and the creation of another one with the same
// name as one update. If the pods are on different nodes, upstream's cache exits the process. This cache
// removes the first pod and adds the second one.

// requeuer adds or moves pods in the scheduling queue.
type requeuer struct{ sched *kubescheduler.Scheduler }

// addToQueue adds a pod to the queue if its scheduler name is one of this scheduler's.
func (w requeuer) addToQueue(logger klog.Logger, pod *v1.Pod) {
	if w.sched.Profiles.HandlesSchedulerName(pod.Spec.SchedulerName) {
		w.sched.SchedulingQueue.Add(klog.NewContext(context.Background(), logger), pod)
	}
}

// retryAfterRemoval retries the unschedulable pods that may fit because a pod was removed from its node. It
// does nothing if pod is nil.
func (w requeuer) retryAfterRemoval(logger klog.Logger, pod *v1.Pod) {
	if pod != nil {
		w.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, framework.EventAssignedPodDelete, pod, nil, nil)
	}
}

// replaceUnseen replaces a pod by another pod with the same name. It removes a pod whose new version has no
// node, although an API server never unbinds a pod, until the watch reports a node again.
func (c *Cache) replaceUnseen(logger klog.Logger, oldPod, newPod *v1.Pod) {
	logger.Info("Pod was replaced by another pod with the same name in one update", "pod", klog.KObj(newPod), "before", oldPod.UID, "now", newPod.UID)
	c.mu.Lock()
	removed := c.removeLocked(logger, oldPod.UID)
	if state := c.pods[newPod.UID]; newPod.Spec.NodeName == "" {
		c.removeLocked(logger, newPod.UID)
	} else if state.Pod != nil {
		c.replace(logger, state, newPod)
	} else {
		c.add(logger, newPod)
	}
	c.mu.Unlock()
	c.requeuer.retryAfterRemoval(logger, removed)
	if newPod.Spec.NodeName == "" && newPod.UID != oldPod.UID {
		c.requeuer.addToQueue(logger, newPod)
	}
}

// removeLocked removes a pod and returns it, or nil if it is unknown. The caller holds the lock.
func (c *Cache) removeLocked(logger klog.Logger, uid types.UID) *v1.Pod {
	state := c.pods[uid]
	if state.Pod == nil {
		return nil
	}
	delete(c.pods, uid)
	c.unassume(state.Pod)
	c.enqueue(logger, operation{remove: state.Pod})
	return state.Pod
}

// unassume removes a pod from the assumed pods.
func (c *Cache) unassume(pod *v1.Pod) {
	if name := NameOf(pod); c.assumed[name] == pod.UID {
		delete(c.assumed, name)
	}
}

// removeAssumedNamesake removes and returns an assumed pod that has the same name as the given pod and
// another UID. The assumed pod was deleted, and no event will report that. If the given pod is the older one, it
// removes nothing: a replica learns from different senders of a deleted pod and of the one that replaced it, in
// either order.
func (c *Cache) removeAssumedNamesake(logger klog.Logger, pod *v1.Pod) (removed *v1.Pod) {
	uid, assumed := c.assumed[NameOf(pod)]
	if !assumed || uid == pod.UID || refresh.IsNewer(c.pods[uid].Pod.ResourceVersion, pod.ResourceVersion) {
		return nil
	}
	return c.removeLocked(logger, uid)
}

// NameOf returns the namespaced name of a pod.
func NameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// UpdatePodGroupMember is called for every update of a pod without a node. It removes an assumed pod with
// the same name.
func (c *Cache) UpdatePodGroupMember(logger klog.Logger, oldPod, newPod *v1.Pod) {
	c.upstreamParts.UpdatePodGroupMember(logger, oldPod, newPod)
	c.mu.Lock()
	removed := c.removeAssumedNamesake(logger, newPod)
	c.mu.Unlock()
	c.requeuer.retryAfterRemoval(logger, removed)
}
