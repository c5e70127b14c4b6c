package dataplane

import (
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
)

// SavedPeer is what a restart keeps of a tunnel. Keys of the transport are not kept: using a counter
// twice with one key would reveal packets. The gateway begins a new handshake instead.
type SavedPeer struct {
	Name      string
	Endpoint  string
	LastStamp [12]byte
}

// SavePeers returns the tunnels that have been used.
func (d *Dataplane) SavePeers() []SavedPeer {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var saved []SavedPeer
	for name, p := range d.peers {
		if endpoint := p.endpoint.Load(); endpoint != nil {
			saved = append(saved, SavedPeer{Name: name, Endpoint: endpoint.DstToString(), LastStamp: p.tunnel.LastStamp()})
		}
	}
	return saved
}

// SaveSessions returns the sessions of NAT64.
func (d *Dataplane) SaveSessions(now time.Time) []nat64.SavedSession {
	if d.nat == nil {
		return nil
	}
	d.natMu.Lock()
	defer d.natMu.Unlock()
	saved := make([]nat64.SavedSession, 0, d.nat.Sessions())
	d.nat.Save(d.since(now), func(s nat64.SavedSession) { saved = append(saved, s) })
	return saved
}

// RestorePeer continues a tunnel of a peer that has been added again.
func (d *Dataplane) RestorePeer(saved SavedPeer, now time.Time) {
	d.mu.RLock()
	p := d.peers[saved.Name]
	d.mu.RUnlock()
	if p == nil {
		return
	}
	p.tunnel.SetLastStamp(saved.LastStamp)
	if address, err := netip.ParseAddrPort(saved.Endpoint); err == nil {
		p.endpoint.Store(&conn.StdNetEndpoint{AddrPort: address})
		d.tunnel.Wake(p.tunnel, now)
	}
}

// RestoreSessions enters saved sessions, of which downtime has passed, and returns how many could be.
func (d *Dataplane) RestoreSessions(saved []nat64.SavedSession, downtime time.Duration, now time.Time) (restored int) {
	if d.nat == nil {
		return 0
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	d.natMu.Lock()
	defer d.natMu.Unlock()
	for _, s := range saved {
		p := d.peers[s.Node]
		s.Remaining -= downtime
		if p == nil || s.Remaining <= 0 || !p.owns(s.Source.Addr()) {
			continue
		}
		if d.nat.Restore(p.node, s, d.since(now)) == nil {
			restored++
		}
	}
	return restored
}
