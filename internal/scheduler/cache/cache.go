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
)

// Cache takes the place of kube-scheduler's own. It notes which pods are assumed
// and which are confirmed, at once, and hands what changes on nodes to the cluster
// when the next scheduling cycle begins, or earlier if that takes its time.
type Cache struct {
	// Pod groups, and binds through the dispatcher, stay upstream's.
	schedcache.Cache

	cluster *Cluster
	mu      sync.Mutex
	pods    map[types.UID]PodState
	// assumed pods, by name.
	assumed  map[types.NamespacedName]types.UID
	requeuer requeuer
	nodes    sets.Set[string]
	pending  []operation
	// cycle says that a scheduling cycle reads the cluster. While none does, as on a
	// standby, a batch of operations is carried out as soon as it is full.
	inCycle bool
	Batch   int
	// reported is when the metrics were last told how much there is.
	reported time.Time
}

// Operations that may wait while there is nothing to schedule. Many are cheaper
// together, and few are soon done when a cycle begins.
const IdleBatch = 1000

type PodState struct {
	Pod     *v1.Pod
	Assumed bool
}

// operation is something that the cluster has yet to learn. With neither pod it is
// about a node.
type operation struct {
	// remove and add are what leaves a node and what comes to it.
	remove, add *v1.Pod
	// node is set, or taken away if gone says so.
	node *v1.Node
	gone bool
}

// newCache makes an empty cache in front of upstream's, which keeps pod groups. Pods that wait
// for nodes go to the queue of the scheduler.
func New(inner schedcache.Cache, cluster *Cluster, sched *kubescheduler.Scheduler) *Cache {
	return &Cache{
		Cache: inner, cluster: cluster, requeuer: requeuer{sched},
		pods: map[types.UID]PodState{}, assumed: map[types.NamespacedName]types.UID{}, nodes: sets.New[string](), Batch: IdleBatch,
	}
}

// NodeCount is the number of nodes.
func (c *Cache) NodeCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes.Len()
}

// PodCount is the number of pods, those on nodes included that are gone.
func (c *Cache) PodCount() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pods), nil
}

// GetNode returns a copy of what is known of a node; during a scheduling
// cycle, that is what was known when it began.
func (c *Cache) GetNode(name string) (*framework.NodeInfo, error) {
	c.applyPending()
	if info := c.cluster.CopyNode(name); info != nil {
		return info, nil
	}
	return nil, fmt.Errorf("node %v does not exist in scheduler cache", name)
}

// AssumePod takes a pod for bound.
func (c *Cache) AssumePod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.pods[pod.UID]; known {
		return fmt.Errorf("pod %v(%v) is in the cache, so can't be assumed", pod.UID, klog.KObj(pod))
	}
	c.pods[pod.UID] = PodState{Pod: pod, Assumed: true}
	c.assumed[NameOf(pod)] = pod.UID
	c.note(logger, operation{add: pod})
	return nil
}

// ForgetPod undoes AssumePod.
func (c *Cache) ForgetPod(logger klog.Logger, pod *v1.Pod) error {
	return c.RemoveAssumedPod(logger, pod)
}

// RemoveAssumedPod removes a pod that was assumed.
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

// AddPod confirms a pod that was assumed, or adds one that was bound elsewhere.
func (c *Cache) AddPod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	left := c.removeAssumedNamesake(logger, pod)
	err := c.confirm(logger, pod)
	c.mu.Unlock()
	c.requeuer.podLeft(logger, left)
	return err
}

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

// UpdatePod takes a new version of a pod that was added.
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
		// Upstream ends the process here; the watch says where the pod is, and that
		// is what counts.
		logger.Error(nil, "Pod updated on a different node than previously added to", "pod", klog.KObj(newPod),
			"before", klog.KRef("", state.Pod.Spec.NodeName), "now", klog.KRef("", newPod.Spec.NodeName))
	}
	c.replace(logger, state, newPod)
	return nil
}

func (c *Cache) add(logger klog.Logger, pod *v1.Pod) {
	c.pods[pod.UID] = PodState{Pod: pod}
	c.note(logger, operation{add: pod})
}

func (c *Cache) replace(logger klog.Logger, state PodState, pod *v1.Pod) {
	c.unassume(state.Pod)
	c.note(logger, operation{remove: state.Pod, add: pod})
	c.pods[pod.UID] = PodState{Pod: pod}
}

// RemovePod removes a pod from the node that it was added to.
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

// GetPod returns a pod, also one whose node is gone.
func (c *Cache) GetPod(pod *v1.Pod) (*v1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state := c.pods[pod.UID]; state.Pod != nil {
		return state.Pod, nil
	}
	return nil, fmt.Errorf("pod %v(%v) does not exist in scheduler cache", pod.UID, klog.KObj(pod))
}

// IsAssumedPod says whether a pod is assumed and not confirmed.
func (c *Cache) IsAssumedPod(pod *v1.Pod) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	return state.Assumed, nil
}

// AddNode adds a node.
func (c *Cache) AddNode(logger klog.Logger, node *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes.Insert(node.Name)
	c.note(logger, operation{node: node})
}

// UpdateNode takes a new version of a node.
func (c *Cache) UpdateNode(logger klog.Logger, _, newNode *v1.Node) { c.AddNode(logger, newNode) }

// RemoveNode removes a node; pods on it stay until they are removed.
func (c *Cache) RemoveNode(logger klog.Logger, node *v1.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.nodes.Has(node.Name) {
		return fmt.Errorf("node %v is not found", node.Name)
	}
	c.nodes.Delete(node.Name)
	c.note(logger, operation{node: node, gone: true})
	return nil
}

// UpdateSnapshot begins a scheduling cycle: what has changed since the last one is
// carried out.
func (c *Cache) UpdateSnapshot(logger klog.Logger, snapshot *schedcache.Snapshot) error {
	if snapshot != c.cluster.Snapshot.Upstream {
		return fmt.Errorf("the cache fills one snapshot only, that of the scheduler")
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

// Pending is the number of operations that wait for the next cycle.
func (c *Cache) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// PendingNode returns whether a version of a node waits for the next cycle.
func (c *Cache) PendingNode(version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.pending, func(op operation) bool { return op.node != nil && op.node.ResourceVersion == version })
}

// States returns a copy of all pods that the cache knows to be on nodes, by UID.
func (c *Cache) States() map[types.UID]PodState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.pods)
}

// endCycle says that nothing reads the cluster until the next [Cache.UpdateSnapshot].
func (c *Cache) EndCycle(logger klog.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inCycle = false
	c.applyIfIdle(logger, c.Batch)
}

// catchUp carries out what waits, however little it is, if nobody reads the cluster.
func (c *Cache) applyPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyIfIdle(klog.Background(), 0)
}

func (c *Cache) note(logger klog.Logger, op operation) {
	c.pending = append(c.pending, op)
	if now := time.Now(); now.Sub(c.reported) > time.Second {
		c.reported = now
		reportCacheSize(len(c.assumed), len(c.pods), len(c.nodes))
	}
	c.applyIfIdle(logger, c.Batch)
}

// settle carries out what waits, if nobody reads the cluster and there is enough.
// The lock is held, so that no cycle begins meanwhile.
func (c *Cache) applyIfIdle(logger klog.Logger, enough int) {
	if c.inCycle || len(c.pending) < enough {
		return
	}
	c.cluster.Apply(logger, c.pending)
	clear(c.pending)
	c.pending = c.pending[:0]
}

// Dump copies everything, for people who look for an error; see [Cache.GetNode].
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
