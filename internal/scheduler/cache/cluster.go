package cache

import (
	"iter"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// Cluster has the nodes and the pods on them, in the form that plugins read and in the index. It stores each
// object once.
//
// Only [Cluster.Apply] and the scheduling cycle change it. They do not run at the same time, so the
// scheduling cycle reads without the lock. The lock is for other readers.
type Cluster struct {
	mu sync.RWMutex
	// Nodes are all nodes by name, including deleted nodes that still have pods.
	Nodes map[string]*Node
	// ByID are the nodes by their number in the index; nil for unused numbers.
	ByID []*Node
	// free are the unused numbers of nodes.
	free     []index.NodeID
	Snapshot *Snapshot
	Index    *index.Index
	// Images are the images on all nodes, by name. The NodeInfo of each node points to them.
	Images map[string]*fwk.ImageStateSummary
	Names  Names
	// labelled has the nodes with each label that is not part of shapes.
	labelled labelledNodes
	// hosts has the number of nodes for each value of the hostname label. SharedHosts is the number
	// of values that more than one node has.
	hosts       map[string]int
	SharedHosts int
	// dirty are the nodes whose state in the index is outdated.
	dirty []*Node
	// Pods is the number of pods on all nodes. For SpareNames and ReturnCycles, see spareNames and returnCycles.
	Pods, SpareNames, ReturnCycles int
	// returned bounds the number of names that come back after the index was rebuilt.
	returned returnedNames
	// RemoteNodes is the number of nodes that other replicas own.
	RemoteNodes int
	// lastRanked is the pod for which the ranker last searched a node.
	lastRanked ranked
	volumes    volumeUse
	// valueCounts are the numbers of values of the labels for which [Cluster.IsPerNode] was called.
	valueCounts map[string]valueCount
	// FewValues is a number of values of a label that is always small enough to be part of node shapes.
	FewValues int
	// readByPlugin is true if a plugin call that has timed out may still read nodes.
	readByPlugin atomic.Bool
}

// ranked is a pod and the pod info that was computed for its class.
type ranked struct {
	uid  types.UID
	info *framework.PodInfo
}

// NoteRanked stores the pod info that the ranker computed for a pod, so that it need not be computed again
// when the pod is assumed.
func (c *Cluster) NoteRanked(uid types.UID, info *framework.PodInfo) {
	c.lastRanked = ranked{uid, info}
}

// ForgetRanked discards the pod info that [Cluster.NoteRanked] stored.
func (c *Cluster) ForgetRanked() { c.lastRanked = ranked{} }

// Node is a node, or the pods on a node that does not exist.
type Node struct {
	Info *framework.NodeInfo
	// ID is the number of the node in the index.
	ID index.NodeID
	// Position is the index in the snapshot's list; -1 if the node does not exist.
	Position int
	Shape    index.ShapeID
	// host is the hostname label.
	host string
	// dirty is true if the node is in Cluster.dirty.
	dirty bool
	// OtherVolumes is the number of pods on the node with generic ephemeral or in-tree inline volumes. NodeVolumeLimits may
	// count these, and PVCRefCounts does not contain them.
	OtherVolumes int
}

// NewCluster returns a cluster without nodes that fills a snapshot of kube-scheduler.
func NewCluster(whole *schedcache.Snapshot) (*Cluster, error) {
	fields, err := newSnapshot(whole)
	if err != nil {
		return nil, err
	}
	return clusterIn(fields), nil
}

// WithoutNodes returns a cluster without nodes that shares the snapshot.
func (c *Cluster) WithoutNodes() *Cluster { return clusterIn(c.Snapshot) }

// PluginTimedOut reports that a plugin call has timed out and may still read nodes. The next
// [Cluster.Apply] replaces the nodes by copies before it changes them.
func (c *Cluster) PluginTimedOut() { c.readByPlugin.Store(true) }

// clusterIn returns a cluster without nodes that fills a snapshot.
func clusterIn(snapshot *Snapshot) *Cluster {
	return &Cluster{
		Nodes:    map[string]*Node{},
		Snapshot: snapshot,
		Index:    index.New(),
		Images:   map[string]*fwk.ImageStateSummary{},
		Names:    newNames(usualLabels...),
		hosts:    map[string]int{},
		labelled: labelledNodes{}, valueCounts: map[string]valueCount{},

		SpareNames: spareNames, ReturnCycles: returnCycles, FewValues: fewValues,
	}
}

// Size returns the number of nodes, including those that other replicas own.
func (c *Cluster) Size() int { return c.Index.Len() + c.RemoteNodes }

// Apply applies operations to the nodes and updates the snapshot and the index.
func (c *Cluster) Apply(logger klog.Logger, operations []operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readByPlugin.Swap(false) {
		c.replaceByCopies()
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
	c.markVolumes()
	for _, n := range c.dirty {
		n.dirty = false
		if n.Position >= 0 {
			c.Index.Place(n.ID, c.Names.State(n))
			c.Snapshot.refresh(n.Info)
		}
	}
	clear(c.dirty)
	c.dirty = c.dirty[:0]
	if c.returned.exceeded(c.Names.len(), 2*(len(c.Nodes)+c.RemoteNodes+c.Pods)+c.SpareNames, c.ReturnCycles) {
		// The new index has no classes. They add the labels again to which they refer.
		room := c.Names.room
		c.Names = newNames(usualLabels...)
		c.Names.room = room
		c.labelled = labelledNodes{}
		c.rebuildIndex()
	}
}

// changePod replaces one version of a pod by another. before is nil for a new pod, and after for a removed
// one.
func (c *Cluster) changePod(logger klog.Logger, before, after *v1.Pod) {
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

// replacePod replaces a pod by another version in place. It returns false if the versions differ in more than
// [SameOnNode] allows. Most updates do not: confirmed binds and changes of the phase.
func (c *Cluster) replacePod(before, after *v1.Pod) bool {
	n := c.Nodes[before.Spec.NodeName]
	if n == nil || !SameOnNode(before, after) {
		return false
	}
	for _, pods := range [][]fwk.PodInfo{n.Info.Pods, n.Info.PodsWithAffinity, n.Info.PodsWithRequiredAntiAffinity, n.Info.PodsWithRequiredNonHostScopedAntiAffinity} {
		for i, found := range pods {
			if found.GetPod().UID == before.UID {
				pods[i] = WithPod(found.(*framework.PodInfo), after)
			}
		}
	}
	return true
}

// WithPod returns a copy of a pod info for another version of the pod.
func WithPod(info *framework.PodInfo, pod *v1.Pod) *framework.PodInfo {
	changed := *info
	changed.Pod = pod
	return &changed
}

func (c *Cluster) addPod(pod *v1.Pod) {
	n := c.getOrCreate(pod.Spec.NodeName)
	info := c.podInfo(pod)
	n.Info.AddPodInfo(info)
	c.countVolumes(n, pod, 1)
	c.Pods++
	if n.Position >= 0 {
		c.addToKind(n, info)
		c.CountClaims(framework.PodPVCKeys(pod), 1)
	}
	c.markDirty(n)
}

// podInfo computes the pod info of a pod, or reuses the one that [Cluster.NoteRanked] stored.
func (c *Cluster) podInfo(pod *v1.Pod) *framework.PodInfo {
	if c.lastRanked.uid == pod.UID && sameUsage(c.lastRanked.info.Pod, pod) {
		return WithPod(c.lastRanked.info, pod)
	}
	// Upstream ignores the error of malformed terms, too.
	info, _ := framework.NewPodInfo(pod)
	return info
}

func (c *Cluster) removePod(logger klog.Logger, pod *v1.Pod) {
	n := c.Nodes[pod.Spec.NodeName]
	if n == nil {
		return
	}
	kind := c.kindOn(n, pod)
	if err := n.Info.RemovePod(logger, pod); err != nil {
		logger.Error(err, "Pod is not on the node that it was added to", "pod", klog.KObj(pod))
		return
	}
	c.Pods--
	c.countVolumes(n, pod, -1)
	keepPorts(n.Info, pod)
	if n.Position >= 0 {
		c.Index.RemovePod(n.ID, kind)
		c.Names.count(kind, -1)
		c.CountClaims(framework.PodPVCKeys(pod), -1)
		c.markDirty(n)
	} else if len(n.Info.Pods) == 0 {
		c.dropNode(pod.Spec.NodeName, n)
	}
}

// keepPorts adds the host ports of the pods on a node again after a pod was removed that uses some. Upstream's NodeInfo has a
// set of ports: a port of two pods is free as soon as one of them is removed. Two such pods count on a node for a short time
// if an owner keeps the room of a pod that it does not know to be gone, or if pods were put there without a scheduler.
func keepPorts(info *framework.NodeInfo, removed *v1.Pod) {
	if len(schedutil.GetHostPorts(removed)) == 0 {
		return
	}
	for _, pod := range info.Pods {
		for _, port := range schedutil.GetHostPorts(pod.GetPod()) {
			info.UsedPorts.Add(port.HostIP, string(port.Protocol), port.HostPort)
		}
	}
}

// kindOn returns the kind with which a pod was added to a node; -1 if the pod is not on the node.
func (c *Cluster) kindOn(n *Node, pod *v1.Pod) index.KindID {
	for _, info := range n.Info.Pods {
		if info.GetPod().UID == pod.UID {
			return c.Names.Kind(info)
		}
	}
	return -1
}

// CountClaims adds to the numbers of pods that use volume claims, given as namespace/name. Plugins read these
// numbers.
func (c *Cluster) CountClaims(keys iter.Seq[string], by int) {
	claims := *c.Snapshot.claims
	for key := range keys {
		if claims[key] += by; claims[key] <= 0 {
			delete(claims, key)
		}
	}
}

// ClaimsInUse returns those volume claims of a pod that a pod on a node uses, sorted, as namespace/name.
func (c *Cluster) ClaimsInUse(pod *v1.Pod) []string {
	used := sets.Set[string]{}
	for key := range framework.PodPVCKeys(pod) {
		if (*c.Snapshot.claims)[key] > 0 {
			used.Insert(key)
		}
	}
	return sets.List(used)
}

// UsesClaim returns whether a pod on a node uses a volume claim.
func (c *Cluster) UsesClaim(namespace, name string) bool {
	return (*c.Snapshot.claims)[framework.GetNamespacedName(namespace, name)] > 0
}

// getOrCreate returns the node with a name. If there is none, it creates one without a node object.
func (c *Cluster) getOrCreate(name string) *Node {
	n := c.Nodes[name]
	if n != nil {
		return n
	}
	n = &Node{Info: framework.NewNodeInfo(), Position: -1}
	if last := len(c.free) - 1; last >= 0 {
		n.ID, c.free = c.free[last], c.free[:last]
		c.ByID[n.ID] = n
	} else {
		n.ID = index.NodeID(len(c.ByID))
		c.ByID = append(c.ByID, n)
	}
	c.Nodes[name] = n
	return n
}

// Lookup returns the node with a name, or nil if it does not exist.
func (c *Cluster) Lookup(name string) *Node {
	if n := c.Nodes[name]; n != nil && n.Position >= 0 {
		return n
	}
	return nil
}

// dropNode removes a node that has neither an object nor pods.
func (c *Cluster) dropNode(name string, n *Node) {
	delete(c.Nodes, name)
	c.ByID[n.ID] = nil
	c.free = append(c.free, n.ID)
}

// markDirty makes Apply update the node's state in the index.
func (c *Cluster) markDirty(n *Node) {
	if !n.dirty {
		n.dirty = true
		c.dirty = append(c.dirty, n)
	}
}

func (c *Cluster) setNode(object *v1.Node) {
	n := c.getOrCreate(object.Name)
	before := n.Info.Node()
	if before != nil && sameForScheduling(before, object) {
		// The index needs no update, for example after a heartbeat. Plugins get the newest object.
		n.Info.SetNode(object)
		return
	}
	c.setHost(n, object)
	c.setImages(n, object)
	c.noteLabels(n.ID, before, object)
	n.Info.SetNode(object)
	n.Shape = c.Names.shape(n.Info)
	if before == nil {
		c.insert(n)
	}
	c.markDirty(n)
}

// rebuildIndex builds a new index from all nodes.
func (c *Cluster) rebuildIndex() {
	c.Index = index.New()
	for _, n := range c.Nodes {
		if n.Position >= 0 {
			c.noteLabels(n.ID, nil, n.Info.Node())
			n.Shape = c.Names.shape(n.Info)
			c.addToIndex(n)
		}
	}
}

// addToIndex puts a node and its pods into the index.
func (c *Cluster) addToIndex(n *Node) {
	c.Index.Place(n.ID, c.Names.State(n))
	for _, pod := range n.Info.Pods {
		c.addToKind(n, pod)
	}
}

// addToKind counts a pod on a node as one of its kind.
func (c *Cluster) addToKind(n *Node, pod fwk.PodInfo) {
	kind := c.Names.Kind(pod)
	c.Index.AddPod(n.ID, kind)
	c.Names.count(kind, 1)
}

// insert puts a node and its pods into the snapshot and the index.
func (c *Cluster) insert(n *Node) {
	n.Position = len(*c.Snapshot.list)
	*c.Snapshot.list = append(*c.Snapshot.list, n.Info)
	(*c.Snapshot.nodes)[n.Info.Node().Name] = n.Info
	c.addToIndex(n)
	for _, pod := range n.Info.Pods {
		c.CountClaims(framework.PodPVCKeys(pod.GetPod()), 1)
	}
}

func (c *Cluster) removeNode(name string) {
	n := c.Nodes[name]
	if n == nil || n.Position < 0 {
		return
	}
	c.noteLabels(n.ID, n.Info.Node(), nil)
	c.setHost(n, nil)
	c.setImages(n, nil)
	for _, pod := range n.Info.Pods {
		c.CountClaims(framework.PodPVCKeys(pod.GetPod()), -1)
		c.Names.count(c.Names.Kind(pod), -1)
	}
	list := *c.Snapshot.list
	last := len(list) - 1
	moved := list[last].(*framework.NodeInfo)
	list[n.Position] = moved
	c.Nodes[moved.Node().Name].Position = n.Position
	list[last] = nil
	*c.Snapshot.list = list[:last]
	delete(*c.Snapshot.nodes, name)
	n.Position = -1
	n.Info.RemoveNode()
	c.Snapshot.refresh(n.Info)
	c.Index.Remove(n.ID)
	if len(n.Info.Pods) == 0 {
		c.dropNode(name, n)
	}
}

// CopyNode returns a copy of a node with its pods, or nil if the cluster has no node of that name.
func (c *Cluster) CopyNode(name string) *framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.Nodes[name]; n != nil {
		return n.Info.SnapshotConcrete()
	}
	return nil
}

// copyNodes returns copies of all nodes, by name.
func (c *Cluster) copyNodes() map[string]*framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[string]*framework.NodeInfo, len(c.Nodes))
	for name, n := range c.Nodes {
		all[name] = n.Info.SnapshotConcrete()
	}
	return all
}
