package scheduler

import (
	"context"
	"hash/fnv"
	"net"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/shard"
)

// Replica is one of several schedulers that share the nodes of a cluster. One of them
// leads: it has the queue, and asks the others where pods fit. All of them watch their
// share of the nodes, and of the pods, and tell each other what is of concern there.
type Replica struct {
	options ReplicaOptions
	logger  klog.Logger
	sched   *upstream.Scheduler
	dial    *shard.Dialer
	holder  *holder
	lead    *lead
	pods    *share[*v1.Pod]
	nodes   *share[*v1.Node]

	mu         sync.Mutex
	ctx        context.Context
	assignment *shard.Assignment
	table      shard.Table
	// gained are the slots that this replica did not have before the assignment.
	gained []int
	peers  map[string]*peer
	// slots are those of nodes, by the hash of their names.
	slots map[uint64]int16
	// strays are pods on nodes of which nobody has said that they are there.
	strays map[string]sets.Set[types.UID]
	// refreshed are the replicas that have told of all pods on the nodes here, by the
	// assignment.
	refreshed sets.Set[string]
}

// ReplicaOptions are how a replica is reached, and reaches others.
type ReplicaOptions struct {
	// Self is this replica.
	Self shard.Member
	// Listener is where others connect to.
	Listener  net.Listener
	TLS       *shard.TLS
	Discovery shard.Discovery
	// Fanout is how many others a question is sent to by one replica.
	Fanout   int
	Patience shard.Patience
	// Config is a digest of what all replicas have to have in common.
	Config string
}

// peer is another replica, or this one.
type peer struct {
	link *shard.Link
	stop context.CancelFunc
	// all says that it has to be told everything, because it knows nothing.
	all bool
	// knows is the assignment by which it was told which nodes are here, and has the one
	// by which it was told of its pods; wants is what it asked for with the first.
	knows, has int64
	wants      *shard.Refresh
	// leads says that it was told of pending pods.
	leads bool
	// reservations that it was told of.
	reservations uint64
}

func hashOf(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// stamp of an assignment orders those of all leaders.
func stamp(term, number int64) int64 { return term<<24 | number }

func (r *Replica) current() int64 {
	if r.assignment == nil {
		return 0
	}
	return stamp(r.assignment.Term, r.assignment.Number)
}

// owner of a node; "" if nobody is known to own it.
func (r *Replica) owner(node string) string {
	slot, known := r.slots[hashOf(node)]
	if !known || r.table == nil {
		return ""
	}
	return r.table[slot]
}

func (r *Replica) self() string { return r.options.Self.Name }

// tell tells another replica something, if there is such a replica.
func (r *Replica) tell(name string, add func(*shard.Batch)) {
	if p := r.peers[name]; p != nil {
		p.link.Tell(add)
	}
}

// nodeChanged takes what a watch says of a node here.
func (r *Replica) nodeChanged(before, after *v1.Node, listing bool) {
	cache := r.holder.cache
	switch {
	case after == nil:
		if err := cache.RemoveNode(r.logger, before); err != nil {
			r.logger.V(2).Info("A node was not there", "node", klog.KObj(before), "err", err)
		}
	case before == nil:
		cache.AddNode(r.logger, after)
	default:
		cache.UpdateNode(r.logger, before, after)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if before == nil {
		item := shard.NodeName{Hash: hashOf(after.Name), Slot: int16(shard.Slot(after.UID))}
		for _, p := range r.peers {
			p.link.Tell(func(b *shard.Batch) { b.Nodes = append(b.Nodes, item) })
		}
	}
	if !listing && r.assignment != nil && (before == nil || after == nil || len(framework.NodeSchedulingPropertiesChange(after, before)) > 0) {
		news := shard.News{Node: true}
		if before != nil {
			news.Before = encoded(before)
		}
		if after != nil {
			news.After = encoded(after)
		}
		r.tell(r.assignment.Leader.Name, func(b *shard.Batch) { b.News = append(b.News, news) })
	}
}

// encoded is an object in the API's encoding.
func encoded(object interface{ Marshal() ([]byte, error) }) []byte {
	data, err := object.Marshal()
	if err != nil {
		// To memory there is no other reason than an object that no server would send.
		panic(err)
	}
	return data
}

// podChanged takes what a watch says of a pod. Those on nodes go to the owners of the
// nodes, those that wait to the leader.
func (r *Replica) podChanged(before, after *v1.Pod, listing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before != nil && before.Spec.NodeName != "" && (after == nil || after.Spec.NodeName != before.Spec.NodeName) {
		r.tellGone(before)
	}
	if after != nil && after.Spec.NodeName != "" {
		r.tellPod(after, listing)
	}
	if listing || r.assignment == nil {
		return
	}
	leader := r.assignment.Leader.Name
	switch {
	case after != nil && after.Spec.NodeName == "":
		item := shard.Item{UID: after.UID, Object: encoded(after)}
		r.tell(leader, func(b *shard.Batch) { b.Pending = append(b.Pending, item) })
	case before != nil && before.Spec.NodeName == "":
		item := shard.Item{UID: before.UID}
		if after != nil {
			item.Node = after.Spec.NodeName
		}
		r.tell(leader, func(b *shard.Batch) { b.Pending = append(b.Pending, item) })
	case before == nil || after == nil || !sameOnNode(before, after):
		news := shard.News{}
		if before != nil {
			news.Before = encoded(before)
		}
		if after != nil {
			news.After = encoded(after)
		}
		r.tell(leader, func(b *shard.Batch) { b.News = append(b.News, news) })
	}
}

// tellPod tells the owner of a node of a pod on it. Those that are listed for the first
// time are told of when the owner wants them all.
func (r *Replica) tellPod(pod *v1.Pod, listing bool) {
	owner := r.owner(pod.Spec.NodeName)
	if owner == "" {
		if r.strays[pod.Spec.NodeName] == nil {
			r.strays[pod.Spec.NodeName] = sets.New[types.UID]()
		}
		r.strays[pod.Spec.NodeName].Insert(pod.UID)
		return
	}
	if !listing {
		item := shard.Item{UID: pod.UID, Object: encoded(pod)}
		r.tell(owner, func(b *shard.Batch) { b.Pods = append(b.Pods, item) })
	}
}

func (r *Replica) tellGone(pod *v1.Pod) {
	if owner := r.owner(pod.Spec.NodeName); owner != "" {
		r.tell(owner, func(b *shard.Batch) { b.Pods = append(b.Pods, shard.Item{UID: pod.UID}) })
	} else if strays := r.strays[pod.Spec.NodeName]; strays != nil {
		if strays.Delete(pod.UID); len(strays) == 0 {
			delete(r.strays, pod.Spec.NodeName)
		}
	}
}

// Connected says that another replica begins anew to tell what it has to.
func (r *Replica) Connected(from string) { r.holder.connected(from) }

// Receive takes what another replica tells.
func (r *Replica) Receive(from string, b *shard.Batch) error {
	if b.Assignment != nil {
		r.adopt(b.Assignment)
	}
	if len(b.Refreshing) > 0 {
		r.holder.begin(from)
		r.lead.begin(from)
	}
	if len(b.Nodes) > 0 {
		r.learn(b.Nodes)
	}
	for i := range b.Pods {
		if err := r.takePod(from, &b.Pods[i]); err != nil {
			return err
		}
	}
	if err := r.lead.feed(b); err != nil {
		return err
	}
	for _, refresh := range b.Refreshed {
		r.holder.refreshed(from, refresh.Slots)
		r.lead.refreshed(from, refresh.Slots)
		r.noteRefreshed(from, refresh)
	}
	for i := range b.Listed {
		r.noteListed(from, &b.Listed[i])
	}
	r.takeReservations(from, b)
	for _, ack := range b.Acks {
		r.lead.assumptions.ack(ack.UID, ack.Refused)
	}
	if b.Status != nil {
		r.lead.noteStatus(from, b.Status)
	}
	return nil
}

func (r *Replica) takePod(from string, item *shard.Item) error {
	r.mu.Lock()
	trusted := r.table == nil || r.table[shard.Slot(item.UID)] == from
	r.mu.Unlock()
	switch {
	case !trusted:
		// It was stopped for a while, and others have watched since.
	case len(item.Object) == 0:
		r.holder.gone(item.UID)
	default:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
		}
		r.holder.set(pod)
	}
	return nil
}

// takeReservations gives pods their places, if it is the leader who asks.
func (r *Replica) takeReservations(from string, b *shard.Batch) {
	if len(b.Reservations)+len(b.Kept) == 0 {
		return
	}
	r.mu.Lock()
	leads := r.assignment != nil && r.assignment.Leader.Name == from
	ctx := r.ctx
	r.mu.Unlock()
	var acks []shard.Ack
	for i := range b.Reservations {
		ack := shard.Ack{UID: b.Reservations[i].UID, Refused: "another replica leads"}
		if leads {
			ack.Refused = r.holder.reserve(ctx, from, &b.Reservations[i])
		}
		if len(b.Reservations[i].Pod) > 0 && !b.Reservations[i].Nominated {
			acks = append(acks, ack)
		}
	}
	if leads {
		acks = append(acks, r.holder.keep(b.Kept)...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell(from, func(b *shard.Batch) { b.Acks = append(b.Acks, acks...) })
}

// learn notes where nodes are, and tells of pods that were waiting for that.
func (r *Replica) learn(nodes []shard.NodeName) {
	r.mu.Lock()
	fresh := false
	moved := map[uint64]bool{}
	for _, node := range nodes {
		before, known := r.slots[node.Hash]
		fresh = fresh || !known
		if known && before != node.Slot {
			moved[node.Hash] = true
		}
		r.slots[node.Hash] = node.Slot
	}
	var found []types.UID
	if fresh {
		for name, uids := range r.strays {
			if r.owner(name) != "" {
				found = append(found, uids.UnsortedList()...)
				delete(r.strays, name)
			}
		}
	}
	r.mu.Unlock()
	if len(moved) > 0 {
		// A node was made anew under its name, and may have another owner now.
		for _, uid := range r.pods.keys() {
			r.pods.visit(uid, func(pod *v1.Pod) {
				if moved[hashOf(pod.Spec.NodeName)] {
					found = append(found, uid)
				}
			})
		}
	}
	for _, uid := range found {
		r.pods.visit(uid, func(pod *v1.Pod) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if pod.Spec.NodeName != "" {
				r.tellPod(pod, false)
			}
		})
	}
}

// Answer says what is known of the nodes here.
func (r *Replica) Answer(ctx context.Context, q *shard.Question) *shard.Answer {
	answer, err := r.holder.answer(ctx, q.From, q, r.self())
	if err != nil {
		return &shard.Answer{Errors: []string{r.self() + ": " + err.Error()}, Absent: []string{r.self()}}
	}
	return answer
}
