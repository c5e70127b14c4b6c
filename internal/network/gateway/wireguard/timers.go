package wireguard

import "time"

const (
	keepaliveAfter  = seconds(10) // an answer is owed to every packet within this time
	rekeyTimeout    = seconds(5)  // between initiations
	giveUpAfter     = seconds(90) // without a response
	unansweredAfter = keepaliveAfter + rekeyTimeout
	renewReceiving  = rejectAfter - keepaliveAfter - rekeyTimeout
	keepPrevious    = seconds(10) // for datagrams that are overtaken by those with newer keys
	forgetAfter     = 3 * rejectAfter
)

// Datagram is something to send to a peer.
type Datagram struct {
	Peer *Peer
	Data []byte
}

// Tick does what is due: keepalives, handshakes, forgetting keys. Call it once a second. At most limit
// handshakes are begun in one call; the others follow in the next ones.
func (t *Tunnel) Tick(now time.Time, limit int, send func(Datagram)) {
	t.mu.RLock()
	peers := make([]*Peer, 0, len(t.peers))
	for _, p := range t.peers {
		peers = append(peers, p)
	}
	t.mu.RUnlock()
	for _, p := range peers {
		if data, handshake := t.due(p, now, limit > 0); data != nil {
			if handshake {
				limit--
			}
			send(Datagram{Peer: p, Data: data})
		}
	}
}

// due returns what must be sent to a peer now.
func (t *Tunnel) due(p *Peer, now time.Time, mayInitiate bool) (data []byte, handshake bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	moment := t.seconds(now)
	t.expire(p, moment)
	if t.wantsHandshake(p, moment) && mayInitiate {
		return t.initiate(p, now), true
	}
	current := p.current.Load()
	owed := seconds(p.owed.Load())
	if owed != 0 && moment-owed >= keepaliveAfter && current.usable(moment) {
		p.owed.Store(0)
		return current.seal(make([]byte, Overhead), 0, t.mtu), false
	}
	return nil, false
}

// expire forgets keys that are no longer used. The caller holds the lock of the peer.
func (t *Tunnel) expire(p *Peer, now seconds) {
	if p.previous != nil && now-p.replaced >= keepPrevious {
		t.forget(p.previous)
		p.previous = nil
	}
	if p.next != nil && now-p.next.created >= rejectAfter {
		t.forget(p.next)
		p.next = nil
	}
	if s := p.current.Load(); s != nil && now-s.created >= forgetAfter {
		t.forget(s)
		p.current.Store(nil)
	}
}

// wantsHandshake is true if an initiation must be sent now. The caller holds the lock of the peer.
func (t *Tunnel) wantsHandshake(p *Peer, now seconds) bool {
	a := &p.attempt
	if a.wanted == 0 && t.needsKeys(p, now) {
		a.wanted = now
	}
	if a.wanted == 0 {
		return false
	}
	if now-a.wanted > giveUpAfter {
		t.endAttempt(p)
		p.silent.Store(0)
		return false
	}
	s := p.current.Load()
	if s != nil && s.created > a.wanted { // the peer has begun one meanwhile
		t.endAttempt(p)
		return false
	}
	return a.sent == 0 || now-a.sent >= rekeyTimeout
}

// needsKeys is true if the keys of a peer must be renewed by us: those that we have begun, if they are used
// after 120 s, and any if packets remain without an answer.
func (t *Tunnel) needsKeys(p *Peer, now seconds) bool {
	if silent := seconds(p.silent.Load()); silent != 0 && now-silent >= unansweredAfter {
		return true
	}
	s := p.current.Load()
	if s == nil || !s.initiator {
		return false
	}
	sent, received := seconds(p.sent.Load())-s.created, seconds(p.received.Load())-s.created
	return now-s.created < rejectAfter && (sent >= rekeyAfter || received >= renewReceiving)
}

// Wake asks for a handshake with a peer that has been in use before a restart.
func (t *Tunnel) Wake(p *Peer, now time.Time) { p.want(t.seconds(now)) }
