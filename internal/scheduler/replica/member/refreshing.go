package member

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// HandleNodesListed handles a replica's report that it has announced all its nodes, which requests the
// pods on them.
func (m *Member) HandleNodesListed(from string, listed *wire.Refresh) {
	m.mu.Lock()
	if p := m.peers[from]; p != nil {
		p.request = listed
		p.wantedNodeSlots.Add(listed.Slots)
	} else if len(m.earlyRequests) < maxEarlyRequests {
		// That replica learned of this one first.
		m.earlyRequests[from] = listed
	}
	m.mu.Unlock()
	m.sendDue()
}

// HandleRefreshed handles the end of a replica's list of pods on the nodes here, if the list answers
// the latest request.
func (m *Member) HandleRefreshed(from string, refresh *wire.Refresh) {
	m.mu.Lock()
	p := m.peers[from]
	if p != nil && p.sentListed == m.current() && p.listedID == refresh.InReplyTo && stamp(refresh.Term, refresh.Number) == m.current() {
		m.refreshed.Insert(from)
	}
	complete := m.complete()
	m.mu.Unlock()
	if complete {
		// The owners of some nodes may be known only now.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	m.report("")
}

// complete returns whether this replica has all that the present assignment requires. The caller
// holds the lock.
func (m *Member) complete() bool {
	if m.assignment == nil || m.settled != m.current() || !m.nodes.synced.Load() || !m.pods.synced.Load() {
		return false
	}
	return m.refreshed.HasAll(m.assignment.Owners...)
}

// sendDue sends the messages that the present assignment requires and that can be sent now.
func (m *Member) sendDue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || m.settled != m.current() || m.ctx.Err() != nil {
		return
	}
	now := m.current()
	for name, p := range m.peers {
		if m.nodes.synced.Load() && p.sentNodes && p.sentListed < now {
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

// sendNodesListed reports to a peer that all nodes here are announced, which requests the pods on
// them.
func (m *Member) sendNodesListed(p *peer) {
	m.lastID++
	listed := wire.Refresh{Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, Slots: p.unlistedSlots.Of(m.table, m.Self())}
	p.sentListed, p.listedID, p.unlistedSlots = m.current(), listed.ID, refresh.NewSlotSet(nil)
	p.link.Send(func(b *wire.Batch) { b.Listed = append(b.Listed, listed) })
}

// podSender sends a list of pods to one peer.
type podSender struct {
	m       *Member
	to      string
	link    *wire.Link
	refresh wire.Refresh
	// podSlots are the hash slots of pods, and nodeSlots those of nodes, that the list covers. A
	// leader is also sent pending pods: all of them if pending is set.
	podSlots, nodeSlots refresh.SlotSet
	leads, pending      bool
}

// newPodSender makes the list that a peer needs.
func (m *Member) newPodSender(name string, p *peer, pending bool) *podSender {
	m.lastID++
	t := &podSender{
		m: m, to: name, link: p.link, pending: pending, podSlots: p.unsentPodSlots, nodeSlots: p.wantedNodeSlots,
		leads: name == m.assignment.Leader.Name, refresh: wire.Refresh{
			Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, InReplyTo: p.request.ID, Slots: p.unsentPodSlots.Of(m.table, m.Self()),
		},
	}
	return t
}

func (t *podSender) run(ctx context.Context) {
	t.link.Send(func(b *wire.Batch) { b.Refreshing = append(b.Refreshing, t.refresh) })
	for _, uid := range t.m.pods.keys() {
		if !t.link.WaitForRoom(ctx) {
			return
		}
		t.m.pods.visit(uid, t.send)
	}
	t.link.Send(func(b *wire.Batch) { b.Refreshed = append(b.Refreshed, t.refresh) })
}

// send sends a pod if the list covers it.
func (t *podSender) send(pod *v1.Pod) {
	fresh := t.podSlots.Has(membership.SlotOf(pod.UID))
	if pod.Spec.NodeName == "" {
		if t.leads && (fresh || t.pending) {
			item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
			t.link.Send(func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
		}
		return
	}
	t.m.mu.Lock()
	at, known := t.m.slots[hashOf(pod.Spec.NodeName)]
	its := known && t.m.table[at.slot] == t.to
	t.m.mu.Unlock()
	if its && (fresh || t.nodeSlots.Has(int(at.slot))) {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		t.link.Send(func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

func (m *Member) sendDueAndReport() {
	m.sendDue()
	m.report("")
}
