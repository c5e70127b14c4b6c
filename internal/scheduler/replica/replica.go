package replica

import (
	"context"
	"errors"
	"hash/fnv"
	"net"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Replica is one of several schedulers that share the nodes of a cluster. One of them
// leads: it has the queue, and asks the others where pods fit. All of them watch their
// share of the nodes, and of the pods, and tell each other what is of concern there.
type Replica struct {
	options Options
	logger  klog.Logger
	sched   *kubescheduler.Scheduler
	client  kubernetes.Interface
	dial    *wire.Dialer
	holder  *holder
	lead    *lead
	pods    *share[*v1.Pod]
	nodes   *share[*v1.Node]

	// leaving says that this replica is about to end. Others know of it while present has
	// not ended; unknown is closed when they do not any more.
	leaving   atomic.Bool
	present   context.Context
	disappear context.CancelFunc
	unknown   chan struct{}
	// led is closed when this replica leads, and the others are ready.
	led chan struct{}
	// exit ends the process.
	exit func(err error, why string)

	mu         sync.Mutex
	ctx        context.Context
	assignment *wire.Assignment
	table      wire.Table
	// settled is the assignment by which slots are watched here.
	settled int64
	peers   map[string]*peer
	// early is what replicas have asked for that are not known here yet.
	early map[string]*wire.Refresh
	// slots are those of nodes, by the hash of their names.
	slots map[uint64]nodeSlot
	// numbers of what others are told or asked.
	numbers int64
	// strays are pods on nodes of which nobody has said that they are there.
	strays map[string]sets.Set[types.UID]
	// refreshed are the replicas that have told of all pods on the nodes here, by the
	// assignment.
	refreshed sets.Set[string]

	// adopting is held while an assignment is taken, one after the other.
	adopting sync.Mutex
}

// nodeSlot is the slot of a node, and when that was made, in seconds.
type nodeSlot struct {
	slot    int16
	created int64
}

// ReplicaOptions are how a replica is reached, and reaches others.
type Options struct {
	// Self is this replica.
	Self wire.Member
	// Listener is where others connect to.
	Listener  net.Listener
	TLS       *wire.TLS
	Discovery wire.Discovery
	// Fanout is how many others a question is sent to by one replica.
	Fanout   int
	Patience wire.Patience
	// Config is a digest of what all replicas have to have in common.
	Config string
	// Elected says that a lease says who leads, so that a leader that another has followed
	// ends. Otherwise it follows.
	Elected bool
	// Resign ends this process in good order, so that another leads; nil if nobody would.
	Resign func()
}

// peer is another replica, or this one.
type peer struct {
	link *wire.Link
	ctx  context.Context
	stop context.CancelFunc
	// greeted is the connection by which it knows of all pods that are assumed to be on
	// its nodes, and named says that it knows which nodes are here.
	greeted int64
	named   bool
	// knows is the assignment by which it was told that it knows all nodes here, asked
	// the number of that, and unlisted the slots here of which it was not told so yet.
	knows, asked int64
	unlisted     slotSet
	// wants is the last that it said of its nodes, wanted are the slots of nodes there of
	// whose pods it is to be told, and untold the slots of pods here.
	wants          *wire.Refresh
	wanted, untold slotSet
	// has is the number of the last wish that was fulfilled.
	has int64
	// leads says that it was told of pending pods.
	leads bool
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
	at, known := r.slots[hashOf(node)]
	if !known || r.table == nil {
		return ""
	}
	return r.table[at.slot]
}

// ownerOf is who tells of an object; "" if nobody is known to.
func (r *Replica) ownerOf(uid types.UID) string {
	if r.table == nil {
		return ""
	}
	return r.table[wire.Slot(uid)]
}

// trusts says whether a replica is the one to tell of an object. One that was stopped for
// a while may not know that others have watched since; and as long as nothing is assigned,
// what is told is meant for who had this name before.
func (r *Replica) trusts(from string, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return from != "" && r.ownerOf(uid) == from
}

func (r *Replica) self() string { return r.options.Self.Name }

// tell tells another replica something, if there is such a replica.
func (r *Replica) tell(name string, add func(*wire.Batch)) {
	if p := r.peers[name]; p != nil {
		p.link.Tell(add)
	}
}

// tellLater tells another replica something that has time.
func (r *Replica) tellLater(name string, add func(*wire.Batch)) {
	if p := r.peers[name]; p != nil {
		p.link.TellLater(add)
	}
}

// leads says whether this replica leads, as far as it knows.
func (r *Replica) leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.assignment != nil && r.assignment.Leader.Name == r.self() && r.assignment.Term == r.lead.termNow()
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
		item := nodeName(after)
		for _, p := range r.peers {
			p.link.Tell(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		}
	}
	if !listing && r.assignment != nil && (before == nil || after == nil || len(framework.NodeSchedulingPropertiesChange(after, before)) > 0) {
		news := wire.News{Node: true}
		if before != nil {
			news.Before = wire.MarshalObject(before)
		}
		if after != nil {
			news.After = wire.MarshalObject(after)
		}
		r.tell(r.assignment.Leader.Name, func(b *wire.Batch) { b.News = append(b.News, news) })
	}
}

func nodeName(node *v1.Node) wire.NodeName {
	return wire.NodeName{Hash: hashOf(node.Name), Slot: int16(wire.Slot(node.UID)), Created: node.CreationTimestamp.Unix()}
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
		item := wire.Item{UID: after.UID, Object: wire.MarshalObject(after)}
		r.tell(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case before != nil && before.Spec.NodeName == "":
		item, tell := wire.Item{UID: before.UID}, r.tell
		if after != nil {
			// The leader has assumed that.
			item.Node, tell = after.Spec.NodeName, r.tellLater
		}
		tell(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case before == nil || after == nil || !cache.SameOnNode(before, after):
		news := wire.News{}
		if before != nil {
			news.Before = wire.MarshalObject(before)
		}
		if after != nil {
			news.After = wire.MarshalObject(after)
		}
		r.tell(leader, func(b *wire.Batch) { b.News = append(b.News, news) })
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
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		// It has a reservation there, or was bound without asking.
		r.tellLater(owner, func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

func (r *Replica) tellGone(pod *v1.Pod) {
	if owner := r.owner(pod.Spec.NodeName); owner != "" {
		r.tell(owner, func(b *wire.Batch) { b.Pods = append(b.Pods, wire.Item{UID: pod.UID}) })
	} else if strays := r.strays[pod.Spec.NodeName]; strays != nil {
		if strays.Delete(pod.UID); len(strays) == 0 {
			delete(r.strays, pod.Spec.NodeName)
		}
	}
}

// Connected says that another replica begins anew to tell what it has to.
func (r *Replica) Connected(from string) { r.holder.connected(from) }

// Receive takes what another replica tells.
func (r *Replica) Receive(from string, b *wire.Batch) error {
	for _, a := range b.Assignments {
		r.adopt(a)
		r.correct(from, a)
	}
	for i := range b.Refreshing {
		r.holder.begin(from, b.Refreshing[i].ID)
		r.lead.begin(from, b.Refreshing[i].ID)
	}
	if len(b.Nodes) > 0 {
		r.learn(b.Nodes)
	}
	for i := range b.Pods {
		if err := r.takePod(from, &b.Pods[i]); err != nil {
			return err
		}
	}
	if err := r.lead.feed(from, b); err != nil {
		return err
	}
	for i := range b.Refreshed {
		refresh := &b.Refreshed[i]
		theirs := r.slotsOf(from, refresh.Slots)
		r.holder.refreshed(from, refresh.ID, theirs)
		r.lead.refreshed(from, refresh.ID, theirs)
		r.noteRefreshed(from, refresh)
	}
	for i := range b.Listed {
		r.noteListed(from, &b.Listed[i])
	}
	r.takeReservations(from, b)
	for _, ack := range b.Acks {
		r.lead.acked(from, ack)
	}
	if b.Status != nil {
		r.lead.noteStatus(from, b.Status)
	}
	return nil
}

func (r *Replica) takePod(from string, item *wire.Item) error {
	switch {
	case !r.trusts(from, item.UID):
	case len(item.Object) == 0:
		r.holder.gone(item.UID)
	default:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
		}
		if !r.owns(pod.Spec.NodeName) {
			// It was told by another assignment. Whoever owns the node now hears when the
			// pod is gone, and this replica would not.
			r.holder.gone(pod.UID)
			return nil
		}
		r.holder.set(pod)
	}
	return nil
}

// takeReservations gives pods their places, if it is the leader who asks.
func (r *Replica) takeReservations(from string, b *wire.Batch) {
	if len(b.Reservations)+len(b.Kept) == 0 {
		return
	}
	r.mu.Lock()
	leads, term := r.assignment != nil && r.assignment.Leader.Name == from, int64(0)
	if leads {
		term = r.assignment.Term
	}
	ctx, ready := r.ctx, r.complete()
	r.mu.Unlock()
	var acks []wire.Ack
	for i := range b.Reservations {
		ack := wire.Ack{UID: b.Reservations[i].UID, Refused: "another replica leads"}
		if leads {
			ack.Refused = r.holder.reserve(ctx, from, term, ready, &b.Reservations[i])
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
	r.tell(from, func(b *wire.Batch) { b.Acks = append(b.Acks, acks...) })
}

// learn notes where nodes are, and tells of pods that were waiting for that.
func (r *Replica) learn(nodes []wire.NodeName) {
	r.mu.Lock()
	moved, concerned := map[uint64]bool{}, false
	for _, node := range nodes {
		before, known := r.slots[node.Hash]
		if known && before.created > node.Created {
			continue
		}
		r.slots[node.Hash] = nodeSlot{node.Slot, node.Created}
		if known && before.slot != node.Slot {
			moved[node.Hash] = true
			concerned = concerned || r.table != nil && r.table[before.slot] == r.self()
		}
	}
	var found []types.UID
	for name, uids := range r.strays {
		if r.owner(name) != "" {
			found = append(found, uids.UnsortedList()...)
			delete(r.strays, name)
		}
	}
	r.mu.Unlock()
	if concerned {
		// Whoever owns the new one is told of all pods that are on it.
		r.holder.drop(nil, r.owns)
	}
	if len(moved) > 0 {
		found = append(found, r.podsOn(moved)...)
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

// podsOn are the pods on nodes that were made anew under their names, and may have other
// owners now.
func (r *Replica) podsOn(nodes map[uint64]bool) []types.UID {
	var found []types.UID
	for _, uid := range r.pods.keys() {
		r.pods.visit(uid, func(pod *v1.Pod) {
			if pod.Spec.NodeName != "" && nodes[hashOf(pod.Spec.NodeName)] {
				found = append(found, uid)
			}
		})
	}
	return found
}

var errNotReady = errors.New("this replica does not know yet all that it has to, or another leads")

// Answer says what is known of the nodes here, to who leads, if that is everything.
func (r *Replica) Answer(ctx context.Context, q *wire.Question) *wire.Answer {
	r.mu.Lock()
	ready := r.complete() && r.current() == stamp(q.Term, q.Number)
	r.mu.Unlock()
	answer, err := (*wire.Answer)(nil), errNotReady
	if ready {
		answer, err = r.holder.answer(ctx, q.From, q, r.self())
	}
	if err != nil {
		return &wire.Answer{Errors: []string{r.self() + ": " + err.Error()}, Absent: []string{r.self()}}
	}
	return answer
}
