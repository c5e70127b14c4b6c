package wireguard

import (
	"crypto/hmac"
	"encoding/binary"
	"io"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

const (
	macSize       = 16
	cookieSeconds = 120 // lifetime of cookies and of their secret
)

func labelled(label string, key PublicKey) [blake2s.Size]byte {
	return blake2s.Sum256(append([]byte(label), key[:]...))
}

// shortMAC is keyed BLAKE2s of 16 bytes.
func shortMAC(key []byte, parts ...[]byte) (sum [macSize]byte) {
	h, _ := blake2s.New128(key)
	for _, part := range parts {
		h.Write(part)
	}
	h.Sum(sum[:0])
	return sum
}

// gate checks the MACs of handshake messages that arrive. Without load, the first one suffices: it
// proves that the sender knows our public key. Under load, senders must show that they receive at
// their address, by the cookie in the second one.
type gate struct {
	key, cookieKey [blake2s.Size]byte
	secret         [blake2s.Size]byte
	secretSince    seconds
}

func newGate(public PublicKey) gate {
	return gate{key: labelled("mac1----", public), cookieKey: labelled("cookie--", public)}
}

func (g *gate) firstMAC(message []byte) bool {
	end := len(message) - 2*macSize
	want := shortMAC(g.key[:], message[:end])
	return hmac.Equal(want[:], message[end:end+macSize])
}

func (g *gate) secondMAC(message, source []byte, now seconds) bool {
	if g.secretSince == 0 || now-g.secretSince > cookieSeconds {
		return false
	}
	cookie := shortMAC(g.secret[:], source)
	end := len(message) - macSize
	want := shortMAC(cookie[:], message[:end])
	return hmac.Equal(want[:], message[end:])
}

// cookieReply returns a message with the cookie for a source address.
func (g *gate) cookieReply(random io.Reader, message, source []byte, now seconds) ([]byte, error) {
	if g.secretSince == 0 || now-g.secretSince > cookieSeconds {
		if _, err := io.ReadFull(random, g.secret[:]); err != nil {
			return nil, err
		}
		g.secretSince = now
	}
	reply := make([]byte, sizeCookie)
	binary.LittleEndian.PutUint32(reply, typeCookie)
	copy(reply[4:8], message[4:8])
	if _, err := io.ReadFull(random, reply[8:32]); err != nil {
		return nil, err
	}
	cookie := shortMAC(g.secret[:], source)
	c, err := chacha20poly1305.NewX(g.cookieKey[:])
	if err != nil {
		return nil, err
	}
	first := message[len(message)-2*macSize : len(message)-macSize]
	c.Seal(reply[32:32], reply[8:32], cookie[:], first)
	return reply, nil
}

// stamper adds the MACs to our own handshake messages.
type stamper struct {
	lastMAC     [macSize]byte
	cookie      [macSize]byte
	cookieSince seconds
}

func (s *stamper) stamp(peer PublicKey, message []byte, now seconds) {
	end := len(message) - 2*macSize
	key := labelled("mac1----", peer)
	s.lastMAC = shortMAC(key[:], message[:end])
	copy(message[end:], s.lastMAC[:])
	if s.cookieSince != 0 && now-s.cookieSince < cookieSeconds {
		second := shortMAC(s.cookie[:], message[:end+macSize])
		copy(message[end+macSize:], second[:])
	}
}

// learn keeps the cookie of a reply to our last message.
func (s *stamper) learn(peer PublicKey, reply []byte, now seconds) bool {
	key := labelled("cookie--", peer)
	c, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		return false
	}
	cookie, err := c.Open(nil, reply[8:32], reply[32:], s.lastMAC[:])
	if err != nil {
		return false
	}
	s.cookie, s.cookieSince = [macSize]byte(cookie), now
	return true
}
