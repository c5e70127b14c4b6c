package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/shard"
)

// holder has the nodes that a replica owns, and the pods on them.
type holder struct {
	mu       sync.Mutex
	logger   klog.Logger
	ranker   *ranker
	cache    *Cache
	snapshot *upstream.Snapshot
	// pods on the nodes here, as replicas have told of them.
	pods map[types.UID]held
	// reserved are pods that the leader has placed here, until they are bound.
	reserved map[types.UID]*reserved
	// nominated are the nodes of pods that wait for them, as the leader has told.
	nominated map[types.UID]string
	// tick counts the times when replicas began to tell of pods anew, and begun is when
	// each did.
	tick  int64
	begun map[string]int64
	// seen are the reservations that each leader has told of since it connected.
	seen    map[string]uint64
	arrived *sync.Cond
}

type held struct {
	pod *v1.Pod
	// tick when the pod was last told of.
	tick int64
}

type reserved struct {
	pod   *v1.Pod
	until time.Time
}

// A place that no leader asks to keep is given to others after this time.
const reservationLife = 30 * time.Second

func newHolder(logger klog.Logger, r *ranker, known *Cache) *holder {
	h := &holder{
		logger: logger, ranker: r, cache: known, nominated: map[types.UID]string{}, snapshot: r.cluster.snapshot.whole,
		pods: map[types.UID]held{}, reserved: map[types.UID]*reserved{}, begun: map[string]int64{}, seen: map[string]uint64{},
	}
	h.arrived = sync.NewCond(&h.mu)
	return h
}

// answer says what is known of the nodes here.
func (h *holder) answer(ctx context.Context, from string, q *shard.Question, self string) (*shard.Answer, error) {
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.arrived.Broadcast()
	})
	defer stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.seen[from] < q.Seen[self] && ctx.Err() == nil {
		h.arrived.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.look(func() (*shard.Answer, error) { return h.ranker.answer(ctx, q.Ask) })
}

// look calls f with everything that has happened carried out.
func (h *holder) look(f func() (*shard.Answer, error)) (*shard.Answer, error) {
	if err := h.cache.UpdateSnapshot(h.logger, h.snapshot); err != nil {
		return nil, err
	}
	defer h.cache.endCycle(h.logger)
	return f()
}

// hold calls f while nothing else looks at the nodes, and nothing changes them.
func (h *holder) hold(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.look(func() (*shard.Answer, error) { f(); return nil, nil }); err != nil {
		panic(err)
	}
}

// connected says that a replica tells everything anew.
func (h *holder) connected(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[from] = 0
}

// begin says that a replica tells of pods anew.
func (h *holder) begin(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tick++
	h.begun[from] = h.tick
}

// refreshed forgets the pods with UIDs in some slots that were not told of since.
func (h *holder) refreshed(from string, slots []int) {
	in := make([]bool, shard.Slots)
	for _, slot := range slots {
		in[slot] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, known := range h.pods {
		if in[shard.Slot(uid)] && known.tick < h.begun[from] {
			h.remove(uid)
		}
	}
}

// set takes a pod as it now is.
func (h *holder) set(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, is := h.pods[pod.UID]
	h.pods[pod.UID] = held{pod: pod, tick: h.tick}
	var err error
	switch {
	case !is:
		delete(h.reserved, pod.UID)
		err = h.cache.AddPod(h.logger, pod)
	case known.pod.ResourceVersion != pod.ResourceVersion:
		err = h.cache.UpdatePod(h.logger, known.pod, pod)
	}
	if err != nil {
		h.logger.Error(err, "A pod could not be kept", "pod", klog.KObj(pod))
	}
}

func (h *holder) gone(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(uid)
}

func (h *holder) remove(uid types.UID) {
	if known, is := h.pods[uid]; is {
		delete(h.pods, uid)
		if err := h.cache.RemovePod(h.logger, known.pod); err != nil {
			h.logger.Error(err, "A pod could not be removed", "pod", klog.KObj(known.pod))
		}
	}
}

// drop forgets nodes, and all pods on them, that another replica owns now.
func (h *holder) drop(nodes []*v1.Node, owned func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, known := range h.pods {
		if !owned(known.pod.Spec.NodeName) {
			h.remove(uid)
		}
	}
	for uid, r := range h.reserved {
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

// reserve gives a pod its place, or says why not.
func (h *holder) reserve(ctx context.Context, from string, r *shard.Reservation) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[from]++
	h.arrived.Broadcast()
	switch {
	case r.Nominated:
		return h.nominate(r)
	case len(r.Pod) == 0:
		h.unreserve(r.UID)
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("the pod cannot be read: %v", err)
	}
	pod.Spec.NodeName = r.Node
	if known, is := h.pods[pod.UID]; is {
		if known.pod.Spec.NodeName == r.Node {
			return ""
		}
		return fmt.Sprintf("the pod is on node %s", known.pod.Spec.NodeName)
	}
	if before := h.reserved[pod.UID]; before != nil {
		if before.pod.Spec.NodeName == r.Node {
			before.until = time.Now().Add(reservationLife)
			return ""
		}
		h.unreserve(pod.UID)
	}
	if refused := h.unfit(ctx, pod, r); refused != "" {
		return refused
	}
	if err := h.cache.AssumePod(h.logger, pod); err != nil {
		return err.Error()
	}
	h.reserved[pod.UID] = &reserved{pod: pod, until: time.Now().Add(reservationLife)}
	return ""
}

// nominate notes that a pod waits for a node here, or does not any more.
func (h *holder) nominate(r *shard.Reservation) (refused string) {
	if node, is := h.nominated[r.UID]; is {
		h.ranker.nominations.untell(node, r.UID)
		delete(h.nominated, r.UID)
	}
	if len(r.Pod) == 0 {
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("the pod cannot be read: %v", err)
	}
	info, _ := framework.NewPodInfo(pod)
	h.nominated[pod.UID] = r.Node
	h.ranker.nominations.tell(r.Node, info)
	return ""
}

// forgetNominated forgets what a leader has told of pods that wait.
func (h *holder) forgetNominated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.nominated {
		h.nominate(&shard.Reservation{UID: uid})
	}
}

// unfit says why a pod has no place on a node any more, as far as the node itself is
// concerned. What it depends on besides the leader has looked at.
func (h *holder) unfit(ctx context.Context, pod *v1.Pod, r *shard.Reservation) (refused string) {
	_, err := h.look(func() (*shard.Answer, error) {
		n := h.ranker.cluster.present(r.Node)
		if n == nil {
			refused = "the node is not there"
			return nil, nil
		}
		info, _ := framework.NewPodInfo(pod)
		found, _, err := h.ranker.class(ctx, h.ranker.profiles[r.Profile], info, &agreement{Demands: r.Demands})
		if err == nil && !found.Has(n.slot) {
			refused = "the pod does not fit any more"
		}
		// Pods have come that make other classes necessary; the next question finds that.
		return nil, nil
	})
	if err != nil {
		return err.Error()
	}
	return refused
}

func (h *holder) unreserve(uid types.UID) {
	if r := h.reserved[uid]; r != nil {
		delete(h.reserved, uid)
		if err := h.cache.RemoveAssumedPod(h.logger, r.pod); err != nil {
			h.logger.Error(err, "A place could not be given back", "pod", klog.KObj(r.pod))
		}
	}
}

// keep holds places for longer, and says which are gone.
func (h *holder) keep(uids []types.UID) []shard.Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	acks := make([]shard.Ack, 0, len(uids))
	for _, uid := range uids {
		ack := shard.Ack{UID: uid}
		if r := h.reserved[uid]; r != nil {
			r.until = time.Now().Add(reservationLife)
		} else if _, is := h.pods[uid]; !is {
			ack.Refused = "the place was given to others meanwhile"
		}
		acks = append(acks, ack)
	}
	return acks
}

// expire gives places to others that no leader asks to keep.
func (h *holder) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for uid, r := range h.reserved {
		if now.After(r.until) {
			h.logger.Info("A place was not asked for any more, and is given to others", "pod", klog.KObj(r.pod), "node", r.pod.Spec.NodeName)
			h.unreserve(uid)
		}
	}
}

func (h *holder) counts() (nodes, pods int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cache.NodeCount(), len(h.pods)
}
