package member

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// link is a link to a peer: another replica or this one.
type link struct {
	*wire.Link
	stop context.CancelFunc
	// ctx ends with the current connection, or before the first one with the link.
	ctx context.Context
}

// send adds a message to the next batch.
func (l *link) send(message core.Message) {
	switch {
	case message.Pinned:
		l.SendOn(message.Connection, message.Add)
	case message.Later:
		l.SendLater(message.Add)
	default:
		l.Send(message.Add)
	}
}

// unreachable returns whether the link has had no connection for longer than [core.UnreachableAfter].
func (l *link) unreachable() bool {
	down := l.Down()
	return !down.IsZero() && time.Since(down) > core.UnreachableAfter
}

// connect opens a link to a new peer. The caller holds the lock.
func (m *Member) connect(member membership.Member) {
	l := &link{}
	l.ctx, l.stop = context.WithCancel(m.ctx)
	if member.Name == m.Self() {
		l.Link = wire.NewLoop(member, m.hooks.Handler, m.connected)
	} else {
		l.Link = wire.NewLink(m.Self(), member, m.dial, m.connected)
	}
	m.links[member.Name] = l
	go l.Run(l.ctx)
}

// onLink makes a call of the protocol for a link, unless the peer has another link by now.
func (m *Member) onLink(l *wire.Link, call func(c *core.Member, now time.Time) core.MemberOutput) (current bool) {
	m.do(func(c *core.Member, now time.Time) (out core.MemberOutput) {
		if own := m.links[l.To().Name]; own != nil && own.Link == l {
			current = true
			return call(c, now)
		}
		return out
	})
	return current
}

// connected sends the whole state of this replica over a new connection to a peer (see [core.Member.PeerConnected]).
func (m *Member) connected(ctx context.Context, l *wire.Link) {
	name := l.To().Name
	begun := m.onLink(l, func(c *core.Member, _ time.Time) core.MemberOutput {
		m.links[name].ctx = ctx
		c.PeerConnected(name, l.Connection())
		return core.MemberOutput{}
	})
	if !begun {
		return
	}
	m.hooks.Greet(l)
	m.onLink(l, func(c *core.Member, _ time.Time) core.MemberOutput { return c.Greeted(name) })
	for _, uid := range m.nodes.uids() {
		if !l.WaitForRoom(ctx) {
			return
		}
		m.nodes.visit(uid, func(node *v1.Node) {
			m.onLink(l, func(c *core.Member, _ time.Time) core.MemberOutput { return c.AnnounceTo(name, node) })
		})
	}
	m.onLink(l, func(c *core.Member, _ time.Time) core.MemberOutput { return c.AllAnnounced(name) })
	m.sendDue()
	m.report(name)
}

// SendToAll adds to the next message for every peer, including this replica.
func (m *Member) SendToAll(add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		l.Send(add)
	}
}

// SendToOwner adds to the next message for the owner of a node. It returns false if the owner is unknown.
func (m *Member) SendToOwner(node string, add func(*wire.Batch)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.links[m.core.NodeOwner(node)]
	if l != nil {
		l.Send(add)
	}
	return l != nil
}

// SendTo adds to the next message for a peer, if a peer of that name exists.
func (m *Member) SendTo(name string, add func(*wire.Batch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.links[name]; l != nil {
		l.Send(add)
	}
}

// Unreachable returns whether this replica has had no connection to a peer for longer than
// [core.UnreachableAfter].
func (m *Member) Unreachable(name string) bool {
	m.mu.Lock()
	l := m.links[name]
	m.mu.Unlock()
	return l != nil && l.unreachable()
}

// Reservations returns the number of reservations that were sent on the current connection to each peer.
// It omits peers to which the leader's state was not yet sent on that connection. It flushes the
// links, because a peer answers a query only after it has received this number of reservations.
func (m *Member) Reservations() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := map[string]uint64{}
	for name, l := range m.links {
		if count, connection := l.SentReservations(); m.core.IsGreeted(name, connection) {
			sent[name] = count
			l.Flush()
		}
	}
	return sent
}
