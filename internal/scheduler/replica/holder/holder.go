// Package holder keeps the nodes that a replica owns and the pods on them. It reserves capacity for
// pods that the leader has placed, and answers queries. What counts on a node is decided by [core.Ledger].
package holder

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Holder keeps the nodes that a replica owns, and the pods on them.
type Holder struct {
	mu       sync.Mutex
	logger   klog.Logger
	ranker   *rank.Ranker
	cache    *cache.Cache
	snapshot *schedcache.Snapshot
	// ledger has the pods on the holder's nodes.
	ledger *core.Ledger
	// ctx is the context of the request that the ledger processes.
	ctx context.Context
	// reservationArrived is signaled when a replica has sent a reservation.
	reservationArrived *sync.Cond
}

// New returns a holder. Its nodes are those of the ranker and its cache.
func New(logger klog.Logger, r *rank.Ranker, c *cache.Cache) *Holder {
	h := &Holder{logger: logger, ranker: r, cache: c, snapshot: r.Cluster.Snapshot.Upstream}
	h.ledger = core.NewLedger((*ownedNodes)(h))
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
	for h.ledger.Seen(from) < q.Reservations[self] && ctx.Err() == nil {
		h.reservationArrived.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer h.ledger.Without(q.Query.Reserved)()
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
		h.removeNode(before)
	case before == nil:
		h.cache.AddNode(h.logger, after)
	default:
		h.cache.UpdateNode(h.logger, before, after)
	}
}

func (h *Holder) removeNode(node *v1.Node) {
	if err := h.cache.RemoveNode(h.logger, node); err != nil {
		h.logger.V(2).Info("Node to remove is unknown", "node", klog.KObj(node), "err", err)
	}
}

// NodeInfo returns a copy of a node and its pods.
func (h *Holder) NodeInfo(name string) (*framework.NodeInfo, error) { return h.cache.GetNode(name) }

// Connected handles a new connection from a replica, which sends its whole state again on it.
func (h *Holder) Connected(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.Connected(from)
}

// BeginList handles the start of a replica's list of pods. It returns an error if the replica has too many open ones.
func (h *Holder) BeginList(from string, id int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.BeginList(from, id)
}

// EndList handles the end of a replica's list of pods, and returns the removed pods (see [core.Ledger.EndList]).
func (h *Holder) EndList(from string, id int64, slots []int, version string) (removed []*v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.EndList(time.Now(), from, id, slots, version)
}

// SetPod stores the current version of a pod on one of the holder's nodes (see [core.Ledger.SetPod]).
//
// trusted and owned are called while nothing else changes the pods, and so is the function that [Holder.DropNodes] gets:
// after DropNodes no earlier answer has an effect.
func (h *Holder) SetPod(pod *v1.Pod, trusted, owned func() bool) (before *v1.Pod, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.SetPod(pod, trusted, owned)
}

// RemovePod removes a bound pod, and returns it; nil if the holder does not have it, or trusted returns false. A
// reservation that a leader requested remains.
func (h *Holder) RemovePod(uid types.UID, trusted func() bool) *v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.RemovePod(uid, trusted)
}

// DropNodes removes the given nodes, which other replicas own now. It also removes all pods and
// reservations on nodes for which owned returns false.
func (h *Holder) DropNodes(nodes []*v1.Node, owned func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.DropNodes(owned)
	for _, node := range nodes {
		h.removeNode(node)
	}
}

// Clear removes all bound pods and the given nodes. Reservations remain.
func (h *Holder) Clear(nodes []*v1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range nodes {
		h.removeNode(node)
	}
	h.ledger.Clear()
}

// Counts are the numbers of objects that a holder has.
type Counts = core.Counts

// Counts returns the numbers of objects that the holder has.
func (h *Holder) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := h.ledger.Counts()
	counts.Nodes = h.cache.NodeCount()
	return counts
}
