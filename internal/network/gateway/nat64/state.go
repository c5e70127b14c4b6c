package nat64

import (
	"fmt"
	"net/netip"
	"time"
)

// SavedSession is a session outside of a Translator, for a gateway that restarts.
type SavedSession struct {
	Node      string
	Protocol  byte           // 6, 17 or 1 for ICMP echo
	Source    netip.AddrPort // of the node; the port of ICMP is the identifier
	Pool      netip.AddrPort
	Remote    netip.AddrPort
	State     uint8         // of TCP
	Remaining time.Duration // until the session is idle for too long
}

// Save calls a function with each session.
func (t *Translator) Save(now time.Duration, save func(SavedSession)) {
	for _, s := range t.sessions6 {
		if s.expires <= now {
			continue
		}
		b := s.binding
		save(SavedSession{
			Node: b.node.name, Protocol: b.family.protocol4(),
			Source:    netip.AddrPortFrom(netip.AddrFrom16(b.source), b.port),
			Pool:      netip.AddrPortFrom(netip.AddrFrom4(t.pool.addresses[b.address]), b.poolPort),
			Remote:    netip.AddrPortFrom(netip.AddrFrom4(s.remote), s.remotePort),
			State:     uint8(s.state),
			Remaining: s.expires - now,
		})
	}
}

// Restore enters a saved session of a node. It fails, and changes nothing, if the configuration of the
// pool has changed, or if a limit would be exceeded.
func (t *Translator) Restore(n *Node, saved SavedSession, now time.Duration) error {
	f, err := saved.check()
	if err != nil {
		return err
	}
	address := t.addressIndex(saved.Pool.Addr().As4())
	switch {
	case address < 0:
		return fmt.Errorf("session of node %s: %v is no longer in the pool", n.name, saved.Pool.Addr())
	case n.sessions >= t.config.Limits.Sessions || len(t.sessions6) >= t.config.MaxSessions:
		return fmt.Errorf("session of node %s: more sessions than the limit", n.name)
	case t.permitted(saved.Remote.Addr().As4()) != NotDropped:
		return fmt.Errorf("session of node %s: %v is no longer permitted", n.name, saved.Remote.Addr())
	}
	k := bindingKey{source: saved.Source.Addr().As16(), port: saved.Source.Port(), family: f}
	b := t.bindings[k]
	if b == nil {
		if n.ports >= t.config.Limits.Ports || !t.pool.claim(address, f, saved.Pool.Port()) {
			return fmt.Errorf("session of node %s: port %v is not free", n.name, saved.Pool)
		}
		n.address = address
		b = t.addBinding(n, k, address, saved.Pool.Port())
	}
	s := &session{binding: b, remote: saved.Remote.Addr().As4(), remotePort: saved.Remote.Port(), state: tcpState(saved.State)}
	if b.node != n || b.address != address || b.poolPort != saved.Pool.Port() || t.sessions6[s.key6()] != nil {
		return fmt.Errorf("session of node %s: %v is saved twice", n.name, saved.Source)
	}
	t.link(s)
	t.refresh(s, min(saved.Remaining, t.config.Timeouts.TCPEstablished), now)
	return nil
}

func (s *SavedSession) check() (family, error) {
	if !s.Source.Addr().Is6() || !s.Pool.Addr().Is4() || !s.Remote.Addr().Is4() || s.Remaining <= 0 || s.State > uint8(transitory) {
		return 0, fmt.Errorf("saved session of node %s: fields are missing", s.Node)
	}
	if s.Protocol == protocolICMP {
		return icmp, nil
	}
	f, ok := familyOf(s.Protocol)
	if !ok {
		return 0, fmt.Errorf("saved session of node %s: protocol %d", s.Node, s.Protocol)
	}
	return f, nil
}

func (t *Translator) addressIndex(address [4]byte) int {
	if index, ok := t.inPool[address]; ok {
		return index
	}
	return -1
}
