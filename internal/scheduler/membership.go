package scheduler

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/shard"
)

// adopt takes an assignment: slots that are this replica's now are watched, and what is
// in those that are not any more is forgotten.
func (r *Replica) adopt(a *shard.Assignment) {
	r.mu.Lock()
	if !a.Later(r.assignment) {
		r.mu.Unlock()
		return
	}
	r.logger.V(1).Info("Slots are assigned", "term", a.Term, "number", a.Number, "leader", a.Leader.Name, "replicas", a.Owners)
	another := r.assignment == nil || r.assignment.Leader.Name != a.Leader.Name
	if another {
		for _, p := range r.peers {
			p.leads = false
		}
	}
	r.assignment, r.table = a, a.Table()
	r.refreshed = sets.New[string]()
	r.connect(append([]shard.Member{a.Leader}, a.Known...))
	slots, ctx := r.table.Of(r.self()), r.ctx
	r.mu.Unlock()

	if another {
		r.holder.forgetNominated()
	}
	lostNodes, gained := r.nodes.own(ctx, slots)
	r.pods.own(ctx, slots)
	r.holder.drop(lostNodes, r.owns)
	r.mu.Lock()
	if r.assignment == a {
		r.gained = gained
	}
	r.mu.Unlock()
	r.catchUp()
}

// owns says whether a node is this replica's, as far as is known.
func (r *Replica) owns(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owner(node) == r.self()
}

// connect begins to tell members what they have to know, and stops telling others.
func (r *Replica) connect(members []shard.Member) {
	there := sets.New[string]()
	for _, member := range members {
		there.Insert(member.Name)
		p := r.peers[member.Name]
		if p != nil && p.link.To().Address == member.Address {
			continue
		}
		if p != nil {
			p.stop()
		}
		ctx, stop := context.WithCancel(r.ctx)
		p = &peer{stop: stop, all: true}
		if member.Name == r.self() {
			p.link = shard.NewLoop(member, r, r.begin)
		} else {
			p.link = shard.NewLink(r.self(), member, r.dial, r.begin)
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
}

// begin tells everything to a replica that knows nothing.
func (r *Replica) begin(ctx context.Context, link *shard.Link) {
	r.mu.Lock()
	p := r.peers[link.To().Name]
	if p == nil || p.link != link {
		r.mu.Unlock()
		return
	}
	p.all, p.knows, p.has, p.wants, p.leads, p.reservations = true, 0, 0, nil, false, 0
	r.mu.Unlock()
	r.lead.greet(link)
	for _, uid := range r.nodes.keys() {
		if !link.Room(ctx) {
			return
		}
		r.nodes.visit(uid, func(node *v1.Node) {
			item := shard.NodeName{Hash: hashOf(node.Name), Slot: int16(shard.Slot(node.UID))}
			link.Tell(func(b *shard.Batch) { b.Nodes = append(b.Nodes, item) })
		})
	}
	r.catchUp()
	r.report(link.To().Name)
}

// noteListed notes that a replica has said which nodes it has.
func (r *Replica) noteListed(from string, listed *shard.Refresh) {
	r.mu.Lock()
	if p := r.peers[from]; p != nil {
		p.wants = listed
	}
	r.mu.Unlock()
	r.catchUp()
}

// noteRefreshed notes that a replica has told of all pods on the nodes here.
func (r *Replica) noteRefreshed(from string, refresh shard.Refresh) {
	r.mu.Lock()
	if stamp(refresh.Term, refresh.Number) == r.current() {
		r.refreshed.Insert(from)
	}
	r.mu.Unlock()
	r.report("")
}

// catchUp tells others what an assignment makes necessary, as soon as this replica knows.
func (r *Replica) catchUp() {
	nodes, pods := r.nodes.synced(), r.pods.synced()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.assignment == nil || r.ctx.Err() != nil {
		return
	}
	now := r.current()
	for name, p := range r.peers {
		if nodes && p.knows < now {
			p.knows = now
			listed := shard.Refresh{Term: r.assignment.Term, Number: r.assignment.Number, Slots: r.gained}
			if p.all {
				listed.Slots = r.table.Of(r.self())
			}
			p.link.Tell(func(b *shard.Batch) { b.Listed = append(b.Listed, listed) })
		}
		wanted := p.wants != nil && stamp(p.wants.Term, p.wants.Number) == now
		leads := name == r.assignment.Leader.Name && !p.leads
		if pods && wanted && (p.has < now || leads) {
			p.has, p.leads = now, p.leads || leads
			t := r.telling(name, p, leads)
			p.all = false
			go t.run(r.ctx)
		}
	}
}

// telling is what one replica has to be told of pods.
type telling struct {
	r       *Replica
	to      string
	link    *shard.Link
	refresh shard.Refresh
	// all pods on nodes of it, or those with UIDs or nodes in some slots; and if it
	// leads newly all that wait.
	all, pending bool
	uids, nodes  []bool
	leads        bool
}

func (r *Replica) telling(name string, p *peer, pending bool) *telling {
	t := &telling{
		r: r, to: name, link: p.link, all: p.all, pending: pending || p.all, uids: marked(r.gained), nodes: marked(p.wants.Slots),
		leads: name == r.assignment.Leader.Name, refresh: shard.Refresh{Term: r.assignment.Term, Number: r.assignment.Number, Slots: r.gained},
	}
	if p.all {
		t.refresh.Slots = r.table.Of(r.self())
	}
	return t
}

func marked(slots []int) []bool {
	all := make([]bool, shard.Slots)
	for _, slot := range slots {
		all[slot] = true
	}
	return all
}

func (t *telling) run(ctx context.Context) {
	t.link.Tell(func(b *shard.Batch) { b.Refreshing = append(b.Refreshing, t.refresh) })
	for _, uid := range t.r.pods.keys() {
		if !t.link.Room(ctx) {
			return
		}
		t.r.pods.visit(uid, t.tell)
	}
	t.link.Tell(func(b *shard.Batch) { b.Refreshed = append(b.Refreshed, t.refresh) })
}

// tell tells of a pod if it is to be told.
func (t *telling) tell(pod *v1.Pod) {
	fresh := t.all || t.uids[shard.Slot(pod.UID)]
	if pod.Spec.NodeName == "" {
		if t.leads && (fresh || t.pending) {
			item := shard.Item{UID: pod.UID, Object: encoded(pod)}
			t.link.Tell(func(b *shard.Batch) { b.Pending = append(b.Pending, item) })
		}
		return
	}
	t.r.mu.Lock()
	slot, known := t.r.slots[hashOf(pod.Spec.NodeName)]
	its := known && t.r.table[slot] == t.to
	t.r.mu.Unlock()
	if its && (fresh || t.nodes[slot]) {
		item := shard.Item{UID: pod.UID, Object: encoded(pod)}
		t.link.Tell(func(b *shard.Batch) { b.Pods = append(b.Pods, item) })
	}
}

// report tells the leader how far this replica is; with a name only if that leads.
func (r *Replica) report(to string) {
	nodes, pods := r.holder.counts()
	synced := r.nodes.synced() && r.pods.synced()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.assignment == nil || to != "" && to != r.assignment.Leader.Name {
		return
	}
	status := &shard.Status{Nodes: nodes, Pods: pods, Config: r.options.Config}
	complete := synced
	for _, member := range r.assignment.Members {
		complete = complete && r.refreshed.Has(member.Name)
	}
	if complete {
		status.Term, status.Number = r.assignment.Term, r.assignment.Number
	}
	r.tell(r.assignment.Leader.Name, func(b *shard.Batch) { b.Status = status })
}

// How often a replica says that it lives.
const reportEvery = 500 * time.Millisecond

// Run takes part until the context ends.
func (r *Replica) run(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.holder.expire()
			r.report("")
		}
	}
}
