package nat64

import (
	"net/netip"
	"time"
)

// Node is a node with its limits and counters. Its methods are as little safe for concurrent use as
// those of Translator.
type Node struct {
	name     string
	address  int // of the pool
	bindings *binding
	sessions int
	ports    int
	tracked  int    // fragmented packets
	bucket   bucket // new sessions
	errors   bucket // ICMP errors to the node
	counters NodeCounters
}

// NodeCounters are totals since the node was added, and the state of now.
type NodeCounters struct {
	Sessions, Ports      int
	SessionsCreated      uint64
	PacketsOut, BytesOut uint64 // from the node to IPv4
	PacketsIn, BytesIn   uint64 // from IPv4 to the node
	UsedAddress          netip.Addr
}

// Counters returns the counters of a node.
func (t *Translator) Counters(n *Node) NodeCounters {
	c := n.counters
	c.Sessions, c.Ports = n.sessions, n.ports
	c.UsedAddress = netip.AddrFrom4(t.pool.addresses[n.address])
	return c
}

// Name returns the name that the node was added with.
func (n *Node) Name() string { return n.name }

// bucket is a token bucket in nanoseconds: the time at which it is full.
type bucket struct {
	full time.Duration
}

// take removes a token, of which there are rate a second and at most as many at once.
func (b *bucket) take(now time.Duration, rate int) bool {
	cost := time.Second / time.Duration(rate)
	full := max(b.full, now) + cost
	if full-now > time.Second {
		return false
	}
	b.full = full
	return true
}

// AddNode adds a node. All of its bindings are at one address of the pool, which its name selects, so
// that a server sees one address for a node (RFC 4787, "paired") and a restart keeps it.
func (t *Translator) AddNode(name string) *Node {
	return &Node{name: name, address: int(hash(name) % uint64(len(t.pool.addresses)))}
}

// RemoveNode ends all sessions of a node.
func (t *Translator) RemoveNode(n *Node) {
	for n.bindings != nil {
		t.endBinding(n.bindings)
	}
}

// hash is FNV-1a, which does not change between versions.
func hash(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}
