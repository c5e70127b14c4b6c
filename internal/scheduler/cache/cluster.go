package cache

import (
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// cluster is the nodes and the pods on them, as the scheduling cycle sees them:
// once, in the form that plugins read, and indexed.
//
// Only the scheduling cycle writes, under the lock; it reads without.
type Cluster struct {
	mu       sync.RWMutex
	Nodes    map[string]*Node
	ByID     []*Node
	free     []index.Slot
	Snapshot *Snapshot
	Index    *index.Index
	// images are shared by the infos of all nodes that have them.
	Images map[string]*fwk.ImageStateSummary
	Names  Names
	// hosts counts the nodes for each value of the hostname label, and shared those
	// values that more than one node has.
	hosts       map[string]int
	SharedHosts int
	dirty       []*Node
	// pods on all nodes, and names that may be out of use before all are given anew.
	Pods, SpareNames int
	// elsewhere are nodes that other indexes have.
	RemoteNodes int
	// ranked is the pod that a node was last found for.
	lastRanked ranked
	// watched says that a plugin was left behind that may still read all this.
	readByPlugin atomic.Bool
}

// ranked is a pod, and what was computed for its class.
type ranked struct {
	uid  types.UID
	info *framework.PodInfo
}

// noteRanked keeps what was computed for the class of the pod that a node was last found for.
func (c *Cluster) NoteRanked(uid types.UID, info *framework.PodInfo) {
	c.lastRanked = ranked{uid, info}
}

// forgetRanked forgets it.
func (c *Cluster) ForgetRanked() { c.lastRanked = ranked{} }

// node is a machine, or pods on one that is not there.
type Node struct {
	Info *framework.NodeInfo
	ID   index.Slot
	// position in the snapshot's list, or -1 while there is no such node.
	Position int
	Shape    index.ShapeID
	host     string
	dirty    bool
}

// Names out of use that are not worth making everything anew.
const spareNames = 100_000

// newCluster makes a cluster without nodes that fills a snapshot of kube-scheduler.
func NewCluster(whole *schedcache.Snapshot) (*Cluster, error) {
	fields, err := newSnapshot(whole)
	if err != nil {
		return nil, err
	}
	return clusterIn(fields), nil
}

// withoutNodes returns a cluster that has no nodes and shares the snapshot.
func (c *Cluster) WithoutNodes() *Cluster { return clusterIn(c.Snapshot) }

// outlivedByPlugin notes that a call of a plugin was left behind, which may read nodes at any
// time. The cluster continues with copies of them.
func (c *Cluster) OutlivedByPlugin() { c.readByPlugin.Store(true) }

func clusterIn(snapshot *Snapshot) *Cluster {
	return &Cluster{
		Nodes:    map[string]*Node{},
		Snapshot: snapshot,
		Index:    index.New(),
		Images:   map[string]*fwk.ImageStateSummary{},
		Names:    newNames(usualLabels...),
		hosts:    map[string]int{},

		SpareNames: spareNames,
	}
}

// size is the number of nodes.
func (c *Cluster) Size() int { return c.Index.Len() + c.RemoteNodes }

// apply carries out what has happened, and brings the index up to date.
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
	for _, n := range c.dirty {
		n.dirty = false
		if n.Position >= 0 {
			c.Index.Place(n.ID, c.Names.State(n))
			c.Snapshot.refresh(n.Info)
		}
	}
	clear(c.dirty)
	c.dirty = c.dirty[:0]
	if c.Names.len() > 2*(len(c.Nodes)+c.Pods)+c.SpareNames {
		c.Names = newNames(c.Names.labels...)
		c.rebuildIndex()
	}
}

// changePod takes one version of a pod away and puts another in its place; either
// may be missing.
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

// replacePod puts a new version of a pod in the place of one that differs in
// nothing that nodes or other pods could notice, as most do: binds that are
// confirmed, and phases. It returns false if that is not so.
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

// withPod is what was computed for one version of a pod, for another.
func WithPod(info *framework.PodInfo, pod *v1.Pod) *framework.PodInfo {
	changed := *info
	changed.Pod = pod
	return &changed
}

func (c *Cluster) addPod(pod *v1.Pod) {
	n := c.ensure(pod.Spec.NodeName)
	info := c.podInfo(pod)
	n.Info.AddPodInfo(info)
	c.Pods++
	if n.Position >= 0 {
		c.Index.AddPod(n.ID, c.Names.Kind(info))
		c.CountClaims(pod, 1)
	}
	c.markDirty(n)
}

// podInfo computes what plugins want to know of a pod, unless that was done for its
// class when a node was looked for.
func (c *Cluster) podInfo(pod *v1.Pod) *framework.PodInfo {
	if c.lastRanked.uid == pod.UID && sameUsage(c.lastRanked.info.Pod, pod) {
		return WithPod(c.lastRanked.info, pod)
	}
	// As upstream: what the API server let through of a malformed term is ignored.
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
		logger.Error(err, "A pod was not where it was added", "pod", klog.KObj(pod))
		return
	}
	c.Pods--
	if n.Position >= 0 {
		c.Index.RemovePod(n.ID, kind)
		c.CountClaims(pod, -1)
		c.markDirty(n)
	} else if len(n.Info.Pods) == 0 {
		c.forget(pod.Spec.NodeName, n)
	}
}

// kindOn is the kind that a pod was added to a node with.
func (c *Cluster) kindOn(n *Node, pod *v1.Pod) index.KindID {
	for _, info := range n.Info.Pods {
		if info.GetPod().UID == pod.UID {
			return c.Names.Kind(info)
		}
	}
	return -1
}

// countClaims notes which claims are in use, for plugins that ask.
func (c *Cluster) CountClaims(pod *v1.Pod, by int) {
	claims := *c.Snapshot.claims
	for key := range framework.PodPVCKeys(pod) {
		if claims[key] += by; claims[key] <= 0 {
			delete(claims, key)
		}
	}
}

// inUse says whether pods use what another claims.
func (c *Cluster) ClaimsInUse(pod *v1.Pod) bool {
	for key := range framework.PodPVCKeys(pod) {
		if (*c.Snapshot.claims)[key] > 0 {
			return true
		}
	}
	return false
}

// node returns what is known under a name, be there such a node or not.
func (c *Cluster) ensure(name string) *Node {
	n := c.Nodes[name]
	if n != nil {
		return n
	}
	n = &Node{Info: framework.NewNodeInfo(), Position: -1}
	if last := len(c.free) - 1; last >= 0 {
		n.ID, c.free = c.free[last], c.free[:last]
		c.ByID[n.ID] = n
	} else {
		n.ID = index.Slot(len(c.ByID))
		c.ByID = append(c.ByID, n)
	}
	c.Nodes[name] = n
	return n
}

// present is the node with a name, or nil if there is none.
func (c *Cluster) Lookup(name string) *Node {
	if n := c.Nodes[name]; n != nil && n.Position >= 0 {
		return n
	}
	return nil
}

func (c *Cluster) forget(name string, n *Node) {
	delete(c.Nodes, name)
	c.ByID[n.ID] = nil
	c.free = append(c.free, n.ID)
}

func (c *Cluster) markDirty(n *Node) {
	if !n.dirty {
		n.dirty = true
		c.dirty = append(c.dirty, n)
	}
}

func (c *Cluster) setNode(object *v1.Node) {
	n := c.ensure(object.Name)
	before := n.Info.Node()
	if before != nil && sameForScheduling(before, object) {
		// A heartbeat; plugins still see the newest object.
		n.Info.SetNode(object)
		return
	}
	c.setHost(n, object)
	c.setImages(n, before, object)
	n.Info.SetNode(object)
	n.Shape = c.Names.shape(n.Info)
	if before == nil {
		c.insert(n)
	}
	c.markDirty(n)
}

// refer makes the labels with some keys part of what nodes are like. Nodes that were
// alike may then differ; those without the labels stay as they are.
func (c *Cluster) ReferToLabels(keys []string) {
	added := c.Names.referToLabels(keys)
	if len(added) == 0 {
		return
	}
	for _, n := range c.Nodes {
		node := n.Info.Node()
		if node != nil && slices.ContainsFunc(added, func(key string) bool { _, labelled := node.Labels[key]; return labelled }) {
			n.Shape = c.Names.shape(n.Info)
			c.Index.Place(n.ID, c.Names.State(n))
		}
	}
}

// renew makes the index anew.
func (c *Cluster) rebuildIndex() {
	c.Index = index.New()
	for _, n := range c.Nodes {
		if n.Position >= 0 {
			n.Shape = c.Names.shape(n.Info)
			c.enter(n)
		}
	}
}

// enter puts a node into the index, with the pods on it.
func (c *Cluster) enter(n *Node) {
	c.Index.Place(n.ID, c.Names.State(n))
	for _, pod := range n.Info.Pods {
		c.Index.AddPod(n.ID, c.Names.Kind(pod))
	}
}

// appear puts a node into the snapshot and the index, with the pods on it.
func (c *Cluster) insert(n *Node) {
	n.Position = len(*c.Snapshot.list)
	*c.Snapshot.list = append(*c.Snapshot.list, n.Info)
	(*c.Snapshot.nodes)[n.Info.Node().Name] = n.Info
	c.enter(n)
	for _, pod := range n.Info.Pods {
		c.CountClaims(pod.GetPod(), 1)
	}
}

func (c *Cluster) removeNode(name string) {
	n := c.Nodes[name]
	if n == nil || n.Position < 0 {
		return
	}
	before := n.Info.Node()
	c.setHost(n, nil)
	c.setImages(n, before, nil)
	for _, pod := range n.Info.Pods {
		c.CountClaims(pod.GetPod(), -1)
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
		c.forget(name, n)
	}
}

// copyOf copies what is known of a node.
func (c *Cluster) CopyNode(name string) *framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.Nodes[name]; n != nil {
		return n.Info.SnapshotConcrete()
	}
	return nil
}

func (c *Cluster) copyNodes() map[string]*framework.NodeInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make(map[string]*framework.NodeInfo, len(c.Nodes))
	for name, n := range c.Nodes {
		all[name] = n.Info.SnapshotConcrete()
	}
	return all
}
