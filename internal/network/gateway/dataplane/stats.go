package dataplane

import (
	"sync/atomic"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
)

// counters are totals since the start.
type counters struct {
	handshakes, handshakesDropped, notAuthentic, spoofed, unexpected, noKeys atomic.Uint64
	receiveErrors, sendErrors, writeErrors, tooManySegments                  atomic.Uint64
}

// NodeStats are the counters of a node.
type NodeStats struct {
	Name       string      `json:"name"`
	Endpoint   string      `json:"endpoint"` // of the tunnel; empty before the first handshake
	NAT64      *NAT64Stats `json:"nat64,omitempty"`
	IPv4       string      `json:"ipv4,omitempty"` // in the tunnel
	Masquerade Traffic     `json:"masquerade"`
}

// NAT64Stats are the counters of a node in NAT64.
type NAT64Stats struct {
	Address         string `json:"address"` // of the pool
	Sessions        int    `json:"sessions"`
	Ports           int    `json:"ports"`
	SessionsCreated uint64 `json:"sessionsCreated"`
	Traffic
}

// Traffic counts packets and bytes of IP. Out is from the node.
type Traffic struct {
	PacketsOut uint64 `json:"packetsOut"`
	BytesOut   uint64 `json:"bytesOut"`
	PacketsIn  uint64 `json:"packetsIn"`
	BytesIn    uint64 `json:"bytesIn"`
}

// Nodes returns the counters of all nodes, in no order.
func (d *Dataplane) Nodes() []NodeStats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	d.lockNAT()
	defer d.unlockNAT()
	all := make([]NodeStats, 0, len(d.peers))
	for name, p := range d.peers {
		s := NodeStats{Name: name, Masquerade: Traffic{
			PacketsOut: p.packetsOut.Load(), BytesOut: p.bytesOut.Load(), PacketsIn: p.packetsIn.Load(), BytesIn: p.bytesIn.Load(),
		}}
		if endpoint := p.endpoint.Load(); endpoint != nil {
			s.Endpoint = endpoint.DstToString()
		}
		if p.ipv4 != [4]byte{} {
			s.IPv4 = p.IPv4.String()
		}
		if p.node != nil {
			s.NAT64 = natStats(d.nat.Counters(p.node))
		}
		all = append(all, s)
	}
	return all
}

func natStats(c nat64.NodeCounters) *NAT64Stats {
	return &NAT64Stats{
		Address: c.UsedAddress.String(), Sessions: c.Sessions, Ports: c.Ports, SessionsCreated: c.SessionsCreated,
		Traffic: Traffic{PacketsOut: c.PacketsOut, BytesOut: c.BytesOut, PacketsIn: c.PacketsIn, BytesIn: c.BytesIn},
	}
}

// Totals are the counters of the gateway.
type Totals struct {
	Sessions                      int
	Handshakes, HandshakesDropped uint64
	Errors                        map[string]uint64 // of sockets and the TUN device
	Dropped                       map[string]uint64 // packets by reason
}

// Totals returns the counters of the gateway.
func (d *Dataplane) Totals() Totals {
	c := &d.counters
	t := Totals{
		Handshakes: c.handshakes.Load(), HandshakesDropped: c.handshakesDropped.Load(),
		Errors: map[string]uint64{
			"receive": c.receiveErrors.Load(), "send": c.sendErrors.Load(), "write_tun": c.writeErrors.Load(),
			"segments": c.tooManySegments.Load(),
		},
		Dropped: map[string]uint64{
			"not_authentic": c.notAuthentic.Load(), "spoofed_source": c.spoofed.Load(), "unexpected": c.unexpected.Load(),
			"no_keys": c.noKeys.Load(),
		},
	}
	if d.nat != nil {
		d.natMu.Lock()
		defer d.natMu.Unlock()
		t.Sessions = d.nat.Sessions()
		for _, reason := range nat64.Reasons() {
			t.Dropped[reason.String()] = d.nat.Dropped(reason)
		}
	}
	return t
}
