package core

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Listed handles a replica's report that it has announced all its nodes. This report is also
// its request for the pods on them. The caller then calls [Member.SendDue].
func (m *Member) Listed(now time.Time, from string, listed *wire.Refresh) (out MemberOutput) {
	m.addListed(from, listed)
	m.recheckNodes(now, from, &out)
	if p := m.peers[from]; p != nil {
		p.request = listed
		p.wantedNodeSlots.Add(listed.Slots)
	} else if len(m.earlyRequests) < maxEarlyRequests {
		// The replica has discovered this one before this one has discovered it.
		m.earlyRequests[from] = listed
	}
	return out
}

// Refreshed handles the end of a replica's list of pods on the nodes here, if the list answers
// the latest request. Pods of nodes whose owner was unknown until now and is another replica are removed when this replica
// is complete.
func (m *Member) Refreshed(from string, refresh *wire.Refresh) (out MemberOutput) {
	p := m.peers[from]
	latest := p != nil && p.sentListed == m.currentStamp() && p.listedID == refresh.InReplyTo && stamp(refresh.Term, refresh.Number) == m.currentStamp()
	if latest || m.config.Fault == AnyListMakesReady {
		m.refreshed.Insert(from)
	}
	if out.DropPods = m.Complete(); out.DropPods {
		// Those that are still unknown are found again.
		m.guests.Clear()
	}
	return out
}

// SendDue sends to each peer the messages that the current assignment requires, as far as their
// preconditions hold: Listed after this replica's nodes, and the requested pods after they were listed and the watches
// were checked. A peer gets one list of pods after the other: the end of a list also says that all earlier ones have
// arrived.
func (m *Member) SendDue() (out MemberOutput) {
	if m.assignment == nil || m.appliedStamp != m.currentStamp() {
		return out
	}
	current := m.currentStamp()
	nodes, pods := m.environment.Listed()
	checked := m.checkedStamp == current || m.config.Fault == ListWithoutCheck
	for _, name := range m.peerNames {
		p := m.peers[name]
		if nodes && p.sentNodes && p.sentListed < current {
			m.sendNodesListed(name, p, &out)
		}
		wanted := p.request != nil && stamp(p.request.Term, p.request.Number) == current
		leads := name == m.assignment.Leader.Name && !p.sentPending
		if pods && checked && wanted && !p.sending && !m.waits(name) && (p.answeredID != p.request.ID || leads) {
			out.Lists = append(out.Lists, m.newList(name, p, leads))
			p.answeredID, p.sentPending, p.sending = p.request.ID, p.sentPending || leads, true
			p.wantedNodeSlots, p.unsentPodSlots = refresh.NewSlotSet(nil), refresh.NewSlotSet(nil)
		}
	}
	return out
}

// sendNodesListed reports to a peer that this replica has announced all its nodes. The report is also the
// request for the pods on them.
func (m *Member) sendNodesListed(name string, p *Peer, out *MemberOutput) {
	m.lastID++
	listed := wire.Refresh{Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID}
	for _, slot := range m.table.Of(m.config.Self) {
		if since := p.unlisted[slot]; since > 0 {
			listed.Slots, listed.Since = append(listed.Slots, slot), append(listed.Since, since)
		}
	}
	p.sentListed, p.listedID, p.unlisted = m.currentStamp(), listed.ID, listStarts{}
	// On a new connection, the nodes are announced first.
	out.sendOn(name, p.connection, func(b *wire.Batch) { b.Listed = append(b.Listed, listed) })
}

// List is a list of pods for one peer, on one connection. If the connection ends, the rest of the list is not
// sent: on the next connection, the peer requests the pods again.
//
// The caller sends [List.Begin], then reads the version of its watch ([List.SetVersion]), then sends [List.Item] for
// each pod that this replica watches and that [Member.Covers], then [Member.EndList], and then calls [Member.SendDue].
type List struct {
	peer *Peer
	// To is the name of the peer, and Connection the number of the connection on which the list is sent.
	To         string
	Connection int64
	refresh    wire.Refresh
	// The list contains pods whose own hash slot is in podSlots, and pods whose node's hash slot is
	// in nodeSlots. If the peer leads, the list also contains the pending pods in podSlots, or all
	// pending pods if pending is true.
	podSlots, nodeSlots refresh.SlotSet
	leads, pending      bool
	fault               Fault
}

// newList returns the list that a peer has requested. pending adds all pending pods.
func (m *Member) newList(name string, p *Peer, pending bool) *List {
	m.lastID++
	return &List{
		peer: p, To: name, Connection: p.connection, pending: pending, podSlots: p.unsentPodSlots, nodeSlots: p.wantedNodeSlots,
		leads: name == m.assignment.Leader.Name, fault: m.config.Fault, refresh: wire.Refresh{
			Term: m.assignment.Term, Number: m.assignment.Number, ID: m.lastID, InReplyTo: p.request.ID, Slots: p.unsentPodSlots.Of(m.table, m.config.Self),
		},
	}
}

// message returns a message on the connection of the list.
func (l *List) message(add func(*wire.Batch)) Message {
	return Message{To: l.To, Pinned: l.fault != ListOnNewConnection, Connection: l.Connection, Add: add}
}

// Begin returns the start of the list.
func (l *List) Begin() Message {
	begin := l.refresh
	return l.message(func(b *wire.Batch) { b.Refreshing = append(b.Refreshing, begin) })
}

// SetVersion sets the resource version up to which the watch has received all changes. It is read before the pods, so that
// the list contains at least all changes up to it.
func (l *List) SetVersion(version string) { l.refresh.Version = version }

// Covers returns whether a list contains a pod that this replica watches.
func (m *Member) Covers(l *List, pod *v1.Pod) bool {
	slotUnsent := l.podSlots.Has(membership.SlotOf(pod.UID))
	if pod.Spec.NodeName == "" {
		return l.leads && (slotUnsent || l.pending)
	}
	at, known := m.slots[HashOf(pod.Spec.NodeName)]
	toOwner := known && m.table[at.slot] == l.To
	return toOwner && (slotUnsent || l.nodeSlots.Has(int(at.slot)))
}

// Item returns the message that sends a pod of the list.
func (l *List) Item(pod *v1.Pod) Message {
	item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
	if pod.Spec.NodeName == "" {
		return l.message(func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	}
	return l.message(func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
}

// EndList ends the list, and confirms the announced nodes. If the connection has ended, a part of the list may be lost.
func (m *Member) EndList(l *List) (out MemberOutput) {
	p := m.peers[l.To]
	isCurrent := p != nil && p == l.peer && p.connection == l.Connection
	if stamp(l.refresh.Term, l.refresh.Number) != m.currentStamp() && m.config.Fault != ListOfEarlierAssignment {
		// This replica may have lost a hash slot meanwhile, and even gained it again, and has not listed its pods yet. So
		// their absence means nothing, and the next list has everything.
		l.refresh.Slots = nil
		if isCurrent {
			p.unsentPodSlots.AddAll(l.podSlots)
			p.wantedNodeSlots.AddAll(l.nodeSlots)
		}
	}
	end := l.refresh
	out.Messages = append(out.Messages, l.message(func(b *wire.Batch) { b.Refreshed = append(b.Refreshed, end) }))
	if announcement := m.announced[l.To]; announcement > 0 && !m.waits(l.To) {
		out.Messages = append(out.Messages, l.message(func(b *wire.Batch) { b.Confirmed = announcement }))
	}
	if isCurrent {
		p.listedOn, p.sending = l.Connection, false
	}
	return out
}
