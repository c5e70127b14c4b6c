// Package holder keeps the nodes that a replica owns and the pods on them. It reserves capacity for
// pods that the leader has placed, and answers queries.
package holder

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Holder keeps the nodes that a replica owns, and the pods on them.
type Holder struct {
	mu       sync.Mutex
	logger   klog.Logger
	ranker   *rank.Ranker
	cache    *cache.Cache
	snapshot *schedcache.Snapshot
	// pods are the bound pods on the holder's nodes, in the versions that replicas have last sent.
	pods map[types.UID]refresh.Object
	// reservations are the reservations on the holder's nodes, by the pod's UID.
	reservations map[types.UID]*reservation
	// nominated are the nominations of pods in the leader's queue to the holder's nodes.
	nominated map[types.UID]nomination
	// tick is the number of lists that have started. lists are those that have not ended.
	tick  int64
	lists refresh.Lists
	// antiAffinityPods is the number of bound and reserved pods with anti-affinity beyond their node.
	antiAffinityPods int
	// expired is the number of reservations that have expired.
	expired int64
	// reservationsSeen is the number of reservations that each replica has sent on its current
	// connection. reservationArrived is signaled when it changes.
	reservationsSeen   map[string]uint64
	reservationArrived *sync.Cond
}

// New returns a holder. Its nodes are those of the ranker and its cache.
func New(logger klog.Logger, r *rank.Ranker, c *cache.Cache) *Holder {
	h := &Holder{
		logger: logger, ranker: r, cache: c, nominated: map[types.UID]nomination{}, snapshot: r.Cluster.Snapshot.Upstream,
		pods: map[types.UID]refresh.Object{}, reservations: map[types.UID]*reservation{}, lists: refresh.Lists{}, reservationsSeen: map[string]uint64{},
	}
	h.reservationArrived = sync.NewCond(&h.mu)
	return h
}

// Answer answers a query for the holder's nodes. It first waits until all reservations have arrived that
// the leader sent before the query.
func (h *Holder) Answer(ctx context.Context, from string, q *wire.Request, self string) (*wire.Answer, error) {
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.reservationArrived.Broadcast()
	})
	defer stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.reservationsSeen[from] < q.Reservations[self] && ctx.Err() == nil {
		h.reservationArrived.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer h.without(q.Query.Reserved)()
	return h.withSnapshot(func() (*wire.Answer, error) { return h.ranker.Answer(ctx, q.Query) })
}

// withSnapshot runs a scheduling cycle: it applies all queued changes and calls f. No change is applied
// until f returns.
func (h *Holder) withSnapshot(f func() (*wire.Answer, error)) (*wire.Answer, error) {
	if err := h.cache.UpdateSnapshot(h.logger, h.snapshot); err != nil {
		return nil, err
	}
	defer h.cache.EndCycle(h.logger)
	return f()
}

// Exclusively calls f while no query reads the nodes and no change is applied to them.
func (h *Holder) Exclusively(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.withSnapshot(func() (*wire.Answer, error) { f(); return nil, nil }); err != nil {
		panic(err)
	}
}

// ChangeNode applies a change of one of the holder's nodes. before is nil for a new node, and after for a
// deleted one.
func (h *Holder) ChangeNode(before, after *v1.Node) {
	switch {
	case after == nil:
		if err := h.cache.RemoveNode(h.logger, before); err != nil {
			h.logger.V(2).Info("Node to remove is unknown", "node", klog.KObj(before), "err", err)
		}
	case before == nil:
		h.cache.AddNode(h.logger, after)
	default:
		h.cache.UpdateNode(h.logger, before, after)
	}
}

// NodeInfo returns a copy of a node and its pods.
func (h *Holder) NodeInfo(name string) (*framework.NodeInfo, error) { return h.cache.GetNode(name) }

// Connected handles a new connection from a replica, which sends its whole state again on it.
func (h *Holder) Connected(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reservationsSeen[from] = 0
	h.forgetNominated(func(n nomination) bool { return n.from == from })
	delete(h.lists, from)
}

// BeginList handles the start of a replica's list of pods. It returns an error if the replica has too many open ones.
func (h *Holder) BeginList(from string, id int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tick++
	return h.lists.Begin(from, id, h.tick)
}

// EndList handles the end of a replica's list of pods. It removes the pods in the given hash slots that
// were not in the list. If a pod is newer than the list (see [wire.Refresh.Version]), it keeps the
// capacity of the pod: the former watcher of the hash slot has sent the pod, and the replica that sent the
// list has not received the bind yet. It returns the removed pods.
func (h *Holder) EndList(from string, id int64, slots []int, version string) (removed []*v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists.End(from, id, slots, h.pods, func(pod *v1.Pod) {
		if refresh.IsNewer(pod.ResourceVersion, version) {
			h.reserveBound(pod)
		} else {
			h.remove(pod.UID)
			removed = append(removed, pod)
		}
	})
	return removed
}

// SetPod stores the current version of a pod on one of the holder's nodes. If the pod is new, it replaces
// the pod's reservation. It returns the version that counted on the node before, bound or reserved, which is nil if
// none did, and whether plugins may treat the new version differently.
//
// It does nothing if trusted returns false, and removes the pod if owned does. Both are called while nothing else changes
// the pods, and so is the function that [Holder.DropNodes] gets: after DropNodes no earlier answer has an effect.
func (h *Holder) SetPod(pod *v1.Pod, trusted, owned func() bool) (before *v1.Pod, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !trusted() {
		return nil, false
	}
	if !owned() {
		h.removePod(pod.UID)
		return nil, false
	}
	known, ok := h.pods[pod.UID]
	before = known.Pod
	if ok && refresh.IsNewer(before.ResourceVersion, pod.ResourceVersion) {
		// Two replicas watched the pod one after the other, and the second has an older version.
		h.pods[pod.UID] = refresh.Object{Pod: before, Tick: h.tick}
		return before, false
	}
	h.pods[pod.UID] = refresh.Object{Pod: pod, Tick: h.tick}
	var err error
	switch {
	case !ok:
		if r := h.reservations[pod.UID]; r != nil {
			delete(h.reservations, pod.UID)
			h.countAntiAffinity(r.pod, -1)
			if r.pod.Spec.NodeName == pod.Spec.NodeName {
				before = r.pod
			}
		}
		h.countAntiAffinity(pod, 1)
		err = h.cache.AddPod(h.logger, pod)
	case before.ResourceVersion != pod.ResourceVersion:
		err = h.cache.UpdatePod(h.logger, before, pod)
	}
	if err != nil {
		h.logger.Error(err, "Adding a pod failed", "pod", klog.KObj(pod))
	}
	return before, before == nil || !cache.SameOnNode(before, pod)
}

// RemovePod removes a bound pod, and returns it; nil if the holder does not have it, or trusted returns false. A
// reservation that a leader requested remains.
func (h *Holder) RemovePod(uid types.UID, trusted func() bool) *v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !trusted() {
		return nil
	}
	return h.removePod(uid)
}

// removePod is [Holder.RemovePod] for a caller that holds the lock.
func (h *Holder) removePod(uid types.UID) *v1.Pod {
	before := h.pods[uid].Pod
	h.remove(uid)
	if r := h.reservations[uid]; r != nil && r.bound {
		before = r.pod
		h.unreserve(uid)
	}
	return before
}

func (h *Holder) remove(uid types.UID) {
	if known, ok := h.pods[uid]; ok {
		delete(h.pods, uid)
		h.countAntiAffinity(known.Pod, -1)
		if err := h.cache.RemovePod(h.logger, known.Pod); err != nil {
			h.logger.Error(err, "Removing a pod failed", "pod", klog.KObj(known.Pod))
		}
	}
}

// DropNodes removes the given nodes, which other replicas own now. It also removes all pods and
// reservations on nodes for which owned returns false.
func (h *Holder) DropNodes(nodes []*v1.Node, owned func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, known := range h.pods {
		if !owned(known.Pod.Spec.NodeName) {
			h.remove(uid)
		}
	}
	for uid, r := range h.reservations {
		if !owned(r.pod.Spec.NodeName) {
			h.unreserve(uid)
		}
	}
	for _, node := range nodes {
		if err := h.cache.RemoveNode(h.logger, node); err != nil {
			h.logger.V(2).Info("Node to remove is unknown", "node", klog.KObj(node), "err", err)
		}
	}
}

// Clear removes all bound pods and the given nodes. Reservations remain.
func (h *Holder) Clear(nodes []*v1.Node) {
	h.DropNodes(nodes, func(string) bool { return true })
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.pods {
		h.remove(uid)
	}
}

// Counts are the numbers of objects that a holder has.
type Counts struct {
	// Nodes, Pods and Reservations are the current numbers. Pods are bound pods.
	Nodes, Pods, Reservations int
	// Nominations is the number of nominations by the leader to the holder's nodes.
	Nominations int
	// Expired is the number of reservations that have expired since the start.
	Expired int64
	// AntiAffinityBeyondNode is true if a bound or reserved pod has anti-affinity beyond its node.
	AntiAffinityBeyondNode bool
}

// Counts returns the numbers of objects that the holder has.
func (h *Holder) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Counts{
		Nodes: h.cache.NodeCount(), Pods: len(h.pods), Reservations: len(h.reservations), Nominations: len(h.nominated),
		Expired: h.expired, AntiAffinityBeyondNode: h.antiAffinityPods > 0,
	}
}
