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

// holder has the nodes that a replica owns, and the pods on them.
type Holder struct {
	mu       sync.Mutex
	logger   klog.Logger
	ranker   *rank.Ranker
	cache    *cache.Cache
	snapshot *schedcache.Snapshot
	// pods on the nodes here, as replicas have told of them.
	pods map[types.UID]refresh.Object
	// reserved are pods that the leader has placed here, until they are bound.
	reservations map[types.UID]*reservation
	// nominated are the nodes of pods that wait for them, as the leader has told.
	nominated map[types.UID]string
	// tick counts the times when replicas began to tell of pods anew, and begun is when
	// they did.
	tick  int64
	lists refresh.Lists
	// forbidding counts the pods here that forbid others on more than their own node.
	forbidding int
	// freed counts the places that were given to others.
	freed int64
	// seen are the reservations that each leader has told of since it connected.
	reservationsSeen   map[string]uint64
	reservationArrived *sync.Cond
}

func New(logger klog.Logger, r *rank.Ranker, known *cache.Cache) *Holder {
	h := &Holder{
		logger: logger, ranker: r, cache: known, nominated: map[types.UID]string{}, snapshot: r.Cluster.Snapshot.Upstream,
		pods: map[types.UID]refresh.Object{}, reservations: map[types.UID]*reservation{}, lists: refresh.Lists{}, reservationsSeen: map[string]uint64{},
	}
	h.reservationArrived = sync.NewCond(&h.mu)
	return h
}

// answer says what is known of the nodes here.
func (h *Holder) Answer(ctx context.Context, from string, q *wire.Question, self string) (*wire.Answer, error) {
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.reservationArrived.Broadcast()
	})
	defer stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.reservationsSeen[from] < q.Seen[self] && ctx.Err() == nil {
		h.reservationArrived.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.withSnapshot(func() (*wire.Answer, error) { return h.ranker.Answer(ctx, q.Ask) })
}

// look calls f with everything that has happened carried out.
func (h *Holder) withSnapshot(f func() (*wire.Answer, error)) (*wire.Answer, error) {
	if err := h.cache.UpdateSnapshot(h.logger, h.snapshot); err != nil {
		return nil, err
	}
	defer h.cache.EndCycle(h.logger)
	return f()
}

// hold calls f while nothing else looks at the nodes, and nothing changes them.
func (h *Holder) Exclusively(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.withSnapshot(func() (*wire.Answer, error) { f(); return nil, nil }); err != nil {
		panic(err)
	}
}

// changeNode takes what a watch says of a node here; before or after is nil if the node is new
// or gone.
func (h *Holder) ChangeNode(before, after *v1.Node) {
	switch {
	case after == nil:
		if err := h.cache.RemoveNode(h.logger, before); err != nil {
			h.logger.V(2).Info("A node was not there", "node", klog.KObj(before), "err", err)
		}
	case before == nil:
		h.cache.AddNode(h.logger, after)
	default:
		h.cache.UpdateNode(h.logger, before, after)
	}
}

// nodeInfo returns a copy of a node with its pods.
func (h *Holder) NodeInfo(name string) (*framework.NodeInfo, error) { return h.cache.GetNode(name) }

// connected says that a replica tells everything anew.
func (h *Holder) Connected(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reservationsSeen[from] = 0
	delete(h.lists, from)
}

// begin says that a replica tells of pods anew.
func (h *Holder) BeginList(from string, id int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tick++
	h.lists.Begin(from, id, h.tick)
}

// refreshed forgets the pods with UIDs in some slots that were not told of since a
// replica began to tell of them.
func (h *Holder) EndList(from string, id int64, slots []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists.End(from, id, slots, h.pods, func(pod *v1.Pod) { h.remove(pod.UID) })
}

// set takes a pod as it now is.
func (h *Holder) SetPod(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, is := h.pods[pod.UID]
	h.pods[pod.UID] = refresh.Object{Pod: pod, Tick: h.tick}
	var err error
	switch {
	case !is:
		if r := h.reservations[pod.UID]; r != nil {
			delete(h.reservations, pod.UID)
			h.count(r.pod, -1)
		}
		h.count(pod, 1)
		err = h.cache.AddPod(h.logger, pod)
	case known.Pod.ResourceVersion != pod.ResourceVersion:
		err = h.cache.UpdatePod(h.logger, known.Pod, pod)
	}
	if err != nil {
		h.logger.Error(err, "A pod could not be kept", "pod", klog.KObj(pod))
	}
}

func (h *Holder) RemovePod(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(uid)
}

func (h *Holder) remove(uid types.UID) {
	if known, is := h.pods[uid]; is {
		delete(h.pods, uid)
		h.count(known.Pod, -1)
		if err := h.cache.RemovePod(h.logger, known.Pod); err != nil {
			h.logger.Error(err, "A pod could not be removed", "pod", klog.KObj(known.Pod))
		}
	}
}

// drop forgets nodes, and all pods on them, that another replica owns now.
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
			h.logger.V(2).Info("A node was not there", "node", klog.KObj(node), "err", err)
		}
	}
}

// clear forgets all pods and nodes, but not the places of pods.
func (h *Holder) Clear(nodes []*v1.Node) {
	h.DropNodes(nodes, func(string) bool { return true })
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.pods {
		h.remove(uid)
	}
}

// holdings are how much a holder has.
type Counts struct {
	Nodes, Pods, Reservations int
	Freed                     int64
	Forbids                   bool
}

func (h *Holder) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Counts{h.cache.NodeCount(), len(h.pods), len(h.reservations), h.freed, h.forbidding > 0}
}
