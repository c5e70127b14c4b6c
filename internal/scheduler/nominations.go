package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
)

// nominations is the scheduling queue, and knows on which nodes there may be
// nominated pods: upstream's can only be asked for one node.
type nominations struct {
	queue.SchedulingQueue
	mu    sync.Mutex
	nodes sets.Set[string]
	// prune is when nodes are next looked for that have no nominated pods any more.
	prune time.Time
}

const (
	// Nodes are looked through once in this time, and so rarely that it takes no more
	// than this share of the scheduler's.
	pruneInterval = time.Second
	pruneShare    = 50
)

func newNominations(q queue.SchedulingQueue) *nominations {
	return &nominations{SchedulingQueue: q, nodes: sets.New[string]()}
}

// Add adds a pod to the queue.
func (n *nominations) Add(ctx context.Context, pod *v1.Pod) {
	n.SchedulingQueue.Add(ctx, pod)
	n.note(pod.Status.NominatedNodeName)
}

// Update takes a new version of a pod in the queue.
func (n *nominations) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	n.SchedulingQueue.Update(ctx, oldPod, newPod)
	n.note(newPod.Status.NominatedNodeName)
}

// AddNominatedPod nominates a pod to run on a node.
func (n *nominations) AddNominatedPod(logger klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	n.SchedulingQueue.AddNominatedPod(logger, pod, info)
	if info != nil {
		n.note(info.NominatedNodeName)
	}
	n.note(pod.GetPod().Status.NominatedNodeName)
}

// note is called when the queue knows, or the node could be forgotten meanwhile.
func (n *nominations) note(node string) {
	if node == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes.Insert(node)
}

// places are the nodes that may have nominated pods.
func (n *nominations) places() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); len(n.nodes) > 0 && now.After(n.prune) {
		for node := range n.nodes {
			if len(n.NominatedPodsForNode(node)) == 0 {
				n.nodes.Delete(node)
			}
		}
		n.prune = time.Now().Add(max(pruneInterval, pruneShare*time.Since(now)))
	}
	return n.nodes.UnsortedList()
}

// ahead says whether a pod has to leave room on a node for one that is nominated to
// it. Asking copies all that are, so it is not for free.
func (n *nominations) ahead(node string, pod *v1.Pod) bool {
	return slices.ContainsFunc(n.NominatedPodsForNode(node), func(nominated fwk.PodInfo) bool {
		other := nominated.GetPod()
		return other.UID != pod.UID && corev1helpers.PodPriority(other) >= corev1helpers.PodPriority(pod)
	})
}
