// Package registry decides which nodes are peers of the gateway: nodes that exist, that have proved their
// name, and whose certificate and registration have not ended. It is pure: events and the time go in, peers
// are added to and removed from a data plane.
package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// Node is a node that exists in the cluster.
type Node struct {
	Name string
	// Prefixes are the IPv6 addresses that the node may send from.
	Prefixes []netip.Prefix
}

// Peer is a node that is connected to the gateway.
type Peer struct {
	Node
	Key wireguard.PublicKey
	// IPv4 is the address of the node in the tunnel; invalid without masquerading.
	IPv4 netip.Addr
}

// DataPlane is told about peers. Its methods are called with the registry locked.
type DataPlane interface {
	AddPeer(Peer) error
	RemovePeer(name string)
}

// Certificate is the certificate that a node has proved itself with.
type Certificate struct {
	Serial  string // decimal
	Expires time.Time
}

// Registration is a peer with the reasons for which it may end.
type Registration struct {
	Peer
	Certificate Certificate
	// Renewed is when the node has registered last.
	Renewed time.Time
}

// Config bounds the registry.
type Config struct {
	// MaxPeers is the most nodes that are connected at a time.
	MaxPeers int
	// TTL is for how long a registration holds without a renewal.
	TTL time.Duration
	// IPv4 is the range of addresses in the tunnel; invalid without masquerading. Its first and last
	// addresses are not used.
	IPv4 netip.Prefix
}

// The reasons for which a registration is refused. They are wrapped with the details.
var (
	ErrUnknownNode = errors.New("node does not exist")
	ErrNoPrefix    = errors.New("node has no IPv6 prefix")
	ErrConflict    = errors.New("conflict with another node")
	ErrFull        = errors.New("gateway is full")
)

// Registry keeps nodes and registrations. Its methods may be called concurrently.
type Registry struct {
	config Config
	plane  DataPlane

	mu         sync.Mutex
	nodes      map[string]Node
	registered map[string]*Registration
	keys       map[wireguard.PublicKey]string
	addresses  map[netip.Addr]string
	prefixes   owners
	removed    map[string]uint64 // peers by the reason of their removal
}

// New returns a registry without nodes.
func New(config Config, plane DataPlane) *Registry {
	return &Registry{
		config: config, plane: plane,
		nodes: map[string]Node{}, registered: map[string]*Registration{},
		keys: map[wireguard.PublicKey]string{}, addresses: map[netip.Addr]string{},
		removed: map[string]uint64{},
	}
}

// SetNode adds a node, or changes its prefixes. A peer whose prefixes change is connected again: its
// connections end, because their addresses are no longer those of the node.
func (r *Registry) SetNode(node Node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	node.Prefixes = outermost(node.Prefixes)
	if slices.Equal(r.nodes[node.Name].Prefixes, node.Prefixes) && r.nodes[node.Name].Name != "" {
		return nil
	}
	r.nodes[node.Name] = node
	registration := r.registered[node.Name]
	if registration == nil {
		return nil
	}
	r.remove(registration, "prefix_changed")
	registration.Prefixes = node.Prefixes
	if err := r.check(registration.Peer); err != nil {
		return err
	}
	return r.add(registration)
}

// DeleteNode removes a node and its peer.
func (r *Registry) DeleteNode(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
	if registration := r.registered[name]; registration != nil {
		r.remove(registration, "node_deleted")
	}
}

// Register connects a node that has proved its name, or renews its registration. A node that comes with
// another key replaces its own peer.
func (r *Registry) Register(name string, key wireguard.PublicKey, certificate Certificate, now time.Time) (Registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node, known := r.nodes[name]
	if !known {
		return Registration{}, fmt.Errorf("node %s: %w", name, ErrUnknownNode)
	}
	previous := r.registered[name]
	if previous != nil && previous.Key == key {
		previous.Renewed, previous.Certificate = now, certificate
		return *previous, nil
	}
	registration := &Registration{Peer: Peer{Node: node, Key: key}, Certificate: certificate, Renewed: now}
	if err := r.check(registration.Peer); err != nil {
		return Registration{}, err
	}
	if previous == nil && len(r.registered) >= r.config.MaxPeers {
		return Registration{}, fmt.Errorf("node %s: %w: %d nodes are connected; use another gateway", name, ErrFull, r.config.MaxPeers)
	}
	if previous != nil {
		registration.IPv4 = previous.IPv4
		r.remove(previous, "key_changed")
	}
	if err := r.assign(registration); err != nil {
		return Registration{}, err
	}
	if err := r.add(registration); err != nil {
		return Registration{}, err
	}
	return *registration, nil
}

// check finds conflicts with other peers.
func (r *Registry) check(p Peer) error {
	if len(p.Prefixes) == 0 {
		return fmt.Errorf("node %s: %w: wait until it has one", p.Name, ErrNoPrefix)
	}
	if other := r.keys[p.Key]; other != "" && other != p.Name {
		return fmt.Errorf("node %s: %w: node %s uses the same WireGuard key", p.Name, ErrConflict, other)
	}
	if theirs, own, found := r.prefixes.overlapping(p.Name, p.Prefixes); found {
		return fmt.Errorf("node %s: %w: prefix %v overlaps with %v of node %s", p.Name, ErrConflict, own, theirs.prefix, theirs.name)
	}
	return nil
}

func (r *Registry) add(registration *Registration) error {
	if err := r.plane.AddPeer(registration.Peer); err != nil {
		return fmt.Errorf("node %s: %w", registration.Name, err)
	}
	r.registered[registration.Name] = registration
	r.keys[registration.Key] = registration.Name
	r.prefixes.add(registration.Name, registration.Prefixes)
	if registration.IPv4.IsValid() {
		r.addresses[registration.IPv4] = registration.Name
	}
	return nil
}

func (r *Registry) remove(registration *Registration, reason string) {
	r.plane.RemovePeer(registration.Name)
	delete(r.registered, registration.Name)
	delete(r.keys, registration.Key)
	r.prefixes.remove(registration.Name, registration.Prefixes)
	delete(r.addresses, registration.IPv4)
	r.removed[reason]++
}

// Leave disconnects a node that asks for it.
func (r *Registry) Leave(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	registration := r.registered[name]
	if registration == nil {
		return false
	}
	r.remove(registration, "left")
	return true
}

// Expire disconnects nodes whose certificate has ended or is revoked, and those that have not renewed
// their registration. Call it every few seconds.
func (r *Registry) Expire(now time.Time, revoked func(serial string) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, registration := range r.registered {
		reason := ""
		switch {
		case revoked(registration.Certificate.Serial):
			reason = "certificate_revoked"
		case !now.Before(registration.Certificate.Expires):
			reason = "certificate_expired"
		case now.Sub(registration.Renewed) > r.config.TTL:
			reason = "not_renewed"
		default:
			continue
		}
		r.remove(registration, reason)
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Registrations returns all registrations, sorted by name.
func (r *Registry) Registrations() []Registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Registration, 0, len(r.registered))
	for _, registration := range r.registered {
		all = append(all, *registration)
	}
	slices.SortFunc(all, func(a, b Registration) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Restore connects a node as before a restart, although it may not be known yet. If it has been deleted
// meanwhile, the source of nodes must say so with DeleteNode.
func (r *Registry) Restore(registration Registration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	registration.Prefixes = outermost(registration.Prefixes)
	if err := r.check(registration.Peer); err != nil {
		return err
	}
	if r.registered[registration.Name] != nil || len(r.registered) >= r.config.MaxPeers {
		return fmt.Errorf("node %s: %w", registration.Name, ErrFull)
	}
	if !r.usable(registration.IPv4) {
		registration.IPv4 = netip.Addr{}
	}
	if err := r.assign(&registration); err != nil {
		return err
	}
	if err := r.add(&registration); err != nil {
		return err
	}
	r.nodes[registration.Name] = registration.Node
	return nil
}

// Names returns the names of all nodes.
func (r *Registry) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.nodes))
	for name := range r.nodes {
		names = append(names, name)
	}
	return names
}

// Counts returns the numbers of nodes and of peers, and of peers that were removed by reason.
func (r *Registry) Counts() (nodes, peers int, removed map[string]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	removed = make(map[string]uint64, len(r.removed))
	for reason, count := range r.removed {
		removed[reason] = count
	}
	return len(r.nodes), len(r.registered), removed
}
