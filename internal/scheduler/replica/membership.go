package replica

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// slotSet is some of the slots; nil is none.
type slotSet []bool

func marked(slots []int) slotSet {
	all := make(slotSet, wire.Slots)
	all.add(slots)
	return all
}

// every is all slots.
func every() slotSet {
	all := make(slotSet, wire.Slots)
	for slot := range all {
		all[slot] = true
	}
	return all
}

// add adds slots, as far as there are such.
func (s slotSet) add(slots []int) {
	for _, slot := range slots {
		if slot >= 0 && slot < len(s) {
			s[slot] = true
		}
	}
}

func (s slotSet) has(slot int) bool { return slot < len(s) && s[slot] }

// of are those slots that a replica owns, in order.
func (s slotSet) of(table wire.Table, owner string) []int {
	return slices.DeleteFunc(table.Of(owner), func(slot int) bool { return !s.has(slot) })
}

// correct tells a replica whose assignment is of an earlier term than the one here that
// another has followed it: it may have been stopped, and hold the lease again since.
func (r *Replica) correct(from string, a *wire.Assignment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.assignment; now.Term > a.Term {
		r.tell(from, func(b *wire.Batch) { b.Assignments = append(b.Assignments, now) })
	}
}

// adopt takes an assignment: slots that are this replica's now are watched, and what is
// in those that are not any more is forgotten. If there was another assignment between
// this one and the last that is known here, everything is. A leader that another has
// followed ends, as kube-scheduler does: it may hold the lease again, if the other has
// released it, but for a term that is over, in which nobody would follow it.
func (r *Replica) adopt(a *wire.Assignment) {
	r.adopting.Lock()
	defer r.adopting.Unlock()
	r.mu.Lock()
	if !a.Later(r.assignment) {
		r.mu.Unlock()
		return
	}
	if term := r.lead.termNow(); r.options.Elected && term > 0 && a.Term > term && a.Leader.Name != r.self() {
		r.mu.Unlock()
		r.exit(fmt.Errorf("term %d, and %s leads for term %d", term, a.Leader.Name, a.Term), "Leadership was lost")
		return
	}
	r.logger.V(1).Info("Slots are assigned", "term", a.Term, "number", a.Number, "leader", a.Leader.Name, "replicas", a.Owners)
	missed := r.assignment != nil && !a.Follows(r.assignment)
	another := r.assignment == nil || r.assignment.Term != a.Term
	if another {
		for _, p := range r.peers {
			p.leads = false
		}
	}
	r.assignment, r.table = a, a.Table()
	r.refreshed = sets.New[string]()
	r.connect(append([]wire.Member{a.Leader}, a.Known...))
	slots, ctx := r.table.Of(r.self()), r.ctx
	r.mu.Unlock()

	if another {
		r.holder.forgetNominated()
	}
	r.holder.bequeath(a.Term, time.Now())
	if missed {
		r.logger.Info("An assignment of slots was missed, and everything here begins anew", "term", a.Term, "number", a.Number)
		r.forgetAll(ctx)
	}
	lostNodes, gained := r.nodes.own(ctx, slots)
	r.pods.own(ctx, slots)
	r.holder.drop(lostNodes, r.owns)
	r.mu.Lock()
	for _, p := range r.peers {
		p.unlisted.add(gained)
		p.untold.add(gained)
	}
	r.settled = r.current()
	r.mu.Unlock()
	r.catchUp()
}

// forgetAll gives up all slots. Places that pods have stay: the nodes may come back.
func (r *Replica) forgetAll(ctx context.Context) {
	nodes, _ := r.nodes.own(ctx, nil)
	r.pods.own(ctx, nil)
	r.holder.clear(nodes)
}

// owns says whether a node is this replica's, as far as is known.
func (r *Replica) owns(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner := r.owner(node)
	return owner == r.self() || owner == ""
}

// slotsOf are those of some slots that a replica owns.
func (r *Replica) slotsOf(owner string, slots []int) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return marked(slots).of(r.table, owner)
}

// connect begins to tell members what they have to know, and stops telling others.
func (r *Replica) connect(members []wire.Member) {
	there := sets.New[string]()
	for _, member := range members {
		there.Insert(member.Name)
		p := r.peers[member.Name]
		if p != nil && p.link.To().Address == member.Address {
			continue
		}
		wants := r.early[member.Name]
		if p != nil {
			p.stop()
			wants = p.wants
		}
		ctx, stop := context.WithCancel(r.ctx)
		p = &peer{ctx: ctx, stop: stop, wants: wants, wanted: every(), untold: every(), unlisted: every()}
		if member.Name == r.self() {
			p.link = wire.NewLoop(member, r, r.begin)
		} else {
			p.link = wire.NewLink(r.self(), member, r.dial, r.begin)
		}
		r.peers[member.Name] = p
		go p.link.Run(ctx)
	}
	for name, p := range r.peers {
		if !there.Has(name) {
			p.stop()
			delete(r.peers, name)
		}
	}
	r.dial.Keep(members)
	maps.DeleteFunc(r.early, func(name string, wants *wire.Refresh) bool {
		return there.Has(name) || stamp(wants.Term, wants.Number) < r.current()
	})
}

// begin tells everything to a replica that knows nothing.
func (r *Replica) begin(ctx context.Context, link *wire.Link) {
	r.mu.Lock()
	p := r.peers[link.To().Name]
	if p == nil || p.link != link {
		r.mu.Unlock()
		return
	}
	p.knows, p.has, p.leads, p.named, p.greeted = 0, 0, false, false, 0
	p.unlisted, p.untold, p.wanted = every(), every(), every()
	r.mu.Unlock()
	greeted := link.Connection()
	r.lead.greet(link)
	r.mu.Lock()
	p.greeted = greeted
	r.mu.Unlock()
	for _, uid := range r.nodes.keys() {
		if !link.Room(ctx) {
			return
		}
		r.nodes.visit(uid, func(node *v1.Node) {
			item := nodeName(node)
			link.Tell(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		})
	}
	r.mu.Lock()
	p.named = true
	r.mu.Unlock()
	r.catchUp()
	r.report(link.To().Name)
}

// noteListed notes that a replica has said which nodes it has.
func (r *Replica) noteListed(from string, listed *wire.Refresh) {
	r.mu.Lock()
	if p := r.peers[from]; p != nil {
		p.wants = listed
		p.wanted.add(listed.Slots)
	} else if len(r.early) < mostWishes {
		// It has heard of this replica before this one of it.
		r.early[from] = listed
	}
	r.mu.Unlock()
	r.catchUp()
}

// noteRefreshed notes that a replica has told of all pods on the nodes here, if it is
// what it was last asked for.
func (r *Replica) noteRefreshed(from string, refresh *wire.Refresh) {
	r.mu.Lock()
	p := r.peers[from]
	if p != nil && p.knows == r.current() && p.asked == refresh.Asked && stamp(refresh.Term, refresh.Number) == r.current() {
		r.refreshed.Insert(from)
	}
	complete := r.complete()
	r.mu.Unlock()
	if complete {
		// Where nodes belong that others have told of may be known only now.
		r.holder.drop(nil, r.owns)
	}
	r.report("")
}

// complete says whether all is known here that an assignment makes necessary.
func (r *Replica) complete() bool {
	if r.assignment == nil || r.settled != r.current() || !r.nodes.synced.Load() || !r.pods.synced.Load() {
		return false
	}
	return r.refreshed.HasAll(r.assignment.Owners...)
}

// catchUp tells others what an assignment makes necessary, as soon as this replica knows.
func (r *Replica) catchUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.assignment == nil || r.settled != r.current() || r.ctx.Err() != nil {
		return
	}
	now := r.current()
	for name, p := range r.peers {
		if r.nodes.synced.Load() && p.named && p.knows < now {
			r.tellListed(p)
		}
		wanted := p.wants != nil && stamp(p.wants.Term, p.wants.Number) == now
		leads := name == r.assignment.Leader.Name && !p.leads
		if r.pods.synced.Load() && wanted && (p.has != p.wants.ID || leads) {
			t := r.telling(name, p, leads)
			p.has, p.leads = p.wants.ID, p.leads || leads
			p.wanted, p.untold = marked(nil), marked(nil)
			go t.run(p.ctx)
		}
	}
}

// tellListed tells a replica that it knows all nodes here, so that it tells of pods.
func (r *Replica) tellListed(p *peer) {
	r.numbers++
	listed := wire.Refresh{Term: r.assignment.Term, Number: r.assignment.Number, ID: r.numbers, Slots: p.unlisted.of(r.table, r.self())}
	p.knows, p.asked, p.unlisted = r.current(), listed.ID, marked(nil)
	p.link.Tell(func(b *wire.Batch) { b.Listed = append(b.Listed, listed) })
}

// telling is what one replica has to be told of pods.
type telling struct {
	r       *Replica
	to      string
	link    *wire.Link
	refresh wire.Refresh
	// uids are the slots of the pods, and nodes those of what they are on. If it leads it
	// is told of those that wait, too; of all if that is new to it.
	uids, nodes    slotSet
	leads, pending bool
}

func (r *Replica) telling(name string, p *peer, pending bool) *telling {
	r.numbers++
	t := &telling{
		r: r, to: name, link: p.link, pending: pending, uids: p.untold, nodes: p.wanted,
		leads: name == r.assignment.Leader.Name, refresh: wire.Refresh{
			Term: r.assignment.Term, Number: r.assignment.Number, ID: r.numbers, Asked: p.wants.ID, Slots: p.untold.of(r.table, r.self()),
		},
	}
	return t
}

func (t *telling) run(ctx context.Context) {
	t.link.Tell(func(b *wire.Batch) { b.Refreshing = append(b.Refreshing, t.refresh) })
	for _, uid := range t.r.pods.keys() {
		if !t.link.Room(ctx) {
			return
		}
		t.r.pods.visit(uid, t.tell)
	}
	t.link.Tell(func(b *wire.Batch) { b.Refreshed = append(b.Refreshed, t.refresh) })
}

// tell tells of a pod if it is to be told.
func (t *telling) tell(pod *v1.Pod) {
	fresh := t.uids.has(wire.Slot(pod.UID))
	if pod.Spec.NodeName == "" {
		if t.leads && (fresh || t.pending) {
			item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
			t.link.Tell(func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
		}
		return
	}
	t.r.mu.Lock()
	at, known := t.r.slots[hashOf(pod.Spec.NodeName)]
	its := known && t.r.table[at.slot] == t.to
	t.r.mu.Unlock()
	if its && (fresh || t.nodes.has(int(at.slot))) {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		t.link.Tell(func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

// report tells the leader how far this replica is; with a name only if that leads.
func (r *Replica) report(to string) {
	have := r.holder.counts()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.assignment == nil || to != "" && to != r.assignment.Leader.Name {
		return
	}
	status := &wire.Status{Nodes: have.nodes, Pods: have.pods, Freed: have.freed, Forbids: have.forbids, Config: r.options.Config}
	for _, member := range r.assignment.Members {
		if p := r.peers[member.Name]; p != nil && p.cutOff() {
			status.Cut = append(status.Cut, member.Name)
		}
	}
	if r.complete() {
		status.Term, status.Number = r.assignment.Term, r.assignment.Number
	}
	r.tell(r.assignment.Leader.Name, func(b *wire.Batch) { b.Status = status })
}

// cutOff says that a replica could not be told anything for a while.
func (p *peer) cutOff() bool {
	down := p.link.Down()
	return !down.IsZero() && time.Since(down) > unreachableAfter
}

const (
	// Replicas that may ask for something before it is known here that there are such.
	mostWishes = 10_000
	// How often a replica says that it lives.
	reportEvery = 500 * time.Millisecond
	// How often it looks for places that nobody asks to keep, and how long it waits for
	// what the API server says of one.
	expireEvery, expirePatience = time.Second, 2 * time.Second
)

// run takes part until the context ends.
func (r *Replica) run(ctx context.Context) {
	go wire.EachBeat(ctx, expireEvery, r.expire)
	wire.EachBeat(ctx, reportEvery, func(context.Context) {
		r.report("")
		r.record()
	})
}

// record tells the metrics how much there is.
func (r *Replica) record() {
	have := r.holder.counts()
	assumed, _ := r.lead.assumptions.PodCount()
	for of, count := range map[string]int{"nodes": have.nodes, "pods": have.pods, "reservations": have.reservations, "assumed": assumed} {
		holding.WithLabelValues(of).Set(float64(count))
	}
}

// expire gives places to others that no leader asks to keep. The API server is asked
// about each: who should have told that the pod is bound may be cut off.
func (r *Replica) expire(ctx context.Context) {
	for _, pod := range r.holder.overdue(time.Now()) {
		asking, cancel := context.WithTimeout(ctx, expirePatience)
		now, err := r.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			r.logger.Info("Whether a place is still of use is not known", "pod", klog.KObj(pod), "err", err)
			return
		}
		bound := err == nil && now.UID == pod.UID && now.Spec.NodeName == pod.Spec.NodeName
		r.holder.expire(pod.UID, time.Now(), bound)
	}
}
