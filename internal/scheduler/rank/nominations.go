package rank

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

// Nominations wraps the scheduling queue and tracks which pods are nominated to which nodes.
//
// Upstream's queue returns the nominated pods of only one node per call, and copies them. Nominations
// caches the results. It calls upstream's queue again for a node only after a pod that is, or may be,
// nominated to this node has changed. All calls that change nominations pass through Nominations.
type Nominations struct {
	queue.SchedulingQueue
	// nominees are the cached nominated pods, by node. Only the scheduling cycle reads and writes
	// them.
	nominees map[string][]Nominee

	mu sync.Mutex
	// lastNode is the node of each pod in nominees.
	lastNode map[types.UID]string
	// stale are the nodes whose nominees are out of date. A nominated pod is nominated to its
	// lastNode or to one of these nodes.
	stale sets.Set[string]
	// remote are the nominated pods in the queue of another replica, the leader, by node.
	remote map[string][]fwk.PodInfo
	// version is the number of changes of nominations in the queue of this process.
	version int64
}

// Nominee is a pod that is nominated to a node. Version is its resource version.
type Nominee struct {
	UID      types.UID
	Version  string
	priority int32
	usage    usage
}

// NewNominations wraps a scheduling queue.
func NewNominations(q queue.SchedulingQueue) *Nominations {
	return &Nominations{SchedulingQueue: q, nominees: map[string][]Nominee{}, lastNode: map[types.UID]string{}, stale: sets.New[string](), remote: map[string][]fwk.PodInfo{}}
}

// AddRemote adds the nomination to a node of a pod that is in the queue of another replica.
func (n *Nominations) AddRemote(node string, pod fwk.PodInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remote[node] = append(n.remote[node], pod)
	n.stale.Insert(node)
}

// RemoveRemote undoes [Nominations.AddRemote].
func (n *Nominations) RemoveRemote(node string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remote[node] = slices.DeleteFunc(n.remote[node], func(pod fwk.PodInfo) bool { return pod.GetPod().UID == uid })
	if len(n.remote[node]) == 0 {
		delete(n.remote, node)
	}
	n.stale.Insert(node)
}

// NominatedPodsForNode returns the pods that are nominated to a node, including those of another replica.
func (n *Nominations) NominatedPodsForNode(node string) []fwk.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.onNode(node)
}

// onNode is [Nominations.NominatedPodsForNode] for a caller that holds the lock.
func (n *Nominations) onNode(node string) []fwk.PodInfo {
	return append(n.SchedulingQueue.NominatedPodsForNode(node), n.remote[node]...)
}

// Add adds a pod to the queue.
func (n *Nominations) Add(ctx context.Context, pod *v1.Pod) {
	n.SchedulingQueue.Add(ctx, pod)
	n.markStale(pod)
}

// Update replaces a pod in the queue by a new version.
func (n *Nominations) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	n.SchedulingQueue.Update(ctx, oldPod, newPod)
	n.markStale(oldPod)
	n.markStale(newPod)
}

// Delete removes a pod from the queue.
func (n *Nominations) Delete(logger klog.Logger, pod *v1.Pod) {
	n.SchedulingQueue.Delete(logger, pod)
	n.markStale(pod)
}

// Pop removes the next pod from the queue. While the pod is scheduled, the queue has only its name.
func (n *Nominations) Pop(logger klog.Logger) (framework.QueuedEntityInfo, error) {
	next, err := n.SchedulingQueue.Pop(logger)
	if pod, ok := next.(*framework.QueuedPodInfo); ok && err == nil {
		n.markStale(pod.Pod)
	}
	return next, err
}

// AddUnschedulablePodIfNotPresent returns a pod that fits on no node to the queue.
func (n *Nominations) AddUnschedulablePodIfNotPresent(logger klog.Logger, pod *framework.QueuedPodInfo, cycle int64) error {
	object := pod.Pod
	err := n.SchedulingQueue.AddUnschedulablePodIfNotPresent(logger, pod, cycle)
	n.markStale(object)
	return err
}

// AddNominatedPod nominates a pod to a node.
func (n *Nominations) AddNominatedPod(logger klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	read := &lastRead{PodInfo: pod}
	n.SchedulingQueue.AddNominatedPod(logger, read, info)
	if info != nil {
		n.markStale(read.pod, info.NominatedNodeName)
	} else {
		n.markStale(read.pod)
	}
}

// lastRead remembers which pod upstream's queue has last read from a PodInfo. The queue reads it under its lock. The
// queue may own the PodInfo, and replaces its pod by a new version under the same lock, so only the queue may read it.
type lastRead struct {
	fwk.PodInfo
	pod *v1.Pod
}

// GetPod returns the pod.
func (l *lastRead) GetPod() *v1.Pod {
	l.pod = l.PodInfo.GetPod()
	return l.pod
}

// UpdateNominatedPod replaces a nominated pod by a new version.
func (n *Nominations) UpdateNominatedPod(logger klog.Logger, oldPod *v1.Pod, newPod fwk.PodInfo) {
	n.SchedulingQueue.UpdateNominatedPod(logger, oldPod, newPod)
	n.markStale(oldPod)
	n.markStale(newPod.GetPod())
}

// DeleteNominatedPodIfExists removes the nomination of a pod.
func (n *Nominations) DeleteNominatedPodIfExists(pod *v1.Pod) {
	n.SchedulingQueue.DeleteNominatedPodIfExists(pod)
	n.markStale(pod)
}

// markStale marks the nodes stale to which a changed pod may be nominated: the node in its status, its last
// node, and the given others.
func (n *Nominations) markStale(pod *v1.Pod, others ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range append(others, pod.Status.NominatedNodeName, n.lastNode[pod.UID]) {
		if node != "" {
			n.stale.Insert(node)
			n.version++
		}
	}
}

// Version returns a number that increases when nominations in the queue of this process may have changed.
func (n *Nominations) Version() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}

// Has returns whether a pod was nominated to a node at the last call of [Nominations.ByNode].
func (n *Nominations) Has(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lastNode[uid] != ""
}

// ByNode returns the nominated pods by node. The map is valid until the next call.
func (n *Nominations) ByNode() map[string][]Nominee {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node := range n.stale {
		for _, gone := range n.nominees[node] {
			if n.lastNode[gone.UID] == node {
				delete(n.lastNode, gone.UID)
			}
		}
		delete(n.nominees, node)
		for _, pod := range n.onNode(node) {
			n.lastNode[pod.GetPod().UID] = node
			n.nominees[node] = append(n.nominees[node], newNominee(pod))
		}
	}
	clear(n.stale)
	return n.nominees
}

// newNominee returns the data that the ranker needs of a nominated pod.
func newNominee(info fwk.PodInfo) Nominee {
	pod := info.GetPod()
	return Nominee{UID: pod.UID, Version: pod.ResourceVersion, priority: corev1helpers.PodPriority(pod), usage: newUsage(info)}
}

// requestedByNominated returns the summed requests and the number of those nominees for which a pod must
// leave room: other pods with at least its priority.
func requestedByNominated(nominees []Nominee, pod *v1.Pod) (total usage, pods int32) {
	for i := range nominees {
		if other := &nominees[i]; other.UID != pod.UID && other.priority >= corev1helpers.PodPriority(pod) {
			total.milliCPU += other.usage.milliCPU
			total.memory += other.usage.memory
			total.storage += other.usage.storage
			pods++
		}
	}
	return total, pods
}
