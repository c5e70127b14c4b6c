// Package cache keeps the nodes of a cluster and the pods on them. [Cache] replaces
// kube-scheduler's cache and queues changes; [Cluster] applies them to the snapshot that plugins
// read and to the index.
package cache

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
)

// Cache replaces kube-scheduler's own cache. It records immediately which pods are assumed and which are
// confirmed. It applies changes to the cluster when the next scheduling cycle starts; while no cycle runs,
// it applies them as soon as there are enough.
type Cache struct {
	upstreamParts

	cluster *Cluster
	mu      sync.Mutex
	pods    map[types.UID]PodState
	// assumed are the UIDs of the assumed pods, by name.
	assumed  map[types.NamespacedName]types.UID
	requeuer requeuer
	// nodes are the current nodes, by name.
	nodes   map[string]*v1.Node
	pending []operation
	// inCycle is true while a scheduling cycle reads the cluster. While it is false, for example on a
	// standby, operations are applied as soon as Batch of them are pending.
	inCycle bool
	Batch   int
	// reported is the time at which the size metrics were last set.
	reported time.Time
}

// IdleBatch is the default of Cache.Batch. To apply many operations together costs less per operation, and
// the start of a cycle can apply this many quickly.
const IdleBatch = 1000

// PodState is a pod on a node, and whether it is assumed and not confirmed.
type PodState struct {
	Pod     *v1.Pod
	Assumed bool
}

// operation is a change that the cluster has not applied yet: of pods, or of a node if node is set.
type operation struct {
	// remove is removed from its node. add is added to its node. If both are set, they are two
	// versions of a pod.
	remove, add *v1.Pod
	// node is added or updated, or removed if gone is true.
	node *v1.Node
	gone bool
}

// New returns an empty cache that wraps upstream's, which keeps pod groups. sched is the scheduler whose
// queue gets pods that lose their node.
func New(inner schedcache.Cache, cluster *Cluster, sched *kubescheduler.Scheduler) *Cache {
	return &Cache{
		upstreamParts: upstreamParts{inner}, cluster: cluster, requeuer: requeuer{sched},
		pods: map[types.UID]PodState{}, assumed: map[types.NamespacedName]types.UID{}, nodes: map[string]*v1.Node{}, Batch: IdleBatch,
	}
}

// NodeCount returns the number of nodes.
func (c *Cache) NodeCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes)
}

// PodCount returns the number of pods, including those on nodes that were deleted.
func (c *Cache) PodCount() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pods), nil
}

// GetNode returns a copy of a node with its pods. During a scheduling cycle, it returns the state at the
// start of the cycle.
func (c *Cache) GetNode(name string) (*framework.NodeInfo, error) {
	c.applyPending()
	if info := c.cluster.CopyNode(name); info != nil {
		return info, nil
	}
	return nil, fmt.Errorf("node %v does not exist in scheduler cache", name)
}

// AssumePod records a pod as if it were bound to its node.
func (c *Cache) AssumePod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.pods[pod.UID]; known {
		return fmt.Errorf("pod %v(%v) is in the cache, so can't be assumed", pod.UID, klog.KObj(pod))
	}
	c.pods[pod.UID] = PodState{Pod: pod, Assumed: true}
	c.assumed[NameOf(pod)] = pod.UID
	c.enqueue(logger, operation{add: pod})
	return nil
}

// ForgetPod undoes [Cache.AssumePod].
func (c *Cache) ForgetPod(logger klog.Logger, pod *v1.Pod) error {
	return c.RemoveAssumedPod(logger, pod)
}

// RemoveAssumedPod removes an assumed pod.
func (c *Cache) RemoveAssumedPod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	switch {
	case state.Pod == nil:
		return nil
	case state.Pod.Spec.NodeName != pod.Spec.NodeName:
		return fmt.Errorf("pod %v(%v) was assumed on %v but assigned to %v",
			pod.UID, klog.KObj(pod), state.Pod.Spec.NodeName, pod.Spec.NodeName)
	case !state.Assumed:
		return fmt.Errorf("pod %v(%v) is not assumed, so it cannot be removed or forgotten", pod.UID, klog.KObj(pod))
	}
	c.removeLocked(logger, pod.UID)
	return nil
}

// AddPod confirms an assumed pod, or adds a pod that this scheduler has not assumed.
func (c *Cache) AddPod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	removed := c.removeAssumedNamesake(logger, pod)
	err := c.confirm(logger, pod)
	c.mu.Unlock()
	c.requeuer.retryAfterRemoval(logger, removed)
	return err
}

// confirm is [Cache.AddPod] for a caller that holds the lock.
func (c *Cache) confirm(logger klog.Logger, pod *v1.Pod) error {
	state := c.pods[pod.UID]
	switch {
	case state.Pod == nil:
		c.add(logger, pod)
	case state.Assumed:
		if state.Pod.Spec.NodeName != pod.Spec.NodeName {
			logger.Info("Pod was added to a different node than it was assumed", "pod", klog.KObj(pod),
				"assumedNode", klog.KRef("", state.Pod.Spec.NodeName), "currentNode", klog.KRef("", pod.Spec.NodeName))
		}
		c.replace(logger, state, pod)
	default:
		return fmt.Errorf("pod %v(%v) was already in added state", pod.UID, klog.KObj(pod))
	}
	return nil
}

// UpdatePod replaces a pod by a new version.
func (c *Cache) UpdatePod(logger klog.Logger, oldPod, newPod *v1.Pod) error {
	if oldPod.UID != newPod.UID || newPod.Spec.NodeName == "" {
		c.replaceUnseen(logger, oldPod, newPod)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[oldPod.UID]
	switch {
	case state.Pod == nil:
		return fmt.Errorf("pod %v(%v) is not added to scheduler cache, so cannot be updated", oldPod.UID, klog.KObj(oldPod))
	case state.Assumed:
		return fmt.Errorf("assumed pod %v(%v) should not be updated", oldPod.UID, klog.KObj(oldPod))
	case state.Pod.Spec.NodeName != newPod.Spec.NodeName:
		// Upstream's cache exits the process in this case. This cache uses the node that the watch
		// reports.
		logger.Error(nil, "Pod updated on a different node than previously added to", "pod", klog.KObj(newPod),
			"before", klog.KRef("", state.Pod.Spec.NodeName), "now", klog.KRef("", newPod.Spec.NodeName))
	}
	c.replace(logger, state, newPod)
	return nil
}

func (c *Cache) add(logger klog.Logger, pod *v1.Pod) {
	c.pods[pod.UID] = PodState{Pod: pod}
	c.enqueue(logger, operation{add: pod})
}

func (c *Cache) replace(logger klog.Logger, state PodState, pod *v1.Pod) {
	c.unassume(state.Pod)
	c.enqueue(logger, operation{remove: state.Pod, add: pod})
	c.pods[pod.UID] = PodState{Pod: pod}
}

// RemovePod removes a pod from its node.
func (c *Cache) RemovePod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	if state.Pod == nil {
		return fmt.Errorf("pod %v(%v) is not found in scheduler cache, so cannot be removed from it", pod.UID, klog.KObj(pod))
	}
	c.removeLocked(logger, pod.UID)
	return nil
}

// GetPod returns a pod, even if its node was deleted.
func (c *Cache) GetPod(pod *v1.Pod) (*v1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state := c.pods[pod.UID]; state.Pod != nil {
		return state.Pod, nil
	}
	return nil, fmt.Errorf("pod %v(%v) does not exist in scheduler cache", pod.UID, klog.KObj(pod))
}

// IsAssumedPod returns whether a pod is assumed and not confirmed.
func (c *Cache) IsAssumedPod(pod *v1.Pod) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	return state.Assumed, nil
}

// AddNode adds a node. It ignores a node that was deleted and created again with another UID, if the cache has the new one:
// a replica watches nodes in several parts by their UIDs, and one watch may be behind another.
func (c *Cache) AddNode(logger klog.Logger, node *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[node.Name]; known != nil && known.UID != node.UID && refresh.IsNewer(known.ResourceVersion, node.ResourceVersion) {
		return
	}
	c.setNode(logger, node)
}

// setNode adds or replaces a node. The caller holds the lock.
func (c *Cache) setNode(logger klog.Logger, node *v1.Node) {
	c.nodes[node.Name] = node
	c.enqueue(logger, operation{node: node})
}

// UpdateNode replaces a node by a new version, or by a node with another UID that an informer of all nodes has instead. The
// store may have been restored from a backup, so the version of the latter may be the lower one.
func (c *Cache) UpdateNode(logger klog.Logger, oldNode, newNode *v1.Node) {
	if oldNode == nil || oldNode.UID == newNode.UID {
		c.AddNode(logger, newNode)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setNode(logger, newNode)
}

// RemoveNode removes a node, unless it was created again with another UID. The cache keeps the pods on it until they are
// removed.
func (c *Cache) RemoveNode(logger klog.Logger, node *v1.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[node.Name]; known == nil || known.UID != node.UID {
		return fmt.Errorf("node %v with UID %q is not found", node.Name, node.UID)
	}
	delete(c.nodes, node.Name)
	c.enqueue(logger, operation{node: node, gone: true})
	return nil
}

// UpdateSnapshot starts a scheduling cycle: it applies all pending changes.
func (c *Cache) UpdateSnapshot(logger klog.Logger, snapshot *schedcache.Snapshot) error {
	if snapshot != c.cluster.Snapshot.Upstream {
		return fmt.Errorf("the cache can fill only the snapshot for which it was made")
	}
	defer ObserveStep(stepUpdate, time.Now())
	c.mu.Lock()
	c.inCycle = true
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.cluster.Apply(logger, pending)
	return nil
}

// Pending returns the number of operations that have not been applied.
func (c *Cache) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// PendingNode returns whether an operation with a node of the given resource version has not been applied.
func (c *Cache) PendingNode(version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.pending, func(op operation) bool { return op.node != nil && op.node.ResourceVersion == version })
}

// States returns a copy of all pods on nodes, by UID.
func (c *Cache) States() map[types.UID]PodState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.pods)
}

// EndCycle ends a scheduling cycle. The caller must not read the cluster until the next
// [Cache.UpdateSnapshot].
func (c *Cache) EndCycle(logger klog.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inCycle = false
	c.applyIfIdle(logger, c.Batch)
}

// applyPending applies all pending operations unless a cycle runs.
func (c *Cache) applyPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyIfIdle(klog.Background(), 0)
}

// enqueue adds an operation to the pending ones. The caller holds the lock.
func (c *Cache) enqueue(logger klog.Logger, op operation) {
	c.pending = append(c.pending, op)
	if now := time.Now(); now.Sub(c.reported) > time.Second {
		c.reported = now
		reportCacheSize(len(c.assumed), len(c.pods), len(c.nodes))
	}
	c.applyIfIdle(logger, c.Batch)
}

// applyIfIdle applies the pending operations if no cycle runs and at least enough of them are pending. The
// caller holds the lock, so that no cycle starts meanwhile.
func (c *Cache) applyIfIdle(logger klog.Logger, enough int) {
	if c.inCycle || len(c.pending) < enough {
		return
	}
	c.cluster.Apply(logger, c.pending)
	clear(c.pending)
	c.pending = c.pending[:0]
}

// Dump returns copies of all nodes and the UIDs of the assumed pods, for debugging. As in [Cache.GetNode],
// the nodes may have the state at the start of the cycle.
func (c *Cache) Dump() *schedcache.Dump {
	c.applyPending()
	c.mu.Lock()
	assumed := sets.New[string]()
	for uid, state := range c.pods {
		if state.Assumed {
			assumed.Insert(string(uid))
		}
	}
	c.mu.Unlock()
	return &schedcache.Dump{AssumedPods: assumed, Nodes: c.cluster.copyNodes()}
}
