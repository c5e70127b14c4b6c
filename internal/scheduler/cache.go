package scheduler

import (
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Cache takes the place of kube-scheduler's own. It notes which pods are assumed
// and which are confirmed, at once, and hands what changes on nodes to the cluster
// when the next scheduling cycle begins, or earlier if that takes its time.
type Cache struct {
	// Pod groups, and binds through the dispatcher, stay upstream's.
	upstream.Cache

	cluster *cluster
	mu      sync.Mutex
	pods    map[types.UID]podState
	// assumed pods, by name.
	assumed map[types.NamespacedName]types.UID
	waiters waiters
	nodes   sets.Set[string]
	pending []operation
	// cycle says that a scheduling cycle reads the cluster. While none does, as on a
	// standby, a batch of operations is carried out as soon as it is full.
	cycle bool
	batch int
	// reported is when the metrics were last told how much there is.
	reported time.Time
}

// Operations that may wait while there is nothing to schedule. Many are cheaper
// together, and few are soon done when a cycle begins.
const idleBatch = 1000

type podState struct {
	pod     *v1.Pod
	assumed bool
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

func newCache(inner upstream.Cache, cluster *cluster, waiters waiters) *Cache {
	return &Cache{
		Cache: inner, cluster: cluster, waiters: waiters,
		pods: map[types.UID]podState{}, assumed: map[types.NamespacedName]types.UID{}, nodes: sets.New[string](), batch: idleBatch,
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
	c.catchUp()
	if info := c.cluster.copyOf(name); info != nil {
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
	c.pods[pod.UID] = podState{pod: pod, assumed: true}
	c.assumed[nameOf(pod)] = pod.UID
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
	case state.pod == nil:
		return nil
	case state.pod.Spec.NodeName != pod.Spec.NodeName:
		return fmt.Errorf("pod %v(%v) was assumed on %v but assigned to %v",
			pod.UID, klog.KObj(pod), state.pod.Spec.NodeName, pod.Spec.NodeName)
	case !state.assumed:
		return fmt.Errorf("pod %v(%v) is not assumed, so it cannot be removed or forgotten", pod.UID, klog.KObj(pod))
	}
	c.take(logger, pod.UID)
	return nil
}

// AddPod confirms a pod that was assumed, or adds one that was bound elsewhere.
func (c *Cache) AddPod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	left := c.displace(logger, pod)
	err := c.confirm(logger, pod)
	c.mu.Unlock()
	c.waiters.freed(logger, left)
	return err
}

func (c *Cache) confirm(logger klog.Logger, pod *v1.Pod) error {
	state := c.pods[pod.UID]
	switch {
	case state.pod == nil:
		c.add(logger, pod)
	case state.assumed:
		if state.pod.Spec.NodeName != pod.Spec.NodeName {
			logger.Info("Pod was added to a different node than it was assumed", "pod", klog.KObj(pod),
				"assumedNode", klog.KRef("", state.pod.Spec.NodeName), "currentNode", klog.KRef("", pod.Spec.NodeName))
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
		c.succeed(logger, oldPod, newPod)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[oldPod.UID]
	switch {
	case state.pod == nil:
		return fmt.Errorf("pod %v(%v) is not added to scheduler cache, so cannot be updated", oldPod.UID, klog.KObj(oldPod))
	case state.assumed:
		return fmt.Errorf("assumed pod %v(%v) should not be updated", oldPod.UID, klog.KObj(oldPod))
	case state.pod.Spec.NodeName != newPod.Spec.NodeName:
		// Upstream ends the process here; the watch says where the pod is, and that
		// is what counts.
		logger.Error(nil, "Pod updated on a different node than previously added to", "pod", klog.KObj(newPod),
			"before", klog.KRef("", state.pod.Spec.NodeName), "now", klog.KRef("", newPod.Spec.NodeName))
	}
	c.replace(logger, state, newPod)
	return nil
}

func (c *Cache) add(logger klog.Logger, pod *v1.Pod) {
	c.pods[pod.UID] = podState{pod: pod}
	c.note(logger, operation{add: pod})
}

func (c *Cache) replace(logger klog.Logger, state podState, pod *v1.Pod) {
	c.unassume(state.pod)
	c.note(logger, operation{remove: state.pod, add: pod})
	c.pods[pod.UID] = podState{pod: pod}
}

// RemovePod removes a pod from the node that it was added to.
func (c *Cache) RemovePod(logger klog.Logger, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	if state.pod == nil {
		return fmt.Errorf("pod %v(%v) is not found in scheduler cache, so cannot be removed from it", pod.UID, klog.KObj(pod))
	}
	c.take(logger, pod.UID)
	return nil
}

// GetPod returns a pod, also one whose node is gone.
func (c *Cache) GetPod(pod *v1.Pod) (*v1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state := c.pods[pod.UID]; state.pod != nil {
		return state.pod, nil
	}
	return nil, fmt.Errorf("pod %v(%v) does not exist in scheduler cache", pod.UID, klog.KObj(pod))
}

// IsAssumedPod says whether a pod is assumed and not confirmed.
func (c *Cache) IsAssumedPod(pod *v1.Pod) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.pods[pod.UID]
	return state.assumed, nil
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
func (c *Cache) UpdateSnapshot(logger klog.Logger, snapshot *upstream.Snapshot) error {
	if snapshot != c.cluster.snapshot.whole {
		return fmt.Errorf("the cache fills one snapshot only, that of the scheduler")
	}
	defer timed(stepUpdate, time.Now())
	c.mu.Lock()
	c.cycle = true
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.cluster.apply(logger, pending)
	return nil
}

// endCycle says that nothing reads the cluster until the next [Cache.UpdateSnapshot].
func (c *Cache) endCycle(logger klog.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cycle = false
	c.settle(logger, c.batch)
}

// catchUp carries out what waits, however little it is, if nobody reads the cluster.
func (c *Cache) catchUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(klog.Background(), 0)
}

func (c *Cache) note(logger klog.Logger, op operation) {
	c.pending = append(c.pending, op)
	if now := time.Now(); now.Sub(c.reported) > time.Second {
		c.reported = now
		reportCacheSize(len(c.assumed), len(c.pods), len(c.nodes))
	}
	c.settle(logger, c.batch)
}

// settle carries out what waits, if nobody reads the cluster and there is enough.
// The lock is held, so that no cycle begins meanwhile.
func (c *Cache) settle(logger klog.Logger, enough int) {
	if c.cycle || len(c.pending) < enough {
		return
	}
	c.cluster.apply(logger, c.pending)
	clear(c.pending)
	c.pending = c.pending[:0]
}

// Dump copies everything, for people who look for an error; see [Cache.GetNode].
func (c *Cache) Dump() *upstream.Dump {
	c.catchUp()
	c.mu.Lock()
	assumed := sets.New[string]()
	for uid, state := range c.pods {
		if state.assumed {
			assumed.Insert(string(uid))
		}
	}
	c.mu.Unlock()
	return &upstream.Dump{AssumedPods: assumed, Nodes: c.cluster.copies()}
}
