package cache

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// A watch that missed something reports a pod that was deleted, and another that
// was created under its name, as one change. Upstream's cache ends the process if
// they are on different nodes, to start over; here the first leaves and the second
// comes.

// waiters are where pods go that wait for a node.
type requeuer struct{ sched *kubescheduler.Scheduler }

// wait queues a pod, if it is for this scheduler.
func (w requeuer) enqueue(logger klog.Logger, pod *v1.Pod) {
	if w.sched.Profiles.HandlesSchedulerName(pod.Spec.SchedulerName) {
		w.sched.SchedulingQueue.Add(klog.NewContext(context.Background(), logger), pod)
	}
}

// freed lets pods be tried again that may fit where one has left.
func (w requeuer) podLeft(logger klog.Logger, pod *v1.Pod) {
	if pod != nil {
		w.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, framework.EventAssignedPodDelete, pod, nil, nil)
	}
}

// succeed puts a pod in the place of another with the same name. A pod that is said
// to be on no node any more leaves its node until more is heard of it: no server
// says so.
func (c *Cache) replaceUnseen(logger klog.Logger, oldPod, newPod *v1.Pod) {
	logger.Info("Pod has become another one unseen", "pod", klog.KObj(newPod), "before", oldPod.UID, "now", newPod.UID)
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

// take removes a pod, and returns it, if it is known.
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

// unassume forgets that a pod of a name is assumed.
func (c *Cache) unassume(pod *v1.Pod) {
	if name := NameOf(pod); c.assumed[name] == pod.UID {
		delete(c.assumed, name)
	}
}

// displace removes the pod that is assumed under the name of another: it is gone,
// and no event will say so.
func (c *Cache) removeAssumedNamesake(logger klog.Logger, pod *v1.Pod) (left *v1.Pod) {
	if uid, assumed := c.assumed[NameOf(pod)]; assumed && uid != pod.UID {
		return c.removeLocked(logger, uid)
	}
	return nil
}

func NameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// UpdatePodGroupMember is told of every change of a pod that has no node.
func (c *Cache) UpdatePodGroupMember(logger klog.Logger, oldPod, newPod *v1.Pod) {
	c.Cache.UpdatePodGroupMember(logger, oldPod, newPod)
	c.mu.Lock()
	left := c.removeAssumedNamesake(logger, newPod)
	c.mu.Unlock()
	c.requeuer.podLeft(logger, left)
}
