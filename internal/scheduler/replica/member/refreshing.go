package member

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// noteListed notes that a replica has said which nodes it has.
func (m *Member) TakeListed(from string, listed *wire.Refresh) {
	m.mu.Lock()
	if p := m.peers[from]; p != nil {
		p.request = listed
		p.wantedNodeSlots.Add(listed.Slots)
	} else if len(m.earlyRequests) < maxEarlyRequests {
		// It has heard of this replica before this one of it.
		m.earlyRequests[from] = listed
	}
	m.mu.Unlock()
	m.sendDue()
}

// noteRefreshed notes that a replica has told of all pods on the nodes here, if it is
// what it was last asked for.
func (m *Member) TakeRefreshed(from string, refresh *wire.Refresh) {
	m.mu.Lock()
	p := m.peers[from]
	if p != nil && p.toldListed == m.current() && p.listedID == refresh.Asked && stamp(refresh.Term, refresh.Number) == m.current() {
		m.refreshed.Insert(from)
	}
	complete := m.complete()
	m.mu.Unlock()
	if complete {
		// Where nodes belong that others have told of may be known only now.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	m.report("")
}

// complete says whether all is known here that an assignment makes necessary.
func (m *Member) complete() bool {
	if m.assignment == nil || m.settled != m.current() || !m.nodes.synced.Load() || !m.pods.synced.Load() {
		return false
	}
	return m.refreshed.HasAll(m.assignment.Owners...)
}

// catchUp tells others what an assignment makes necessary, as soon as this replica knows.
func (m *Member) sendDue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || m.settled != m.current() || m.ctx.Err() != nil {
		return
	}
	now := m.current()
	for name, p := range m.peers {
		if m.nodes.synced.Load() && p.sentNodes && p.toldListed < now {
			m.sendNodesListed(p)
		}
		wanted := p.request != nil && stamp(p.request.Term, p.request.Number) == now
		leads := name == m.assignment.Leader.Name && !p.sentPending
		if m.pods.synced.Load() && wanted && (p.answeredID != p.request.ID || leads) {
			t := m.newPodSender(name, p, leads)
			p.answeredID, p.sentPending = p.request.ID, p.sentPending || leads
			p.wantedNodeSlots, p.unsentPodSlots = refresh.NewSlotSet(nil), refresh.NewSlotSet(nil)
			go t.run(p.ctx)
		}
	}
}

// tellListed tells a replica that it knows all nodes here, so that it tells of pods.
func (m *Member) sendNodesListed(p *peer) {
	m.lastID++
	listed := wire.Refresh{Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, Slots: p.unlistedSlots.Of(m.table, m.Self())}
	p.toldListed, p.listedID, p.unlistedSlots = m.current(), listed.ID, refresh.NewSlotSet(nil)
	p.link.Tell(func(b *wire.Batch) { b.Listed = append(b.Listed, listed) })
}

// telling is what one replica has to be told of pods.
type podSender struct {
	m       *Member
	to      string
	link    *wire.Link
	refresh wire.Refresh
	// uids are the slots of the pods, and nodes those of what they are on. If it leads it
	// is told of those that wait, too; of all if that is new to it.
	podSlots, nodeSlots refresh.SlotSet
	leads, pending      bool
}

func (m *Member) newPodSender(name string, p *peer, pending bool) *podSender {
	m.lastID++
	t := &podSender{
		m: m, to: name, link: p.link, pending: pending, podSlots: p.unsentPodSlots, nodeSlots: p.wantedNodeSlots,
		leads: name == m.assignment.Leader.Name, refresh: wire.Refresh{
			Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, Asked: p.request.ID, Slots: p.unsentPodSlots.Of(m.table, m.Self()),
		},
	}
	return t
}

func (t *podSender) run(ctx context.Context) {
	t.link.Tell(func(b *wire.Batch) { b.Refreshing = append(b.Refreshing, t.refresh) })
	for _, uid := range t.m.pods.keys() {
		if !t.link.Room(ctx) {
			return
		}
		t.m.pods.visit(uid, t.send)
	}
	t.link.Tell(func(b *wire.Batch) { b.Refreshed = append(b.Refreshed, t.refresh) })
}

// tell tells of a pod if it is to be told.
func (t *podSender) send(pod *v1.Pod) {
	fresh := t.podSlots.Has(wire.Slot(pod.UID))
	if pod.Spec.NodeName == "" {
		if t.leads && (fresh || t.pending) {
			item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
			t.link.Tell(func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
		}
		return
	}
	t.m.mu.Lock()
	at, known := t.m.slots[hashOf(pod.Spec.NodeName)]
	its := known && t.m.table[at.slot] == t.to
	t.m.mu.Unlock()
	if its && (fresh || t.nodeSlots.Has(int(at.slot))) {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		t.link.Tell(func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

func (m *Member) sendDueAndReport() {
	m.sendDue()
	m.report("")
}
