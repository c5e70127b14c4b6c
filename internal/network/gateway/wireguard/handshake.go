package wireguard

import (
	"encoding/binary"
	"io"
	"time"
)

// Outcome is what Handshake has done with a message.
type Outcome struct {
	// Reply is a datagram for the source of the message; it may be nil.
	Reply []byte
	// Peer is the peer that the message has been authenticated for; nil if none.
	Peer *Peer
}

// Handshake handles a datagram that is not of the transport, from a source address. Under load, only
// senders that have shown that they receive at their address are answered.
func (t *Tunnel) Handshake(message, source []byte, underLoad bool, now time.Time) Outcome {
	if len(message) < 4 || message[1]|message[2]|message[3] != 0 {
		return Outcome{}
	}
	switch {
	case message[0] == typeInitiation && len(message) == sizeInitiation,
		message[0] == typeResponse && len(message) == sizeResponse:
	case message[0] == typeCookie && len(message) == sizeCookie:
		t.learnCookie(message, now)
		return Outcome{}
	default:
		return Outcome{}
	}
	if reply, ok := t.checkMACs(message, source, underLoad, now); !ok {
		return Outcome{Reply: reply}
	}
	if message[0] == typeResponse {
		return t.consumeResponse(message, now)
	}
	return t.respond(message, now)
}

func (t *Tunnel) checkMACs(message, source []byte, underLoad bool, now time.Time) (cookie []byte, ok bool) {
	t.gateMu.Lock()
	defer t.gateMu.Unlock()
	moment := t.seconds(now)
	if !t.gate.firstMAC(message) {
		return nil, false
	}
	if !underLoad || t.gate.secondMAC(message, source, moment) {
		return nil, true
	}
	cookie, err := t.gate.cookieReply(t.random, message, source, moment)
	if err != nil {
		return nil, false
	}
	return cookie, false
}

// respond answers an initiation of a known peer.
func (t *Tunnel) respond(message []byte, now time.Time) Outcome {
	i, err := readInitiation(t.private, t.public, message)
	if err != nil {
		return Outcome{}
	}
	t.mu.RLock()
	p := t.peers[i.static]
	t.mu.RUnlock()
	if p == nil {
		return Outcome{}
	}
	stamp, err := i.finish(p.staticStatic)
	if err != nil {
		return Outcome{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !stamp.after(p.lastStamp) {
		return Outcome{} // a replay
	}
	ephemeral, err := NewPrivateKey(t.random)
	if err != nil {
		return Outcome{}
	}
	s := &session{peer: p, remote: i.sender, created: t.seconds(now)}
	if !t.index(s) {
		return Outcome{}
	}
	reply := make([]byte, sizeResponse)
	if err := i.writeResponse(reply, ephemeral, s.local); err != nil {
		t.forget(s)
		return Outcome{}
	}
	p.lastStamp = stamp
	s.receive, s.send = i.symmetric.transportKeys()
	t.forget(p.next)
	p.next = s
	p.stamper.stamp(p.key, reply, t.seconds(now))
	return Outcome{Reply: reply, Peer: p}
}

// index gives a session an unused index, unless its peer has been removed meanwhile.
func (t *Tunnel) index(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers[s.peer.key] != s.peer {
		return false
	}
	local, ok := t.freeIndex()
	if ok {
		s.local = local
		t.indexes[local] = s
	}
	return ok
}

// freeIndex returns a random index that is not in use. The caller holds the lock of the tunnel.
func (t *Tunnel) freeIndex() (uint32, bool) {
	var b [4]byte
	for {
		if _, err := io.ReadFull(t.random, b[:]); err != nil {
			return 0, false
		}
		index := binary.LittleEndian.Uint32(b[:])
		if index != 0 && t.indexes[index] == nil && t.pending[index] == nil {
			return index, true
		}
	}
}

// attempt is a handshake that we have begun, or want to begin.
type attempt struct {
	wanted    seconds // since when; 0 if not wanted
	sent      seconds // the last initiation; 0 if there is none
	index     uint32
	ephemeral PrivateKey
	symmetric symmetric
}

// want asks for a handshake at the next Tick.
func (p *Peer) want(now seconds) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt.wanted == 0 {
		p.attempt.wanted = now
	}
}

// initiate writes an initiation. The caller holds the lock of the peer.
func (t *Tunnel) initiate(p *Peer, now time.Time) []byte {
	ephemeral, err := NewPrivateKey(t.random)
	if err != nil {
		return nil
	}
	t.mu.Lock()
	delete(t.pending, p.attempt.index)
	index, ok := t.freeIndex()
	if ok = ok && t.peers[p.key] == p; ok {
		t.pending[index] = p
	}
	t.mu.Unlock()
	if !ok {
		return nil
	}
	message := make([]byte, sizeInitiation)
	state, err := writeInitiation(message, t.private, ephemeral, p.key, p.staticStatic, index, newTimestamp(now))
	if err != nil {
		return nil
	}
	a := &p.attempt
	a.sent, a.index, a.ephemeral, a.symmetric = t.seconds(now), index, ephemeral, state
	p.stamper.stamp(p.key, message, t.seconds(now))
	return message
}

// endAttempt forgets our initiation. The caller holds the lock of the peer.
func (t *Tunnel) endAttempt(p *Peer) {
	if p.attempt.sent != 0 {
		t.mu.Lock()
		if t.pending[p.attempt.index] == p {
			delete(t.pending, p.attempt.index)
		}
		t.mu.Unlock()
	}
	p.attempt = attempt{}
}

// waiting returns the peer whose response or cookie a message may be.
func (t *Tunnel) waiting(message []byte, position int) (*Peer, uint32) {
	index := binary.LittleEndian.Uint32(message[position:])
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pending[index], index
}

// consumeResponse finishes a handshake of ours. The reply is a keepalive, which confirms the keys.
func (t *Tunnel) consumeResponse(message []byte, now time.Time) Outcome {
	p, index := t.waiting(message, 8)
	if p == nil {
		return Outcome{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt.sent == 0 || p.attempt.index != index {
		return Outcome{}
	}
	state, err := readResponse(p.attempt.symmetric, t.private, p.attempt.ephemeral, message)
	if err != nil {
		return Outcome{}
	}
	moment := t.seconds(now)
	s := &session{peer: p, local: index, remote: binary.LittleEndian.Uint32(message[4:]), initiator: true, created: moment}
	s.send, s.receive = state.transportKeys()
	if !t.adopt(s) {
		return Outcome{}
	}
	t.endAttempt(p)
	t.forget(p.next)
	p.next = nil
	t.rotate(p, s, moment)
	p.received.Store(int64(moment))
	p.silent.Store(0)
	return Outcome{Reply: s.seal(make([]byte, Overhead), 0, t.mtu), Peer: p}
}

// adopt turns the index of an initiation into that of its session, unless the peer has been removed
// meanwhile.
func (t *Tunnel) adopt(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers[s.peer.key] != s.peer {
		return false
	}
	delete(t.pending, s.local)
	t.indexes[s.local] = s
	return true
}

// learnCookie keeps a cookie for the next initiation.
func (t *Tunnel) learnCookie(message []byte, now time.Time) {
	p, _ := t.waiting(message, 4)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stamper.learn(p.key, message, t.seconds(now))
}
