package core

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// simLink is an ordered one-way link, with the semantics of wire.Link: without a connection, messages are discarded, and
// with each new connection, the whole state is sent.
type simLink struct {
	r  *simReplica
	to string
	// connection counts the connections, and reservations those that were sent on the current one. session identifies the
	// connection in the whole simulation.
	connection, session int64
	reservations        uint64
	discarding, closed  bool
	down, brokenSince   time.Time
	// instance is that of the process that sends, and peer that of the process at the other end.
	instance, peer int
	pending        *wire.Batch
	// flushing is true while a flush is planned.
	flushing bool
	// sent are the batches that have not arrived, with the times at which they do.
	sent []simBatch
}

type simBatch struct {
	at time.Time
	// batch is nil for the start of the connection.
	batch *wire.Batch
}

func newSimLink(r *simReplica, to string) *simLink {
	l := &simLink{r: r, instance: r.instance, to: to, discarding: true, down: r.sim.now, pending: &wire.Batch{}}
	r.soon(r.sim.delay(), l.connect)
	return l
}

// connect opens a connection, or tries again later.
func (l *simLink) connect() {
	s, target := l.r.sim, l.r.sim.replica(l.to)
	if l.closed {
		return
	}
	if !target.running() || !s.connected(l.r.self.Name, l.to) {
		l.r.soon(100*time.Millisecond+s.upTo(50*time.Millisecond), l.connect)
		return
	}
	s.count++
	l.connection, l.session, l.reservations = l.connection+1, s.count, 0
	l.discarding, l.down, l.brokenSince, l.peer = false, time.Time{}, time.Time{}, target.instance
	l.pending, l.sent = &wire.Batch{}, nil
	l.transmit(nil)
	l.watch(l.session)
	l.begin()
}

// begin is Member.connected of package member.
func (l *simLink) begin() {
	r, session := l.r, l.session
	r.member.PeerConnected(l.to, l.connection)
	a, out := r.leader.Greeting(r.clock(), l.to, r)
	if a != nil {
		l.add(Message{Add: func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) }})
	}
	r.carryLeader(out)
	r.carry(r.member.Greeted(l.to))
	r.soon(r.sim.upTo(20*time.Millisecond), func() {
		if l.session != session || l.discarding || r.links[l.to] != l {
			return
		}
		for _, uid := range slices.Sorted(maps.Keys(r.nodeWatch.nodes)) {
			r.carry(r.member.AnnounceTo(l.to, r.nodeWatch.nodes[uid]))
		}
		r.carry(r.member.AllAnnounced(l.to))
		r.carry(r.member.SendDue())
		r.report(l.to)
	})
}

// watch breaks the connection some time after the other end has ended, or does not answer heartbeats.
func (l *simLink) watch(session int64) {
	l.r.sim.after(200*time.Millisecond+l.r.sim.upTo(300*time.Millisecond), func() {
		s, target := l.r.sim, l.r.sim.replica(l.to)
		if l.session != session || l.discarding || !l.r.alive || l.r.instance != l.instance {
			return
		}
		ended := !target.alive || target.instance != l.peer
		silent := target.paused || !s.connected(l.r.self.Name, l.to)
		if silent && l.brokenSince.IsZero() {
			l.brokenSince = s.now
		} else if !silent {
			l.brokenSince = time.Time{}
		}
		if ended || silent && s.now.Sub(l.brokenSince) > 3*time.Second {
			l.disconnect()
			return
		}
		l.watch(session)
	})
}

// disconnect ends the connection. What has not arrived is lost.
func (l *simLink) disconnect() {
	if l.discarding {
		return
	}
	l.discarding, l.down, l.sent, l.pending = true, l.r.sim.now, nil, &wire.Batch{}
	l.session = 0
	if !l.closed {
		l.r.soon(100*time.Millisecond, l.connect)
	}
}

// add adds a message to the next batch.
func (l *simLink) add(message Message) {
	if l.discarding || message.Pinned && message.Connection != l.connection {
		return
	}
	before := len(l.pending.Reservations)
	message.Add(l.pending)
	l.reservations += uint64(len(l.pending.Reservations) - before)
	if l.flushing {
		return
	}
	l.flushing = true
	wait := time.Duration(0)
	switch {
	case l.to == l.r.self.Name:
	case message.Later:
		wait = l.r.sim.upTo(250 * time.Millisecond)
	default:
		wait = l.r.sim.upTo(50 * time.Millisecond)
	}
	l.r.soon(wait, func() { l.flushing = false; l.flush() })
}

// flush sends the pending batch.
func (l *simLink) flush() {
	if l.discarding || isEmpty(l.pending) {
		return
	}
	b := l.pending
	l.pending = &wire.Batch{}
	l.transmit(b)
}

// transmit puts a batch on the network.
func (l *simLink) transmit(b *wire.Batch) {
	at := l.r.sim.now
	if l.to != l.r.self.Name {
		at = at.Add(l.r.sim.delay())
	}
	if n := len(l.sent); n > 0 && l.sent[n-1].at.After(at) {
		at = l.sent[n-1].at
	}
	l.sent = append(l.sent, simBatch{at, b})
	if len(l.sent) == 1 {
		l.arrive(l.session)
	}
}

// arrive delivers the first of the sent batches when its time has come, and then the others.
func (l *simLink) arrive(session int64) {
	s := l.r.sim
	s.after(l.sent[0].at.Sub(s.now), func() {
		target := s.replica(l.to)
		if l.session != session {
			return
		}
		if !s.connected(l.r.self.Name, l.to) {
			l.sent[0].at = s.now.Add(50 * time.Millisecond)
			l.arrive(session)
			return
		}
		b, from := l.sent[0].batch, l.r.self.Name
		l.sent = l.sent[1:]
		if len(l.sent) > 0 {
			l.sent[0].at = maxTime(l.sent[0].at, s.now)
			l.arrive(session)
		}
		target.deliver(l.peer, func() {
			if b == nil {
				target.connectedFrom(from, session)
			} else {
				target.receive(from, session, b)
			}
		})
	})
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// simNodes are the nodes of an owner.
type simNodes struct {
	sim   *simulation
	nodes map[string]*v1.Node
	pods  map[types.UID]*v1.Pod
}

func (n *simNodes) change(before, after *v1.Node) {
	if after != nil {
		n.nodes[after.Name] = after
	} else {
		delete(n.nodes, before.Name)
	}
}

func (n *simNodes) remove(nodes []*v1.Node) {
	for _, node := range nodes {
		if known := n.nodes[node.Name]; known != nil && known.UID == node.UID {
			delete(n.nodes, node.Name)
		}
	}
}

func (n *simNodes) free(node string) int {
	free := n.sim.api.room[node]
	for _, pod := range n.pods {
		if pod.Spec.NodeName == node {
			free--
		}
	}
	return free
}

// describe returns the names of the pods that count on a node.
func (n *simNodes) describe(node string) string {
	var names []string
	for _, pod := range n.pods {
		if pod.Spec.NodeName == node {
			names = append(names, fmt.Sprintf("%s at %s, deleted %t", pod.Name, pod.ResourceVersion, n.sim.api.pods[pod.UID] == nil))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (n *simNodes) AddPod(pod *v1.Pod)       { n.pods[pod.UID] = pod }
func (n *simNodes) UpdatePod(_, pod *v1.Pod) { n.pods[pod.UID] = pod }
func (n *simNodes) RemovePod(pod *v1.Pod)    { delete(n.pods, pod.UID) }

func (n *simNodes) Assume(pod *v1.Pod) error {
	n.pods[pod.UID] = pod
	return nil
}

func (n *simNodes) Forget(pod *v1.Pod) { delete(n.pods, pod.UID) }

func (n *simNodes) Refuses(_ *v1.Pod, r *wire.Reservation) string {
	switch {
	case n.nodes[r.Node] == nil:
		return "the node does not exist"
	case n.free(r.Node) < 1:
		return "the pod no longer fits on the node"
	}
	return ""
}

func (n *simNodes) Nominate(string, *v1.Pod)   {}
func (n *simNodes) Withdraw(string, types.UID) {}
func (n *simNodes) Expired(*v1.Pod)            {}

// simWatch is the watches of the pods or the nodes in the hash slots of a replica, like slotWatcher of package member.
type simWatch struct {
	r        *simReplica
	ofNodes  bool
	pods     map[types.UID]*v1.Pod
	nodes    map[types.UID]*v1.Node
	owned    sets.Set[int]
	parts    []*simPart
	progress int64
}

// simPart is one watch.
type simPart struct {
	slots  sets.Set[int]
	synced bool
	// cursor is the number of changes that were delivered. version is that of the last one in its slots.
	cursor, version int
	delivering      bool
}

func newSimWatch(r *simReplica, ofNodes bool) *simWatch {
	return &simWatch{r: r, ofNodes: ofNodes, pods: map[types.UID]*v1.Pod{}, nodes: map[types.UID]*v1.Node{}, owned: sets.New[int]()}
}

func (w *simWatch) synced() bool {
	return !slices.ContainsFunc(w.parts, func(p *simPart) bool { return !p.synced })
}

// version returns the oldest version up to which a watch has received all changes.
func (w *simWatch) version() string {
	oldest := ""
	for i, p := range w.parts {
		if version := strconv.Itoa(p.version); i == 0 || refresh.IsNewer(oldest, version) {
			oldest = version
		}
	}
	return oldest
}

// setSlots is slotWatcher.setSlots of package member.
func (w *simWatch) setSlots(slots []int) (lost []*v1.Node, gained []int) {
	before := w.owned
	w.owned = sets.New(slots...)
	for _, slot := range slots {
		if !before.Has(slot) {
			gained = append(gained, slot)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(w.nodes)) {
		if !w.owned.Has(membership.SlotOf(uid)) {
			lost = append(lost, w.nodes[uid])
			delete(w.nodes, uid)
		}
	}
	maps.DeleteFunc(w.pods, func(uid types.UID, _ *v1.Pod) bool { return !w.owned.Has(membership.SlotOf(uid)) })
	w.parts = slices.DeleteFunc(w.parts, func(p *simPart) bool {
		p.slots = p.slots.Intersection(w.owned)
		return len(p.slots) == 0
	})
	if len(gained) > 0 {
		p := &simPart{slots: sets.New(gained...)}
		w.parts = append(w.parts, p)
		w.list(p)
	}
	return lost, gained
}

// list lists the objects of a new watch.
func (w *simWatch) list(p *simPart) {
	w.r.soon(5*time.Millisecond+w.r.sim.upTo(150*time.Millisecond), func() {
		if !w.r.reachesAPI() {
			w.list(p)
			return
		}
		api := w.r.sim.api
		p.cursor, p.version = len(api.log), api.version()
		for _, node := range api.sortedNodes() {
			if w.ofNodes && p.slots.Has(membership.SlotOf(node.UID)) {
				w.setNode(nil, node, true)
			}
		}
		for _, pod := range api.sortedPods() {
			if !w.ofNodes && p.slots.Has(membership.SlotOf(pod.UID)) {
				w.pods[pod.UID] = pod
				w.r.carry(w.r.member.PodChanged(w.r.clock(), nil, pod, true))
			}
		}
		p.synced = true
		w.progress++
		w.r.listed()
	})
}

func (w *simWatch) setNode(before, after *v1.Node, listing bool) {
	if after != nil {
		w.nodes[after.UID] = after
	} else {
		delete(w.nodes, before.UID)
	}
	use, out := w.r.member.NodeChanged(w.r.clock(), before, after, listing)
	if use {
		w.r.nodes.change(before, after)
	}
	w.r.carry(out)
}

// deliverSoon makes each watch deliver its changes after some time.
func (w *simWatch) deliverSoon() {
	for _, p := range w.parts {
		if p.delivering {
			continue
		}
		p.delivering = true
		w.r.soon(w.r.sim.upTo(120*time.Millisecond), func() {
			p.delivering = false
			w.deliverPart(p)
		})
	}
}

// deliver makes all watches deliver their changes.
func (w *simWatch) deliver() {
	for _, p := range slices.Clone(w.parts) {
		w.deliverPart(p)
	}
}

func (w *simWatch) deliverPart(p *simPart) {
	if !p.synced || !w.r.reachesAPI() {
		return
	}
	log := w.r.sim.api.log
	for p.cursor < len(log) && w.r.alive && slices.Contains(w.parts, p) {
		c := log[p.cursor]
		p.cursor++
		switch {
		case w.ofNodes && (c.node != nil || c.old != nil):
			w.deliverNode(p, c)
		case !w.ofNodes && (c.pod != nil || c.was != nil):
			w.deliverPod(p, c)
		}
	}
}

func (w *simWatch) deliverNode(p *simPart, c simChange) {
	node := c.node
	if node == nil {
		node = c.old
	}
	if !p.slots.Has(membership.SlotOf(node.UID)) {
		return
	}
	p.version = c.version
	if known := w.nodes[node.UID]; c.node != nil || known != nil {
		w.setNode(known, c.node, false)
	}
}

func (w *simWatch) deliverPod(p *simPart, c simChange) {
	pod := c.pod
	if pod == nil {
		pod = c.was
	}
	if !p.slots.Has(membership.SlotOf(pod.UID)) {
		return
	}
	p.version = c.version
	before := w.pods[pod.UID]
	if c.pod != nil {
		w.pods[pod.UID] = c.pod
	} else {
		delete(w.pods, pod.UID)
	}
	if before != nil || c.pod != nil {
		w.r.carry(w.r.member.PodChanged(w.r.clock(), before, c.pod, false))
	}
}

func isEmpty(b *wire.Batch) bool {
	lists := len(b.Assignments) + len(b.Refreshing) + len(b.Nodes) + len(b.GoneNodes) + len(b.Pods) + len(b.Pending) + len(b.Events) +
		len(b.Refreshed) + len(b.Listed) + len(b.Reservations) + len(b.Kept) + len(b.Acks)
	return lists == 0 && b.Announced == 0 && b.Confirmed == 0 && b.Status == nil
}
