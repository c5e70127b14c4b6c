package nat64

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

// key6 identifies a session from the side of the node.
type key6 struct {
	source      [16]byte
	destination [4]byte
	sourcePort  uint16
	port        uint16 // of the destination; 0 for ICMP
	family      family
}

// key4 identifies a session from the side of IPv4: local is of the pool.
type key4 struct {
	remote, local         [4]byte
	remotePort, localPort uint16
	family                family
}

type bindingKey struct {
	source [16]byte
	port   uint16
	family family
}

// binding is an address and port of a node with its address and port of the pool. It lives as long as
// it has sessions.
type binding struct {
	bindingKey
	node           *Node
	address        int // of the pool
	poolPort       uint16
	sessions       *session
	previous, next *binding // of the node
}

// session is a connection, or a flow of UDP or ICMP echo.
type session struct {
	binding        *binding
	remote         [4]byte
	remotePort     uint16
	delta          uint16 // of checksums from the node to IPv4; its complement for the other direction
	state          tcpState
	ended          bool
	expires        time.Duration
	due            int64    // the tick at which expiry looks at it
	previous, next *session // of the binding
}

func (s *session) key6() key6 {
	b := s.binding
	return key6{source: b.source, destination: s.remote, sourcePort: b.port, port: s.remotePort, family: b.family}
}

func (t *Translator) key4(s *session) key4 {
	b := s.binding
	return key4{remote: s.remote, local: t.pool.addresses[b.address], remotePort: s.remotePort, localPort: b.poolPort, family: b.family}
}

// open finds or creates the session of a packet from a node.
func (t *Translator) open(n *Node, k *key6, now time.Duration) (*session, Reason) {
	if s := t.sessions6[*k]; s != nil {
		if s.binding.node == n {
			return s, NotDropped
		}
		t.endSession(s) // the address has moved to another node
	}
	if reason := t.admit(n, now); reason != NotDropped {
		return nil, reason
	}
	b, reason := t.bind(n, bindingKey{source: k.source, port: k.sourcePort, family: k.family})
	if reason != NotDropped {
		return nil, reason
	}
	s := &session{binding: b, remote: k.destination, remotePort: k.port}
	n.counters.SessionsCreated++
	t.link(s)
	return s, NotDropped
}

// admit checks the limits of sessions.
func (t *Translator) admit(n *Node, now time.Duration) Reason {
	switch {
	case n.sessions >= t.config.Limits.Sessions:
		return NodeSessions
	case len(t.sessions6) >= t.config.MaxSessions:
		return TableFull
	case !n.bucket.take(now, t.config.Limits.NewPerSecond):
		return NodeRate
	}
	return NotDropped
}

func (t *Translator) bind(n *Node, k bindingKey) (*binding, Reason) {
	if b := t.bindings[k]; b != nil {
		if b.node == n {
			return b, NotDropped
		}
		t.endBinding(b)
	}
	if n.ports >= t.config.Limits.Ports {
		return nil, NodePorts
	}
	port, ok := t.pool.take(n.address, k.family)
	if !ok {
		return nil, PoolExhausted
	}
	return t.addBinding(n, k, n.address, port), NotDropped
}

func (t *Translator) addBinding(n *Node, k bindingKey, address int, port uint16) *binding {
	b := &binding{bindingKey: k, node: n, address: address, poolPort: port, next: n.bindings}
	if n.bindings != nil {
		n.bindings.previous = b
	}
	n.bindings = b
	n.ports++
	t.bindings[k] = b
	return b
}

// link enters a session into the tables.
func (t *Translator) link(s *session) {
	b := s.binding
	s.next = b.sessions
	if s.next != nil {
		s.next.previous = s
	}
	b.sessions = s
	s.delta = t.delta(s)
	t.sessions6[s.key6()] = s
	t.sessions4[t.key4(s)] = s
	b.node.sessions++
}

// delta is the difference that the addresses and ports of a session make to a checksum.
func (t *Translator) delta(s *session) uint16 {
	b := s.binding
	embedded := t.config.Prefix.Embed(s.remote)
	local := t.pool.addresses[b.address]
	old := checksum.Sum(b.source[:], checksum.Sum(embedded[:], uint32(b.port)))
	return difference(old, checksum.Sum(local[:], checksum.Sum(s.remote[:], uint32(b.poolPort))))
}

// endSession removes a session, and its binding if it was the last one.
func (t *Translator) endSession(s *session) {
	if s.ended {
		return
	}
	s.ended = true
	b := s.binding
	delete(t.sessions6, s.key6())
	delete(t.sessions4, t.key4(s))
	if s.previous == nil {
		b.sessions = s.next
	} else {
		s.previous.next = s.next
	}
	if s.next != nil {
		s.next.previous = s.previous
	}
	s.previous, s.next = nil, nil
	b.node.sessions--
	if b.sessions == nil {
		t.freeBinding(b)
	}
}

func (t *Translator) endBinding(b *binding) {
	for s := b.sessions; s != nil; {
		next := s.next
		t.endSession(s)
		s = next
	}
}

func (t *Translator) freeBinding(b *binding) {
	n := b.node
	if b.previous == nil {
		n.bindings = b.next
	} else {
		b.previous.next = b.next
	}
	if b.next != nil {
		b.next.previous = b.previous
	}
	n.ports--
	delete(t.bindings, b.bindingKey)
	t.pool.release(b.address, b.family, b.poolPort)
}
