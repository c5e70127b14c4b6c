package cache

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// VolumeRoom is a number of volumes of a CSI driver: those that can still be attached to a node, or those that a pod needs.
type VolumeRoom struct {
	Driver  string
	Volumes int
}

// volumeUse tells which nodes have another room for volumes after a change of an object of the storage API.
type volumeUse struct {
	// users are the nodes with pods that use a claim, by namespace/name, once for each use.
	users map[string][]index.NodeID
	// mu guards the fields below: the nodes to recompute, the claims whose nodes are to be recomputed, and whether all are.
	mu            sync.Mutex
	nodes, claims sets.Set[string]
	all           bool
}

// LimitVolumes makes the room for volumes part of node states. room must be safe for concurrent use with changes of the
// objects that it reads; these must be reported.
func (c *Cluster) LimitVolumes(room func(*Node) []VolumeRoom) {
	c.Names.room = room
	c.volumes.nodes, c.volumes.claims, c.volumes.users = sets.New[string](), sets.New[string](), map[string][]index.NodeID{}
}

// NoteVolumesOnNode reports that the room for volumes on a node may have changed. It may be called at any time.
func (c *Cluster) NoteVolumesOnNode(name string) {
	c.volumes.mu.Lock()
	defer c.volumes.mu.Unlock()
	c.volumes.nodes.Insert(name)
}

// NoteClaim reports that a claim, given as namespace/name, or its volume has changed. It may be called at any time.
func (c *Cluster) NoteClaim(key string) {
	c.volumes.mu.Lock()
	defer c.volumes.mu.Unlock()
	c.volumes.claims.Insert(key)
}

// NoteAllVolumes reports that the room for volumes on all nodes may have changed. It may be called at any time.
func (c *Cluster) NoteAllVolumes() {
	c.volumes.mu.Lock()
	defer c.volumes.mu.Unlock()
	c.volumes.all = true
}

// markVolumes marks the nodes whose room for volumes may have changed.
func (c *Cluster) markVolumes() {
	if c.Names.room == nil {
		return
	}
	c.volumes.mu.Lock()
	nodes, claims, all := c.volumes.nodes, c.volumes.claims, c.volumes.all
	if len(nodes)+len(claims) > 0 {
		c.volumes.nodes, c.volumes.claims = sets.New[string](), sets.New[string]()
	}
	c.volumes.all = false
	c.volumes.mu.Unlock()
	for name := range nodes {
		if n := c.Nodes[name]; n != nil {
			c.markDirty(n)
		}
	}
	for claim := range claims {
		for _, id := range c.volumes.users[claim] {
			c.markDirty(c.ByID[id])
		}
	}
	if all {
		for _, n := range c.Nodes {
			c.markDirty(n)
		}
	}
}

// countVolumes updates which nodes use the claims of a pod on a node, after the pod was added or, if by is -1, removed.
func (c *Cluster) countVolumes(n *Node, pod *v1.Pod, by int) {
	if len(pod.Spec.Volumes) == 0 || c.Names.room == nil {
		return
	}
	if countsOtherwise(pod.Spec.Volumes) {
		n.OtherVolumes += by
	}
	for claim := range framework.PodPVCKeys(pod) {
		c.countUser(claim, n.ID, by)
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.Ephemeral != nil {
			c.countUser(framework.GetNamespacedName(pod.Namespace, pod.Name+"-"+volume.Name), n.ID, by)
		}
	}
}

// countUser adds a node to the users of a claim, or removes it once if by is -1.
func (c *Cluster) countUser(claim string, id index.NodeID, by int) {
	users := c.volumes.users[claim]
	if by > 0 {
		c.volumes.users[claim] = append(users, id)
		return
	}
	if i := slices.Index(users, id); i >= 0 {
		users = slices.Delete(users, i, i+1)
	}
	if len(users) == 0 {
		delete(c.volumes.users, claim)
	} else {
		c.volumes.users[claim] = users
	}
}

// InTree knows the volumes of Kubernetes' own plugins, which CSI drivers may handle on some nodes.
var InTree = csitranslation.New()

// countsOtherwise returns whether one of the volumes of a pod may be counted although it has no claim with a name: it is a
// generic ephemeral volume, or an inline volume that a CSI driver may handle.
func countsOtherwise(volumes []v1.Volume) bool {
	for i := range volumes {
		volume := &volumes[i]
		// Most volumes are of these types.
		usual := volume.Projected != nil || volume.ConfigMap != nil || volume.Secret != nil || volume.EmptyDir != nil || volume.PersistentVolumeClaim != nil
		if volume.Ephemeral != nil || !usual && InTree.IsInlineMigratable(volume) {
			return true
		}
	}
	return false
}
