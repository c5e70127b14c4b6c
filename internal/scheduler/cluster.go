package scheduler

import (
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// cluster is the nodes and the pods on them, as the scheduling cycle sees them:
// once, in the form that plugins read, and indexed.
//
// Only the scheduling cycle writes, under the lock; it reads without.
type cluster struct {
	mu       sync.RWMutex
	nodes    map[string]*node
	bySlot   []*node
	free     []index.Slot
	snapshot *snapshot
	index    *index.Index
	// images are shared by the infos of all nodes that have them.
	images map[string]*fwk.ImageStateSummary
	names  names
	// hosts counts the nodes for each value of the hostname label, and shared those
	// values that more than one node has.
	hosts  map[string]int
	shared int
	dirty  []*node
	// pods on all nodes, and names that may be out of use before all are given anew.
	pods, spareNames int
	// elsewhere are nodes that other indexes have.
	elsewhere int
	// ranked is the pod that a node was last found for.
	ranked ranked
	// watched says that a plugin was left behind that may still read all this.
	watched atomic.Bool
}

// ranked is a pod, and what was computed for its class.
type ranked struct {
	uid  types.UID
	info *framework.PodInfo
}

// node is a machine, or pods on one that is not there.
type node struct {
	info *framework.NodeInfo
	slot index.Slot
	// position in the snapshot's list, or -1 while there is no such node.
	position int
	shape    index.ShapeID
	host     string
	dirty    bool
}

// Names out of use that are not worth making everything anew.
const spareNames = 100_000

func newCluster(snapshot *snapshot) *cluster {
	return &cluster{
		nodes:    map[string]*node{},
		snapshot: snapshot,
		index:    index.New(),
		images:   map[string]*fwk.ImageStateSummary{},
		names:    newNames(usualLabels...),
		hosts:    map[string]int{},

		spareNames: spareNames,
	}
}

// size is the number of nodes.
func (c *cluster) size() int { return c.index.Len() + c.elsewhere }

// apply carries out what has happened, and brings the index up to date.
func (c *cluster) apply(logger klog.Logger, operations []operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched.Swap(false) {
		c.moveOut()
	}
	for i := range operations {
		switch op := &operations[i]; {
		case op.node == nil:
			c.changePod(logger, op.remove, op.add)
		case op.gone:
			c.removeNode(op.node.Name)
		default:
			c.setNode(op.node)
		}
	}
	for _, n := range c.dirty {
		n.dirty = false
		if n.position >= 0 {
			c.index.Place(n.slot, c.names.state(n))
			c.snapshot.refresh(n.info)
		}
	}
	clear(c.dirty)
	c.dirty = c.dirty[:0]
	if c.names.len() > 2*(len(c.nodes)+c.pods)+c.spareNames {
		c.names = newNames(c.names.labels...)
		c.renew()
	}
}

// changePod takes one version of a pod away and puts another in its place; either
// may be missing.
func (c *cluster) changePod(logger klog.Logger, before, after *v1.Pod) {
	if before != nil && after != nil && c.replacePod(before, after) {
		return
	}
	if before != nil {
		c.removePod(logger, before)
	}
	if after != nil {
		c.addPod(after)
	}
}

// replacePod puts a new version of a pod in the place of one that differs in
// nothing that nodes or other pods could notice, as most do: binds that are
// confirmed, and phases. It returns false if that is not so.
func (c *cluster) replacePod(before, after *v1.Pod) bool {
	n := c.nodes[before.Spec.NodeName]
	if n == nil || !sameOnNode(before, after) {
		return false
	}
	for _, pods := range [][]fwk.PodInfo{n.info.Pods, n.info.PodsWithAffinity, n.info.PodsWithRequiredAntiAffinity, n.info.PodsWithRequiredNonHostScopedAntiAffinity} {
		for i, found := range pods {
			if found.GetPod().UID == before.UID {
				pods[i] = withPod(found.(*framework.PodInfo), after)
			}
		}
	}
	return true
}

// withPod is what was computed for one version of a pod, for another.
func withPod(info *framework.PodInfo, pod *v1.Pod) *framework.PodInfo {
	changed := *info
	changed.Pod = pod
	return &changed
}

func (c *cluster) addPod(pod *v1.Pod) {
	n := c.node(pod.Spec.NodeName)
	info := c.podInfo(pod)
	n.info.AddPodInfo(info)
	c.pods++
	if n.position >= 0 {
		c.index.AddPod(n.slot, c.names.kind(info))
		c.countClaims(pod, 1)
	}
	c.mark(n)
}

// podInfo computes what plugins want to know of a pod, unless that was done for its
// class when a node was looked for.
func (c *cluster) podInfo(pod *v1.Pod) *framework.PodInfo {
	if c.ranked.uid == pod.UID && sameTake(c.ranked.info.Pod, pod) {
		return withPod(c.ranked.info, pod)
	}
	// As upstream: what the API server let through of a malformed term is ignored.
	info, _ := framework.NewPodInfo(pod)
	return info
}

func (c *cluster) removePod(logger klog.Logger, pod *v1.Pod) {
	n := c.nodes[pod.Spec.NodeName]
	if n == nil {
		return
	}
	kind := c.kindOn(n, pod)
	if err := n.info.RemovePod(logger, pod); err != nil {
		logger.Error(err, "A pod was not where it was added", "pod", klog.KObj(pod))
		return
	}
	c.pods--
	if n.position >= 0 {
		c.index.RemovePod(n.slot, kind)
		c.countClaims(pod, -1)
		c.mark(n)
	} else if len(n.info.Pods) == 0 {
		c.drop(pod.Spec.NodeName, n)
	}
}

// kindOn is the kind that a pod was added to a node with.
func (c *cluster) kindOn(n *node, pod *v1.Pod) index.KindID {
	for _, info := range n.info.Pods {
		if info.GetPod().UID == pod.UID {
			return c.names.kind(info)
		}
	}
	return -1
}

// countClaims notes which claims are in use, for plugins that ask.
func (c *cluster) countClaims(pod *v1.Pod, by int) {
	claims := *c.snapshot.claims
	for key := range framework.PodPVCKeys(pod) {
		if claims[key] += by; claims[key] <= 0 {
			delete(claims, key)
		}
	}
}

// inUse says whether pods use what another claims.
func (c *cluster) inUse(pod *v1.Pod) bool {
	for key := range framework.PodPVCKeys(pod) {
		if (*c.snapshot.claims)[key] > 0 {
			return true
		}
	}
	return false
}

// node returns what is known under a name, be there such a node or not.
func (c *cluster) node(name string) *node {
	n := c.nodes[name]
	if n != nil {
		return n
	}
	n = &node{info: framework.NewNodeInfo(), position: -1}
	if last := len(c.free) - 1; last >= 0 {
		n.slot, c.free = c.free[last], c.free[:last]
		c.bySlot[n.slot] = n
	} else {
		n.slot = index.Slot(len(c.bySlot))
		c.bySlot = append(c.bySlot, n)
	}
	c.nodes[name] = n
	return n
}

// present is the node with a name, or nil if there is none.
func (c *cluster) present(name string) *node {
	if n := c.nodes[name]; n != nil && n.position >= 0 {
		return n
	}
	return nil
}

func (c *cluster) drop(name string, n *node) {
	delete(c.nodes, name)
	c.bySlot[n.slot] = nil
	c.free = append(c.free, n.slot)
}

func (c *cluster) mark(n *node) {
	if !n.dirty {
		n.dirty = true
		c.dirty = append(c.dirty, n)
	}
}

func (c *cluster) setNode(object *v1.Node) {
	n := c.node(object.Name)
	before := n.info.Node()
	if before != nil && sameForScheduling(before, object) {
		// A heartbeat; plugins still see the newest object.
		n.info.SetNode(object)
		return
	}
	c.setHost(n, object)
	c.setImages(n, before, object)
	n.info.SetNode(object)
	n.shape = c.names.shape(n.info)
	if before == nil {
		c.appear(n)
	}
	c.mark(n)
}

// refer makes the labels with some keys part of what nodes are like. Nodes that were
// alike may then differ; those without the labels stay as they are.
func (c *cluster) refer(keys []string) {
	added := c.names.refer(keys)
	if len(added) == 0 {
		return
	}
	for _, n := range c.nodes {
		node := n.info.Node()
		if node != nil && slices.ContainsFunc(added, func(key string) bool { _, labelled := node.Labels[key]; return labelled }) {
			n.shape = c.names.shape(n.info)
			c.index.Place(n.slot, c.names.state(n))
		}
	}
}

// renew makes the index anew.
func (c *cluster) renew() {
	c.index = index.New()
	for _, n := range c.nodes {
		if n.position >= 0 {
			n.shape = c.names.shape(n.info)
			c.enter(n)
		}
	}
}

// enter puts a node into the index, with the pods on it.
func (c *cluster) enter(n *node) {
	c.index.Place(n.slot, c.names.state(n))
	for _, pod := range n.info.Pods {
		c.index.AddPod(n.slot, c.names.kind(pod))
	}
}

// appear puts a node into the snapshot and the index, with the pods on it.
func (c *cluster) appear(n *node) {
	n.position = len(*c.snapshot.list)
	*c.snapshot.list = append(*c.snapshot.list, n.info)
	(*c.snapshot.nodes)[n.info.Node().Name] = n.info
	c.enter(n)
	for _, pod := range n.info.Pods {
		c.countClaims(pod.GetPod(), 1)
	}
}

func (c *cluster) removeNode(name string) {
	n := c.nodes[name]
	if n == nil || n.position < 0 {
		return
	}
	before := n.info.Node()
	c.setHost(n, nil)
	c.setImages(n, before, nil)
	for _, pod := range n.info.Pods {
		c.countClaims(pod.GetPod(), -1)
	}
	list := *c.snapshot.list
	last := len(list) - 1
	moved := list[last].(*framework.NodeInfo)
	list[n.position] = moved
	c.nodes[moved.Node().Name].position = n.position
	list[last] = nil
	*c.snapshot.list = list[:last]
	delete(*c.snapshot.nodes, name)
	n.position = -1
	n.info.RemoveNode()
	c.snapshot.refresh(n.info)
	c.index.Remove(n.slot)
	if len(n.info.Pods) == 0 {
		c.drop(name, n)
	}
}

// setHost follows the hostname label of a node.
func (c *cluster) setHost(n *node, object *v1.Node) {
	if n.host != "" {
		if c.hosts[n.host]--; c.hosts[n.host] == 1 {
			c.shared--
		} else if c.hosts[n.host] == 0 {
			delete(c.hosts, n.host)
		}
	}
	n.host = ""
	if object != nil {
		n.host = object.Labels[v1.LabelHostname]
	}
	if n.host != "" {
		if c.hosts[n.host]++; c.hosts[n.host] == 2 {
			c.shared++
		}
	}
}

// setImages follows the images on a node.
func (c *cluster) setImages(n *node, before, after *v1.Node) {
	if before != nil {
		for _, found := range before.Status.Images {
			for _, name := range found.Names {
				if shared := c.images[name]; shared != nil {
					if shared.NumNodes--; shared.NumNodes <= 0 {
						delete(c.images, name)
					}
				}
			}
		}
	}
	if after == nil {
		return
	}
	states := make(map[string]*fwk.ImageStateSummary, len(after.Status.Images))
	for _, found := range after.Status.Images {
		for _, name := range found.Names {
			shared := c.images[name]
			if shared == nil {
				shared = &fwk.ImageStateSummary{Size: found.SizeBytes}
				c.images[name] = shared
			}
			shared.NumNodes++
			states[name] = shared
		}
	}
	n.info.ImageStates = states
}

// copyOf copies what is known of a node.
func (c *cluster) copyOf(name string) *framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.nodes[name]; n != nil {
		return n.info.SnapshotConcrete()
	}
	return nil
}

func (c *cluster) copies() map[string]*framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[string]*framework.NodeInfo, len(c.nodes))
	for name, n := range c.nodes {
		all[name] = n.info.SnapshotConcrete()
	}
	return all
}
