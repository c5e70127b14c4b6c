package scheduler

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// nominations is the scheduling queue, and knows which pods are nominated to nodes.
//
// Upstream's can be asked for one node at a time, and copies the pods there. What it
// said is kept; a node is asked about again once something has happened to a pod that
// is nominated to it, or may be since. All that changes what upstream would say passes
// through here.
type nominations struct {
	queue.SchedulingQueue
	// nominees by node, as upstream's queue last said; only the scheduling cycle reads
	// and writes them.
	nominees map[string][]nominee

	mu sync.Mutex
	// at is the node that a pod was last seen to be nominated to.
	at map[types.UID]string
	// stale are nodes to be asked about again. A pod is nominated to the node that at
	// has for it, or to one of these.
	stale sets.Set[string]
	// told are pods in the queue of another replica, which leads.
	told map[string][]fwk.PodInfo
}

// nominee is a pod that is nominated to a node.
type nominee struct {
	uid      types.UID
	priority int32
	request  request
}

func newNominations(q queue.SchedulingQueue) *nominations {
	return &nominations{SchedulingQueue: q, nominees: map[string][]nominee{}, at: map[types.UID]string{}, stale: sets.New[string](), told: map[string][]fwk.PodInfo{}}
}

// tell notes that a pod in the queue of another replica is nominated to a node.
func (n *nominations) tell(node string, pod fwk.PodInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told[node] = append(n.told[node], pod)
	n.stale.Insert(node)
}

// untell takes that back.
func (n *nominations) untell(node string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told[node] = slices.DeleteFunc(n.told[node], func(pod fwk.PodInfo) bool { return pod.GetPod().UID == uid })
	if len(n.told[node]) == 0 {
		delete(n.told, node)
	}
	n.stale.Insert(node)
}

// NominatedPodsForNode are the pods that are nominated to a node.
func (n *nominations) NominatedPodsForNode(node string) []fwk.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.onNode(node)
}

func (n *nominations) onNode(node string) []fwk.PodInfo {
	return append(n.SchedulingQueue.NominatedPodsForNode(node), n.told[node]...)
}

// Add adds a pod to the queue.
func (n *nominations) Add(ctx context.Context, pod *v1.Pod) {
	n.SchedulingQueue.Add(ctx, pod)
	n.touch(pod)
}

// Update takes a new version of a pod in the queue.
func (n *nominations) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	n.SchedulingQueue.Update(ctx, oldPod, newPod)
	n.touch(oldPod)
	n.touch(newPod)
}

// Delete removes a pod from the queue.
func (n *nominations) Delete(logger klog.Logger, pod *v1.Pod) {
	n.SchedulingQueue.Delete(logger, pod)
	n.touch(pod)
}

// Pop takes the next pod out of the queue, which from then on knows only its name.
func (n *nominations) Pop(logger klog.Logger) (framework.QueuedEntityInfo, error) {
	next, err := n.SchedulingQueue.Pop(logger)
	if pod, is := next.(*framework.QueuedPodInfo); is && err == nil {
		n.touch(pod.Pod)
	}
	return next, err
}

// AddUnschedulablePodIfNotPresent puts a pod back that fitted nowhere.
func (n *nominations) AddUnschedulablePodIfNotPresent(logger klog.Logger, pod *framework.QueuedPodInfo, cycle int64) error {
	object := pod.Pod
	err := n.SchedulingQueue.AddUnschedulablePodIfNotPresent(logger, pod, cycle)
	n.touch(object)
	return err
}

// AddNominatedPod nominates a pod to run on a node.
func (n *nominations) AddNominatedPod(logger klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	n.SchedulingQueue.AddNominatedPod(logger, pod, info)
	if info != nil {
		n.touch(pod.GetPod(), info.NominatedNodeName)
	} else {
		n.touch(pod.GetPod())
	}
}

// UpdateNominatedPod takes a new version of a nominated pod.
func (n *nominations) UpdateNominatedPod(logger klog.Logger, oldPod *v1.Pod, newPod fwk.PodInfo) {
	n.SchedulingQueue.UpdateNominatedPod(logger, oldPod, newPod)
	n.touch(oldPod)
	n.touch(newPod.GetPod())
}

// DeleteNominatedPodIfExists takes back that a pod is nominated.
func (n *nominations) DeleteNominatedPodIfExists(pod *v1.Pod) {
	n.SchedulingQueue.DeleteNominatedPodIfExists(pod)
	n.touch(pod)
}

// touch is called when something has happened to a pod, and the queue knows. It may
// be nominated to the node that its status names, to others, or to where it was.
func (n *nominations) touch(pod *v1.Pod, others ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range append(others, pod.Status.NominatedNodeName, n.at[pod.UID]) {
		if node != "" {
			n.stale.Insert(node)
		}
	}
}

// byNode are the pods that are nominated to nodes. The map is valid until the next call.
func (n *nominations) byNode() map[string][]nominee {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node := range n.stale {
		for _, gone := range n.nominees[node] {
			if n.at[gone.uid] == node {
				delete(n.at, gone.uid)
			}
		}
		delete(n.nominees, node)
		for _, pod := range n.onNode(node) {
			n.at[pod.GetPod().UID] = node
			n.nominees[node] = append(n.nominees[node], newNominee(pod))
		}
	}
	clear(n.stale)
	return n.nominees
}

func newNominee(info fwk.PodInfo) nominee {
	pod := info.GetPod()
	return nominee{uid: pod.UID, priority: corev1helpers.PodPriority(pod), request: newRequest(info)}
}

// ahead is how many of some nominees a pod has to leave room for, and what they request.
func ahead(nominees []nominee, pod *v1.Pod) (total request, pods int32) {
	for i := range nominees {
		if other := &nominees[i]; other.uid != pod.UID && other.priority >= corev1helpers.PodPriority(pod) {
			total.milliCPU += other.request.milliCPU
			total.memory += other.request.memory
			total.storage += other.request.storage
			pods++
		}
	}
	return total, pods
}
