package member

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// HandleNodesListed handles a replica's report that it has announced all its nodes. This report is also
// its request for the pods on them.
func (m *Member) HandleNodesListed(from string, listed *wire.Refresh) {
	m.mu.Lock()
	var used usedNodes
	m.addListed(from, listed)
	m.recheckNodes(from, &used)
	if p := m.peers[from]; p != nil {
		p.request = listed
		p.wantedNodeSlots.Add(listed.Slots)
	} else if len(m.earlyRequests) < maxEarlyRequests {
		// The replica has discovered this one before this one has discovered it.
		m.earlyRequests[from] = listed
	}
	m.mu.Unlock()
	m.finishUse(&used)
	m.sendDue()
}

// HandleRefreshed handles the end of a replica's list of pods on the nodes here, if the list answers
// the latest request.
func (m *Member) HandleRefreshed(from string, refresh *wire.Refresh) {
	m.mu.Lock()
	p := m.peers[from]
	if p != nil && p.sentListed == m.currentStamp() && p.listedID == refresh.InReplyTo && stamp(refresh.Term, refresh.Number) == m.currentStamp() {
		m.refreshed.Insert(from)
	}
	complete := m.complete()
	m.mu.Unlock()
	if complete {
		// Remove pods of nodes whose owner was unknown until now and is another replica.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	m.report("")
}

// complete returns whether this replica has loaded all nodes and pods of the current assignment: its own
// watches have listed, and all owners have sent their pods. The caller holds the lock.
func (m *Member) complete() bool {
	if m.assignment == nil || m.appliedStamp != m.currentStamp() || !m.nodes.synced.Load() || !m.pods.synced.Load() {
		return false
	}
	return m.refreshed.HasAll(m.assignment.Owners...)
}

// sendDue sends to each peer the messages that the current assignment requires, as far as their
// preconditions hold: Listed after this replica's nodes, and the requested pods after they were listed and the watches
// were checked. A peer gets one list of pods after the other: the end of a list also says that all earlier ones have
// arrived.
func (m *Member) sendDue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || m.appliedStamp != m.currentStamp() || m.ctx.Err() != nil {
		return
	}
	current := m.currentStamp()
	for name, p := range m.peers {
		if m.nodes.synced.Load() && p.sentNodes && p.sentListed < current {
			m.sendNodesListed(p)
		}
		wanted := p.request != nil && stamp(p.request.Term, p.request.Number) == current
		leads := name == m.assignment.Leader.Name && !p.sentPending
		if m.pods.synced.Load() && m.checkedStamp == current && wanted && !p.sending && !m.waits(name) && (p.answeredID != p.request.ID || leads) {
			s := m.newPodSender(name, p, leads)
			p.answeredID, p.sentPending, p.sending = p.request.ID, p.sentPending || leads, true
			p.wantedNodeSlots, p.unsentPodSlots = refresh.NewSlotSet(nil), refresh.NewSlotSet(nil)
			go s.run(p.connectionCtx)
		}
	}
}

// sendNodesListed reports to a peer that this replica has announced all its nodes. The report is also the
// request for the pods on them.
func (m *Member) sendNodesListed(p *peer) {
	m.lastID++
	listed := wire.Refresh{Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID}
	for _, slot := range m.table.Of(m.Self()) {
		if since := p.unlisted[slot]; since > 0 {
			listed.Slots, listed.Since = append(listed.Slots, slot), append(listed.Since, since)
		}
	}
	p.sentListed, p.listedID, p.unlisted = m.currentStamp(), listed.ID, listStarts{}
	// On a new connection, the nodes are announced first.
	p.link.SendOn(p.connection, func(b *wire.Batch) { b.Listed = append(b.Listed, listed) })
}

// podSender sends one list of pods to one peer, on one connection. If the connection ends, the rest of the list is not
// sent: on the next connection, the peer requests the pods again.
type podSender struct {
	m    *Member
	to   string
	link *wire.Link
	// connection is the number of the connection on which the list is sent.
	connection int64
	refresh    wire.Refresh
	// The list contains pods whose own hash slot is in podSlots, and pods whose node's hash slot is
	// in nodeSlots. If the peer leads, the list also contains the pending pods in podSlots, or all
	// pending pods if pending is true.
	podSlots, nodeSlots refresh.SlotSet
	leads, pending      bool
}

// newPodSender returns the sender of the list that a peer has requested. pending adds all pending pods.
func (m *Member) newPodSender(name string, p *peer, pending bool) *podSender {
	m.lastID++
	s := &podSender{
		m: m, to: name, link: p.link, connection: p.connection, pending: pending, podSlots: p.unsentPodSlots, nodeSlots: p.wantedNodeSlots,
		leads: name == m.assignment.Leader.Name, refresh: wire.Refresh{
			Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, InReplyTo: p.request.ID, Slots: p.unsentPodSlots.Of(m.table, m.Self()),
		},
	}
	return s
}

// run sends the list until the context of its connection ends.
func (s *podSender) run(ctx context.Context) {
	s.add(func(b *wire.Batch) { b.Refreshing = append(b.Refreshing, s.refresh) })
	// The version is read first, so that the list contains at least all changes up to it.
	s.refresh.Version = s.m.pods.version()
	for _, uid := range s.m.pods.uids() {
		if !s.link.WaitForRoom(ctx) {
			return
		}
		s.m.pods.visit(uid, s.send)
	}
	s.end()
	s.m.sendDue()
}

// add adds to the next message on the connection of the list.
func (s *podSender) add(change func(*wire.Batch)) { s.link.SendOn(s.connection, change) }

// end ends the list, and confirms the announced nodes. If the connection has ended, a part of the list may be lost.
func (s *podSender) end() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	p := s.m.peers[s.to]
	isCurrent := p != nil && p.link == s.link && p.connection == s.connection
	if stamp(s.refresh.Term, s.refresh.Number) != s.m.currentStamp() {
		// This replica may have lost a hash slot meanwhile, and even gained it again, and has not listed its pods yet. So
		// their absence means nothing, and the next list has everything.
		s.refresh.Slots = nil
		if isCurrent {
			p.unsentPodSlots.AddAll(s.podSlots)
			p.wantedNodeSlots.AddAll(s.nodeSlots)
		}
	}
	s.add(func(b *wire.Batch) { b.Refreshed = append(b.Refreshed, s.refresh) })
	if announcement := s.m.announced[s.to]; announcement > 0 && !s.m.waits(s.to) {
		s.add(func(b *wire.Batch) { b.Confirmed = announcement })
	}
	if isCurrent {
		p.listedOn, p.sending = s.connection, false
	}
}

// send sends a pod if the list covers it.
func (s *podSender) send(pod *v1.Pod) {
	slotUnsent := s.podSlots.Has(membership.SlotOf(pod.UID))
	if pod.Spec.NodeName == "" {
		if s.leads && (slotUnsent || s.pending) {
			item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
			s.add(func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
		}
		return
	}
	s.m.mu.Lock()
	at, known := s.m.slots[hashOf(pod.Spec.NodeName)]
	toOwner := known && s.m.table[at.slot] == s.to
	s.m.mu.Unlock()
	if toOwner && (slotUnsent || s.nodeSlots.Has(int(at.slot))) {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		s.add(func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

// sendDueAndReport is called after a list or watch has delivered all objects of its slots.
func (m *Member) sendDueAndReport() {
	m.sendDue()
	m.report("")
}
