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

// connect opens links to members that are new and closes those to other peers.
func (m *Member) connect(members []membership.Member) {
	names := sets.New[string]()
	for _, member := range members {
		names.Insert(member.Name)
		p := m.peers[member.Name]
		if p != nil && p.link.To().Address == member.Address {
			continue
		}
		wants := m.earlyRequests[member.Name]
		if p != nil {
			p.stop()
			wants = p.request
		}
		ctx, stop := context.WithCancel(m.ctx)
		p = &peer{ctx: ctx, stop: stop, request: wants, wantedNodeSlots: refresh.AllSlots(), unsentPodSlots: refresh.AllSlots(), unlistedSlots: refresh.AllSlots()}
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
	maps.DeleteFunc(m.earlyRequests, func(name string, wants *wire.Refresh) bool {
		return names.Has(name) || stamp(wants.Term, wants.Number) < m.current()
	})
}

// connected sends everything to a peer that has just connected.
func (m *Member) connected(ctx context.Context, link *wire.Link) {
	m.mu.Lock()
	p := m.peers[link.To().Name]
	if p == nil || p.link != link {
		m.mu.Unlock()
		return
	}
	p.sentListed, p.answeredID, p.sentPending, p.sentNodes, p.greetedConnection = 0, 0, false, false, 0
	p.unlistedSlots, p.unsentPodSlots, p.wantedNodeSlots = refresh.AllSlots(), refresh.AllSlots(), refresh.AllSlots()
	m.mu.Unlock()
	greeted := link.Connection()
	m.hooks.Greet(link)
	m.mu.Lock()
	p.greetedConnection = greeted
	m.mu.Unlock()
	for _, uid := range m.nodes.keys() {
		if !link.WaitForRoom(ctx) {
			return
		}
		m.nodes.visit(uid, func(node *v1.Node) {
			item := nodeName(node)
			link.Send(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		})
	}
	m.mu.Lock()
	p.sentNodes = true
	m.mu.Unlock()
	m.sendDue()
	m.report(link.To().Name)
}

// cutOff returns whether nothing could be sent to the peer for a while.
func (p *peer) cutOff() bool {
	down := p.link.Down()
	return !down.IsZero() && time.Since(down) > unreachableAfter
}

// peer is another replica, or this one.
type peer struct {
	link *wire.Link
	ctx  context.Context
	stop context.CancelFunc
	// greetedConnection is the connection by which the leader's reservations on its nodes were
	// sent. sentNodes is set after the nodes here were announced.
	greetedConnection int64
	sentNodes         bool
	// sentListed is the assignment for which the peer was sent that all nodes here are announced,
	// and listedID is the ID of that message. unlistedSlots are the hash slots here that such a
	// message has not covered yet.
	sentListed, listedID int64
	unlistedSlots        refresh.SlotSet
	// request is the peer's latest request for pods on its nodes. wantedNodeSlots are the hash
	// slots of nodes whose pods it still needs, and unsentPodSlots are the hash slots of pods here
	// that it was not sent yet.
	request                         *wire.Refresh
	wantedNodeSlots, unsentPodSlots refresh.SlotSet
	// answeredID is the ID of the last request that was answered.
	answeredID int64
	// sentPending is set after the leader was sent the pending pods.
	sentPending bool
}

// SendToAll adds to the messages for every peer, this replica included.
func (m *Member) SendToAll(add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.link.Send(add)
	}
}

// SendToOwner adds to the messages for the owner of a node; false if there is none.
func (m *Member) SendToOwner(node string, add func(*wire.Batch)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[m.ownerOf(node)]
	if p != nil {
		p.link.Send(add)
	}
	return p != nil
}

// SendToOtherOwner does the same unless this replica owns the node.
func (m *Member) SendToOtherOwner(node string, add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner := m.ownerOf(node); owner != m.Self() {
		m.send(owner, add)
	}
}

// Unreachable returns whether a peer could not be reached for a while.
func (m *Member) Unreachable(name string) bool {
	m.mu.Lock()
	p := m.peers[name]
	m.mu.Unlock()
	return p != nil && p.cutOff()
}

// Reservations returns how many reservations were sent to each peer that has been sent all of
// them. It flushes them: a peer answers queries only after it has received them.
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

// send adds to the messages for a peer, if there is one of that name.
func (m *Member) send(name string, add func(*wire.Batch)) {
	if p := m.peers[name]; p != nil {
		p.link.Send(add)
	}
}

// sendLater adds to the messages for a peer that are not urgent.
func (m *Member) sendLater(name string, add func(*wire.Batch)) {
	if p := m.peers[name]; p != nil {
		p.link.SendLater(add)
	}
}
