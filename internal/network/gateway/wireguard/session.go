package wireguard

import (
	"crypto/cipher"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.zx2c4.com/wireguard/replay"
)

const (
	// HeaderSize is what precedes the packet in a datagram.
	HeaderSize = 16
	// Overhead is by how much a datagram is longer than the padded packet in it.
	Overhead = HeaderSize + chacha20poly1305.Overhead

	padding = 16

	// A key is used for 180 s; who began the handshake replaces it after 120 s (section 6.2 of the
	// WireGuard paper).
	rekeyAfter  = seconds(120)
	rejectAfter = seconds(180)
	maxMessages = 1<<64 - 1<<13 - 1
)

// seconds since the clock of the tunnel began, which is at 1, so that 0 means never.
type seconds int64

// session is a pair of transport keys.
type session struct {
	peer          *Peer
	local, remote uint32
	initiator     bool
	created       seconds
	send, receive cipher.AEAD
	sent          atomic.Uint64

	mu     sync.Mutex
	filter replay.Filter
}

func (s *session) usable(now seconds) bool {
	return s != nil && now-s.created < rejectAfter && s.sent.Load() < maxMessages
}

// seal encrypts the packet buffer[HeaderSize:HeaderSize+length] in place and returns the datagram. The
// buffer must have room for the padding and the tag. Padding does not make the packet longer than the MTU.
func (s *session) seal(buffer []byte, length, mtu int) []byte {
	counter := s.sent.Add(1) - 1
	padded := min((length+padding-1)&^(padding-1), max(length, mtu))
	clear(buffer[HeaderSize+length : HeaderSize+padded])
	binary.LittleEndian.PutUint32(buffer, typeTransport)
	binary.LittleEndian.PutUint32(buffer[4:], s.remote)
	binary.LittleEndian.PutUint64(buffer[8:], counter)
	var nonce [chacha20poly1305.NonceSize]byte
	binary.LittleEndian.PutUint64(nonce[4:], counter)
	body := s.send.Seal(buffer[HeaderSize:HeaderSize], nonce[:], buffer[HeaderSize:HeaderSize+padded], nil)
	return buffer[:HeaderSize+len(body)]
}

// open decrypts a datagram in place. It is false if the datagram is not authentic or a replay.
func (s *session) open(datagram []byte) ([]byte, bool) {
	counter := binary.LittleEndian.Uint64(datagram[8:])
	var nonce [chacha20poly1305.NonceSize]byte
	binary.LittleEndian.PutUint64(nonce[4:], counter)
	packet, err := s.receive.Open(datagram[HeaderSize:HeaderSize], nonce[:], datagram[HeaderSize:], nil)
	if err != nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return packet, s.filter.ValidateCounter(counter, maxMessages)
}
