package wireguard

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Tunnel is our end of all tunnels. Its methods may be called concurrently. The time that they take
// is of the wall clock, with the monotonic reading of time.Now.
type Tunnel struct {
	private PrivateKey
	public  PublicKey
	random  io.Reader
	mtu     int
	start   time.Time

	gateMu sync.Mutex
	gate   gate

	mu      sync.RWMutex
	peers   map[PublicKey]*Peer
	indexes map[uint32]*session // of transport keys
	pending map[uint32]*Peer    // of our initiations
}

// Peer is the other end of a tunnel.
type Peer struct {
	key          PublicKey
	tag          any
	staticStatic []byte

	current  atomic.Pointer[session] // for sending
	sent     atomic.Int64            // when the last datagram was encrypted
	received atomic.Int64            // when the last authentic datagram arrived
	silent   atomic.Int64            // since when we have sent packets without any datagram back
	owed     atomic.Int64            // since when a packet has arrived without any datagram back

	mu        sync.Mutex
	next      *session // of a response of ours that the initiator has not used yet
	previous  *session
	replaced  seconds // when previous was current
	lastStamp timestamp
	stamper   stamper
	attempt   attempt
}

// New returns a tunnel without peers. The MTU is that of packets in the tunnel.
func New(private PrivateKey, random io.Reader, mtu int, now time.Time) *Tunnel {
	public := private.Public()
	return &Tunnel{
		private: private, public: public, random: random, mtu: mtu, start: now.Add(-time.Second), gate: newGate(public),
		peers: map[PublicKey]*Peer{}, indexes: map[uint32]*session{}, pending: map[uint32]*Peer{},
	}
}

// Public returns our public key.
func (t *Tunnel) Public() PublicKey { return t.public }

func (t *Tunnel) seconds(now time.Time) seconds { return seconds(now.Sub(t.start) / time.Second) }

// AddPeer adds a peer, with a tag for the caller.
func (t *Tunnel) AddPeer(key PublicKey, tag any) (*Peer, error) {
	shared, err := t.private.shared(key[:])
	if err != nil {
		return nil, fmt.Errorf("WireGuard peer %v: not a public key", key)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers[key] != nil || key == t.public {
		return nil, fmt.Errorf("WireGuard peer %v: the key is in use", key)
	}
	p := &Peer{key: key, tag: tag, staticStatic: shared}
	t.peers[key] = p
	return p, nil
}

// RemovePeer forgets a peer and its keys. Datagrams from it are dropped from now on.
func (t *Tunnel) RemovePeer(p *Peer) {
	t.mu.Lock()
	if t.peers[p.key] == p {
		delete(t.peers, p.key)
	}
	t.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	t.endAttempt(p)
	t.forget(p.next, p.previous, p.current.Load())
	p.next, p.previous = nil, nil
	p.current.Store(nil)
}

// forget removes the indexes of sessions; nil ones are skipped.
func (t *Tunnel) forget(sessions ...*session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sessions {
		if s != nil && t.indexes[s.local] == s {
			delete(t.indexes, s.local)
		}
	}
}

// Tag returns what the peer was added with.
func (p *Peer) Tag() any { return p.tag }

// LastStamp returns the timestamp of the last initiation, for SetLastStamp after a restart.
func (p *Peer) LastStamp() [12]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastStamp
}

// SetLastStamp rejects initiations that are not newer, so that a recording of one is of no use after a
// restart.
func (p *Peer) SetLastStamp(stamp [12]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastStamp = stamp
}

// IsTransport tells datagrams for Open from those for Handshake.
func IsTransport(datagram []byte) bool {
	return len(datagram) >= Overhead && datagram[0] == typeTransport && datagram[1]|datagram[2]|datagram[3] == 0
}

// Open decrypts a datagram in place. The packet is empty for keepalives; it may be padded. The peer is
// nil if the datagram must be dropped.
func (t *Tunnel) Open(datagram []byte, now time.Time) (*Peer, []byte) {
	t.mu.RLock()
	s := t.indexes[binary.LittleEndian.Uint32(datagram[4:])]
	t.mu.RUnlock()
	moment := t.seconds(now)
	if s == nil || moment-s.created >= rejectAfter {
		return nil, nil
	}
	packet, ok := s.open(datagram)
	if !ok {
		return nil, nil
	}
	p := s.peer
	p.received.Store(int64(moment))
	p.silent.Store(0)
	if len(packet) > 0 && p.owed.Load() == 0 {
		p.owed.Store(int64(moment))
	}
	if s != p.current.Load() {
		t.confirm(p, s, moment)
	}
	return p, packet
}

// confirm makes a session current that we have made with a response, as soon as the initiator has used
// it.
func (t *Tunnel) confirm(p *Peer, s *session, now seconds) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == s {
		p.next = nil
		t.rotate(p, s, now)
	}
}

// rotate replaces the session for sending. The caller holds the lock of the peer.
func (t *Tunnel) rotate(p *Peer, s *session, now seconds) {
	t.forget(p.previous)
	p.previous, p.replaced = p.current.Load(), now
	p.current.Store(s)
}

// Seal encrypts the packet buffer[HeaderSize:HeaderSize+length] for a peer in place. The buffer must
// have padding and Overhead more bytes than the packet. It is nil if there are no keys; Tick then
// begins a handshake.
func (t *Tunnel) Seal(p *Peer, buffer []byte, length int, now time.Time) []byte {
	s := p.current.Load()
	moment := t.seconds(now)
	if !s.usable(moment) {
		p.want(moment)
		return nil
	}
	p.owed.Store(0)
	p.sent.Store(int64(moment))
	if length > 0 && p.silent.Load() == 0 {
		p.silent.Store(int64(moment))
	}
	return s.seal(buffer, length, t.mtu)
}
