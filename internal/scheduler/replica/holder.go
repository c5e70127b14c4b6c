package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// holder has the nodes that a replica owns, and the pods on them.
type holder struct {
	mu       sync.Mutex
	logger   klog.Logger
	ranker   *rank.Ranker
	cache    *cache.Cache
	snapshot *schedcache.Snapshot
	// pods on the nodes here, as replicas have told of them.
	pods map[types.UID]held
	// reserved are pods that the leader has placed here, until they are bound.
	reserved map[types.UID]*reserved
	// nominated are the nodes of pods that wait for them, as the leader has told.
	nominated map[types.UID]string
	// tick counts the times when replicas began to tell of pods anew, and begun is when
	// they did.
	tick  int64
	begun begun
	// forbidding counts the pods here that forbid others on more than their own node.
	forbidding int
	// freed counts the places that were given to others.
	freed int64
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
	pod *v1.Pod
	// term is that of the leader who has asked for the place, and until is when it is
	// kept unless that asks again.
	term  int64
	until time.Time
}

// A place that no leader asks to keep is given to others after the first time, or the
// second if another leads now; but only if the pod is not bound by then.
const (
	reservationLife = 30 * time.Second
	bequestLife     = 5 * time.Second
)

// begun is when replicas began to tell of pods anew, by who does and the number of that.
// The number matters: one may begin again before it is done.
type begun map[string]map[int64]int64

func (b begun) note(from string, id, tick int64) {
	if b[from] == nil {
		b[from] = map[int64]int64{}
	}
	b[from][id] = tick
}

// end ends what was begun: pods with UIDs in some slots that were not told of since are
// dropped.
func (b begun) end(from string, id int64, slots []int, pods map[types.UID]held, drop func(*v1.Pod)) {
	since, known := b[from][id]
	delete(b[from], id)
	if !known {
		return
	}
	in := marked(slots)
	for uid, pod := range pods {
		if in[wire.Slot(uid)] && pod.tick < since {
			drop(pod.pod)
		}
	}
}

func newHolder(logger klog.Logger, r *rank.Ranker, known *cache.Cache) *holder {
	h := &holder{
		logger: logger, ranker: r, cache: known, nominated: map[types.UID]string{}, snapshot: r.Cluster.Snapshot.Upstream,
		pods: map[types.UID]held{}, reserved: map[types.UID]*reserved{}, begun: begun{}, seen: map[string]uint64{},
	}
	h.arrived = sync.NewCond(&h.mu)
	return h
}

// answer says what is known of the nodes here.
func (h *holder) answer(ctx context.Context, from string, q *wire.Question, self string) (*wire.Answer, error) {
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
	return h.look(func() (*wire.Answer, error) { return h.ranker.Answer(ctx, q.Ask) })
}

// look calls f with everything that has happened carried out.
func (h *holder) look(f func() (*wire.Answer, error)) (*wire.Answer, error) {
	if err := h.cache.UpdateSnapshot(h.logger, h.snapshot); err != nil {
		return nil, err
	}
	defer h.cache.EndCycle(h.logger)
	return f()
}

// hold calls f while nothing else looks at the nodes, and nothing changes them.
func (h *holder) hold(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.look(func() (*wire.Answer, error) { f(); return nil, nil }); err != nil {
		panic(err)
	}
}

// connected says that a replica tells everything anew.
func (h *holder) connected(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[from] = 0
	delete(h.begun, from)
}

// begin says that a replica tells of pods anew.
func (h *holder) begin(from string, id int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tick++
	h.begun.note(from, id, h.tick)
}

// refreshed forgets the pods with UIDs in some slots that were not told of since a
// replica began to tell of them.
func (h *holder) refreshed(from string, id int64, slots []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun.end(from, id, slots, h.pods, func(pod *v1.Pod) { h.remove(pod.UID) })
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
		if r := h.reserved[pod.UID]; r != nil {
			delete(h.reserved, pod.UID)
			h.count(r.pod, -1)
		}
		h.count(pod, 1)
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
		h.count(known.pod, -1)
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

// clear forgets all pods and nodes, but not the places of pods.
func (h *holder) clear(nodes []*v1.Node) {
	h.drop(nodes, func(string) bool { return true })
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.pods {
		h.remove(uid)
	}
}

// reserve gives a pod its place, or says why not. While not all pods are known that are
// on the nodes here, only those have one that had it before.
func (h *holder) reserve(ctx context.Context, from string, term int64, ready bool, r *wire.Reservation) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[from]++
	h.arrived.Broadcast()
	if r.Nominated {
		return h.nominate(r)
	}
	if len(r.Pod) == 0 {
		if before := h.reserved[r.UID]; before != nil && before.pod.Spec.NodeName == r.Node {
			h.unreserve(r.UID)
		}
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
			before.term, before.until = term, time.Now().Add(reservationLife)
			return ""
		}
		h.unreserve(pod.UID)
	}
	if !r.Held {
		if !ready {
			return "the replica that owns the node does not know yet what is there"
		}
		if refused := h.unfit(ctx, pod, r); refused != "" {
			return refused
		}
	}
	if err := h.cache.AssumePod(h.logger, pod); err != nil {
		return err.Error()
	}
	h.count(pod, 1)
	h.reserved[pod.UID] = &reserved{pod: pod, term: term, until: time.Now().Add(reservationLife)}
	return ""
}

// nominate notes that a pod waits for a node here, or does not any more.
func (h *holder) nominate(r *wire.Reservation) (refused string) {
	if node, is := h.nominated[r.UID]; is {
		h.ranker.Nominations.RemoveRemote(node, r.UID)
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
	h.ranker.Nominations.AddRemote(r.Node, info)
	return ""
}

// forgetNominated forgets what a leader has told of pods that wait.
func (h *holder) forgetNominated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.nominated {
		h.nominate(&wire.Reservation{UID: uid})
	}
}

// unfit says why a pod has no place on a node any more, as far as the node itself is
// concerned. What it depends on besides the leader has looked at.
func (h *holder) unfit(ctx context.Context, pod *v1.Pod, r *wire.Reservation) (refused string) {
	_, err := h.look(func() (*wire.Answer, error) {
		n := h.ranker.Cluster.Lookup(r.Node)
		if n == nil {
			refused = "the node is not there"
			return nil, nil
		}
		// As the leader has asked: with no node yet.
		unbound := *pod
		unbound.Spec.NodeName = ""
		info, _ := framework.NewPodInfo(&unbound)
		profile := h.ranker.Profiles[r.Profile]
		if profile == nil {
			refused = "there is no such profile"
			return nil, nil
		}
		// If pods have come of which the leader did not know what they forbid, the class
		// is not found, and the next question finds where the pod may go.
		found, _, err := h.ranker.Class(ctx, profile, info, &rank.Agreement{Demands: r.Demands})
		fits := err == nil && found.Has(n.ID)
		if errors.As(err, new(rank.FallbackReason)) {
			// Each node was looked at by itself; what others may have taken since is looked
			// at here.
			fits, err = len(kubescheduler.AdmissionCheck(&unbound, n.Info, false)) == 0, nil
		}
		if err == nil && !fits {
			refused = "the pod does not fit any more"
		}
		return nil, err
	})
	if err != nil {
		return err.Error()
	}
	return refused
}

func (h *holder) unreserve(uid types.UID) {
	if r := h.reserved[uid]; r != nil {
		delete(h.reserved, uid)
		h.count(r.pod, -1)
		if err := h.cache.RemoveAssumedPod(h.logger, r.pod); err != nil {
			h.logger.Error(err, "A place could not be given back", "pod", klog.KObj(r.pod))
		}
	}
}

func (h *holder) count(pod *v1.Pod, by int) {
	if forbidsAround(pod) {
		h.forbidding += by
	}
}

// forbidsAround says whether a pod forbids others on more than the node that it is on.
func forbidsAround(pod *v1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(term v1.PodAffinityTerm) bool { return term.TopologyKey != v1.LabelHostname })
}

// keep holds places for longer, and says which are gone.
func (h *holder) keep(uids []types.UID) []wire.Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	acks := make([]wire.Ack, 0, len(uids))
	for _, uid := range uids {
		ack := wire.Ack{UID: uid}
		if r := h.reserved[uid]; r != nil {
			r.until = time.Now().Add(reservationLife)
		} else if _, is := h.pods[uid]; !is {
			ack.Refused = "the place was given to others meanwhile"
		}
		acks = append(acks, ack)
	}
	return acks
}

// overdue are the pods whose places no leader asks to keep.
func (h *holder) overdue(now time.Time) []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pods []*v1.Pod
	for _, r := range h.reserved {
		if now.After(r.until) {
			pods = append(pods, r.pod)
		}
	}
	return pods
}

// expire gives the place of a pod to others, unless it is bound there: then nobody has
// told of that yet.
func (h *holder) expire(uid types.UID, now time.Time, bound bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.reserved[uid]
	if r == nil || !now.After(r.until) {
		return
	}
	if bound {
		r.until = now.Add(reservationLife)
		return
	}
	h.logger.Info("A place was not asked for any more, and is given to others", "pod", klog.KObj(r.pod), "node", r.pod.Spec.NodeName)
	h.freed++
	h.unreserve(uid)
}

// bequeath keeps places for less time that earlier leaders have asked for.
func (h *holder) bequeath(term int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reserved {
		if end := now.Add(bequestLife); r.term < term && end.Before(r.until) {
			r.until = end
		}
	}
}

// holdings are how much a holder has.
type holdings struct {
	nodes, pods, reservations int
	freed                     int64
	forbids                   bool
}

func (h *holder) counts() holdings {
	h.mu.Lock()
	defer h.mu.Unlock()
	return holdings{h.cache.NodeCount(), len(h.pods), len(h.reserved), h.freed, h.forbidding > 0}
}
