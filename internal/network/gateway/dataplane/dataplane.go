// Package dataplane moves packets between the tunnels of nodes and the IPv4 network: it reads datagrams
// and a TUN device in batches and gives them to the pure packages wireguard and nat64.
//
// Three goroutines move packets (IPv4 and IPv6 datagrams, and the TUN device), one handles handshakes,
// and one the timers; no goroutine belongs to a peer.
//
//	dataplane.go  peers, start and end
//	inbound.go    from nodes to IPv4
//	outbound.go   from IPv4 to nodes
//	handshakes.go handshakes and timers
//	state.go      what a restart keeps
package dataplane

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

const (
	// offset is the room before each packet: for the header of a datagram, and for the one of the TUN device.
	offset = wireguard.HeaderSize
	// bufferSize holds the longest packet of a tunnel with padding and overhead. The TUN device joins segments of TCP as far
	// as the buffer reaches, so it must not be longer than an IP packet can be.
	bufferSize = 1<<16 - 1
	// joinedSize is the size of the other buffers, unless packets are longer: as many segments are joined to save system
	// calls. There are hundreds of such buffers, all of which are used with time.
	joinedSize = 16 << 10
	// handshakeQueue bounds the handshake messages that wait; more are dropped.
	handshakeQueue = 1024
	// underLoad is the length of the queue from which on senders must show their address by a cookie.
	underLoad = handshakeQueue / 8
	// initiationsPerSecond bounds the handshakes that the gateway begins, after a restart above all.
	initiationsPerSecond = 1000
)

// Config is the configuration of a data plane.
type Config struct {
	PrivateKey wireguard.PrivateKey
	// Port is the UDP port for tunnels; 0 for any.
	Port uint16
	// MTU is the longest packet in a tunnel.
	MTU int
	// NAT64 is nil if the gateway does not translate.
	NAT64 *nat64.Config
	// Masquerade is true if nodes may send IPv4 from their address in the tunnel.
	Masquerade bool
}

// Dataplane is a running data plane.
type Dataplane struct {
	config Config
	tunnel *wireguard.Tunnel
	bind   conn.Bind
	tun    tun.Device
	start  time.Time
	queue  chan handshake
	stop   chan struct{}
	failed chan error
	wait   sync.WaitGroup
	port   uint16

	mu     sync.RWMutex
	peers  map[string]*peer
	byIPv4 map[[4]byte]*peer

	natMu sync.Mutex // after mu
	nat   *nat64.Translator
	nodes map[*nat64.Node]*peer

	counters counters
}

// peer is a node that is connected.
type peer struct {
	registry.Peer
	tunnel   *wireguard.Peer
	node     *nat64.Node // nil without NAT64
	ipv4     [4]byte
	endpoint atomic.Pointer[conn.StdNetEndpoint]
	// Packets that are masqueraded; those of NAT64 are counted there.
	packetsOut, bytesOut, packetsIn, bytesIn atomic.Uint64
}

// New starts a data plane on a TUN device, which Close closes.
func New(config Config, device tun.Device) (*Dataplane, error) {
	d := &Dataplane{
		config: config, tun: device, start: time.Now(), bind: conn.NewDefaultBind(),
		tunnel: wireguard.New(config.PrivateKey, rand.Reader, config.MTU, time.Now()),
		queue:  make(chan handshake, handshakeQueue), stop: make(chan struct{}), failed: make(chan error, 1),
		peers: map[string]*peer{}, byIPv4: map[[4]byte]*peer{}, nodes: map[*nat64.Node]*peer{},
	}
	if config.NAT64 != nil {
		translator, err := nat64.New(*config.NAT64)
		if err != nil {
			return nil, err
		}
		d.nat = translator
	}
	receivers, port, err := d.bind.Open(config.Port)
	if err != nil {
		return nil, fmt.Errorf("UDP port %d for tunnels: %w", config.Port, err)
	}
	d.port = port
	for _, receive := range receivers {
		d.wait.Go(func() { d.inbound(receive) })
	}
	d.wait.Go(d.outbound)
	d.wait.Go(d.handshakes)
	d.wait.Go(d.timers)
	d.wait.Go(d.events)
	return d, nil
}

// Port returns the UDP port for tunnels.
func (d *Dataplane) Port() uint16 { return d.port }

// PublicKey returns the key that nodes must know.
func (d *Dataplane) PublicKey() wireguard.PublicKey { return d.tunnel.Public() }

// Failed receives an error if packets can no longer be moved.
func (d *Dataplane) Failed() <-chan error { return d.failed }

// Close stops moving packets and closes the TUN device.
func (d *Dataplane) Close() error {
	close(d.stop)
	err := errors.Join(d.bind.Close(), d.tun.Close())
	d.wait.Wait()
	return err
}

// fail reports an error that ends the data plane, unless it is being closed.
func (d *Dataplane) fail(err error) {
	select {
	case <-d.stop:
	case d.failed <- err:
	default:
	}
}

func (d *Dataplane) closing() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// events reads the events of the TUN device, which would block otherwise.
func (d *Dataplane) events() {
	for range d.tun.Events() {
	}
}

// since is the time of the translator.
func (d *Dataplane) since(now time.Time) time.Duration { return now.Sub(d.start) }

// AddPeer connects a node.
func (d *Dataplane) AddPeer(p registry.Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.peers[p.Name] != nil {
		return fmt.Errorf("peer %s exists", p.Name)
	}
	// A packet may arrive as soon as the tunnel knows the peer, so that comes last.
	added := &peer{Peer: p}
	if p.IPv4.IsValid() && d.config.Masquerade {
		added.ipv4 = p.IPv4.As4()
	}
	d.addNode(added)
	var err error
	if added.tunnel, err = d.tunnel.AddPeer(p.Key, added); err != nil {
		d.removeNode(added)
		return err
	}
	d.peers[p.Name] = added
	if added.ipv4 != [4]byte{} {
		d.byIPv4[added.ipv4] = added
	}
	return nil
}

func (d *Dataplane) addNode(p *peer) {
	if d.nat == nil {
		return
	}
	d.natMu.Lock()
	defer d.natMu.Unlock()
	p.node = d.nat.AddNode(p.Name)
	d.nodes[p.node] = p
}

func (d *Dataplane) removeNode(p *peer) {
	if d.nat == nil {
		return
	}
	d.natMu.Lock()
	defer d.natMu.Unlock()
	d.nat.RemoveNode(p.node)
	delete(d.nodes, p.node)
}

// RemovePeer disconnects a node and ends its connections.
func (d *Dataplane) RemovePeer(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[name]
	if p == nil {
		return
	}
	d.tunnel.RemovePeer(p.tunnel)
	delete(d.peers, name)
	delete(d.byIPv4, p.ipv4)
	d.removeNode(p)
}

// owns is true if the peer may send from an IPv6 address.
func (p *peer) owns(source netip.Addr) bool {
	for _, prefix := range p.Prefixes {
		if prefix.Contains(source) {
			return true
		}
	}
	return false
}

// moved notes the address from which an authentic datagram of a peer came.
func (p *peer) moved(endpoint conn.Endpoint) {
	e, ok := endpoint.(*conn.StdNetEndpoint)
	if !ok {
		return
	}
	if old := p.endpoint.Load(); old == nil || old.AddrPort != e.AddrPort {
		p.endpoint.Store(e)
	}
}

// pause waits a moment after an error that may pass. It is false when the data plane closes.
func (d *Dataplane) pause() bool {
	select {
	case <-d.stop:
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
