package core

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Pending are the unscheduled pods that replicas have sent to a leader. At most one of them has a name: the queue
// identifies pods by name.
type Pending struct {
	pods   map[types.UID]refresh.Object
	byName map[toolscache.ObjectName]types.UID
	// tick is the number of lists that have started. lists are those that have not ended.
	tick  int64
	lists refresh.Lists
}

// NewPending returns an empty set of pods.
func NewPending() *Pending {
	return &Pending{pods: map[types.UID]refresh.Object{}, byName: map[toolscache.ObjectName]types.UID{}, lists: refresh.Lists{}}
}

// PodChange is a change of a pending pod, for the queue. Before is nil for a new pod. After is nil for a deleted pod, and
// has a node if the pod was bound. If both have the same version, the queue need not know.
type PodChange struct{ Before, After *v1.Pod }

// Connected forgets the lists that a replica has started on its previous connection.
func (p *Pending) Connected(from string) { delete(p.lists, from) }

// BeginList handles the start of a replica's list of pending pods. It returns an error if the replica has too many open
// ones.
func (p *Pending) BeginList(from string, id int64) error {
	p.tick++
	return p.lists.Begin(from, id, p.tick)
}

// EndList handles the end of a replica's list: the pending pods in the given hash slots that were not in the list are no
// longer pending. If neither this leader nor an earlier one has placed such a pod, it was deleted. Otherwise it was either
// bound or deleted: unclear has those for which placed returns true. The caller finds out what became of them, and calls
// [Pending.Remove].
func (p *Pending) EndList(from string, id int64, slots []int, placed func(types.UID) bool) (deleted []PodChange, unclear []*v1.Pod) {
	var missing []*v1.Pod
	p.lists.End(from, id, slots, p.pods, func(pod *v1.Pod) { missing = append(missing, pod) })
	slices.SortFunc(missing, byUID)
	for _, pod := range missing {
		if placed(pod.UID) {
			unclear = append(unclear, pod)
			continue
		}
		change, _ := p.Remove(pod.UID, "")
		deleted = append(deleted, change)
	}
	return deleted, unclear
}

// Has returns whether a pod is pending.
func (p *Pending) Has(uid types.UID) bool { return p.Get(uid) != nil }

// Get returns a pending pod; nil for other pods.
func (p *Pending) Get(uid types.UID) *v1.Pod { return p.pods[uid].Pod }

// Decode returns the pod of a message about a pending pod; nil if the message says that the pod is not pending any more.
func Decode(item *wire.Item) (*v1.Pod, error) {
	if len(item.Object) == 0 {
		return nil, nil
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(item.Object); err != nil {
		return nil, err
	}
	if pod.UID != item.UID {
		return nil, fmt.Errorf("pending pod %v with UID %q in a message about UID %q", klog.KObj(pod), pod.UID, item.UID)
	}
	return pod, nil
}

// Set stores the current version of a pending pod. It ignores the pod if a newer pod with the same name is pending, and
// removes an older one: different replicas may send these two pods in either order.
func (p *Pending) Set(pod *v1.Pod) (changes []PodChange) {
	name := toolscache.MetaObjectToName(pod)
	if other, ok := p.byName[name]; ok && other != pod.UID {
		if refresh.IsNewer(p.pods[other].Pod.ResourceVersion, pod.ResourceVersion) {
			return nil
		}
		change, _ := p.Remove(other, "")
		changes = append(changes, change)
	}
	before := p.pods[pod.UID].Pod
	p.pods[pod.UID], p.byName[name] = refresh.Object{Pod: pod, Tick: p.tick}, pod.UID
	return append(changes, PodChange{before, pod})
}

// Remove removes a pod that is no longer pending: it was bound to a node, or deleted if node is "". It returns false if the
// pod was not pending.
func (p *Pending) Remove(uid types.UID, node string) (PodChange, bool) {
	pod := p.pods[uid].Pod
	if pod == nil {
		return PodChange{}, false
	}
	delete(p.pods, uid)
	if name := toolscache.MetaObjectToName(pod); p.byName[name] == uid {
		delete(p.byName, name)
	}
	if node == "" {
		return PodChange{Before: pod}, true
	}
	bound := *pod
	bound.Spec.NodeName = node
	return PodChange{pod, &bound}, true
}
