package member

import (
	"context"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// connect opens links to new members, and closes the links to peers that are not among the members.
func (m *Member) connect(members []membership.Member) {
	names := sets.New[string]()
	for _, member := range members {
		names.Insert(member.Name)
		p := m.peers[member.Name]
		if p != nil && p.link.To().Address == member.Address {
			continue
		}
		request := m.earlyRequests[member.Name]
		if p != nil {
			p.stop()
			request = p.request
		}
		ctx, stop := context.WithCancel(m.ctx)
		p = &peer{connectionCtx: ctx, stop: stop, request: request, wantedNodeSlots: refresh.AllSlots(), unsentPodSlots: refresh.AllSlots(), unlisted: m.startLists()}
		if member.Name == m.Self() {
			p.link = wire.NewLoop(member, m.hooks.Handler, m.connected)
		} else {
			p.link = wire.NewLink(m.Self(), member, m.dial, m.connected)
		}
		m.peers[member.Name] = p
		go p.link.Run(ctx)
	}
	for name, p := range m.peers {
		if !names.Has(name) {
			p.stop()
			delete(m.peers, name)
		}
	}
	m.dial.Keep(members)
	maps.DeleteFunc(m.earlyRequests, func(name string, request *wire.Refresh) bool {
		return names.Has(name) || stamp(request.Term, request.Number) < m.currentStamp()
	})
}

// connected sends the whole state of this replica over a new connection to a peer.
func (m *Member) connected(ctx context.Context, link *wire.Link) {
	m.mu.Lock()
	p := m.peers[link.To().Name]
	if p == nil || p.link != link {
		m.mu.Unlock()
		return
	}
	p.sentListed, p.answeredID, p.sentPending, p.sentNodes, p.greetedConnection = 0, 0, false, false, 0
	p.connection, p.connectionCtx, p.listedOn, p.sending = link.Connection(), ctx, 0, false
	p.unlisted, p.unsentPodSlots, p.wantedNodeSlots = m.startLists(), refresh.AllSlots(), refresh.AllSlots()
	m.mu.Unlock()
	m.hooks.Greet(link)
	m.mu.Lock()
	p.greetedConnection = p.connection
	m.sendNewerAssignment(link.To().Name, p.assigned)
	m.mu.Unlock()
	for _, uid := range m.nodes.uids() {
		if !link.WaitForRoom(ctx) {
			return
		}
		m.nodes.visit(uid, func(node *v1.Node) {
			// A later list of its slot would announce the node again, with a higher number.
			m.mu.Lock()
			defer m.mu.Unlock()
			item := nodeName(node, m.lastID)
			link.Send(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		})
	}
	m.mu.Lock()
	p.sentNodes = true
	announcement := m.lastID
	link.SendOn(p.connection, func(b *wire.Batch) { b.Announced = announcement })
	m.mu.Unlock()
	m.sendDue()
	m.report(link.To().Name)
}

// unreachable returns whether the link has had no connection for longer than unreachableAfter.
func (p *peer) unreachable() bool {
	down := p.link.Down()
	return !down.IsZero() && time.Since(down) > unreachableAfter
}

// peer is a replica to which this replica sends messages: another one or itself.
type peer struct {
	link *wire.Link
	stop context.CancelFunc
	// greetedConnection is the number of the last connection on which Hooks.Greet has sent the
	// leader's state. sentNodes is true after this replica has announced its nodes to the peer.
	greetedConnection int64
	sentNodes         bool
	// connection is the number of the connection to which this state belongs, and connectionCtx ends with it. listedOn is
	// the same number after this replica has sent a complete list of its pods, and 0 before.
	connection, listedOn int64
	connectionCtx        context.Context
	// confirmed is the last announcement that the peer has confirmed (see [wire.Batch.Confirmed]).
	confirmed int64
	// sentListed is the stamp of the assignment for which this replica has last sent Listed (see
	// wire.Batch) to the peer, and listedID is the ID of that message. unlisted has the starts of the
	// lists that no such message has covered yet.
	sentListed, listedID int64
	unlisted             listStarts
	// request is the peer's latest request for the pods on its nodes. wantedNodeSlots are the hash
	// slots of the nodes whose pods the peer still needs. unsentPodSlots are the hash slots of the
	// pods that this replica watches and has not sent to the peer yet.
	request                         *wire.Refresh
	wantedNodeSlots, unsentPodSlots refresh.SlotSet
	// answeredID is the ID of the last request that this replica has answered.
	answeredID int64
	// sending is true while a list of pods is being sent on the connection.
	sending bool
	// sentPending is true after this replica has sent all pending pods to the peer, if it leads.
	sentPending bool
	// assigned is the last assignment that the peer has sent; nil if it has sent none.
	assigned *wire.Assignment
}

// listStarts are the starts of lists of nodes, by hash slot (see [wire.Refresh.Since]); 0 for other hash slots.
type listStarts [membership.SlotCount]int64

// startLists returns that lists of all slots start now. The caller holds the lock.
func (m *Member) startLists() (starts listStarts) {
	m.lastID++
	for slot := range starts {
		starts[slot] = m.lastID
	}
	return starts
}

// SendToAll adds to the next message for every peer, including this replica.
func (m *Member) SendToAll(add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.link.Send(add)
	}
}

// SendToOwner adds to the next message for the owner of a node. It returns false if the owner is unknown.
func (m *Member) SendToOwner(node string, add func(*wire.Batch)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[m.ownerOf(node)]
	if p != nil {
		p.link.Send(add)
	}
	return p != nil
}

// SendTo adds to the next message for a peer, if a peer of that name exists.
func (m *Member) SendTo(name string, add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.send(name, add)
}

// Unreachable returns whether this replica has had no connection to a peer for longer than
// unreachableAfter.
func (m *Member) Unreachable(name string) bool {
	m.mu.Lock()
	p := m.peers[name]
	m.mu.Unlock()
	return p != nil && p.unreachable()
}

// Reservations returns the number of reservations that were sent on the current connection to each peer.
// It omits peers to which the leader's state was not yet sent on that connection. It flushes the
// links, because a peer answers a query only after it has received this number of reservations.
func (m *Member) Reservations() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := map[string]uint64{}
	for name, p := range m.peers {
		if count, connection := p.link.SentReservations(); connection != 0 && connection == p.greetedConnection {
			sent[name] = count
			p.link.Flush()
		}
	}
	return sent
}

// send adds to the next message for a peer, if a peer of that name exists. The caller holds the lock.
func (m *Member) send(name string, add func(*wire.Batch)) {
	if p := m.peers[name]; p != nil {
		p.link.Send(add)
	}
}

// sendLater adds a change that is not urgent to the next message for a peer. The caller holds the lock.
func (m *Member) sendLater(name string, add func(*wire.Batch)) {
	if p := m.peers[name]; p != nil {
		p.link.SendLater(add)
	}
}
