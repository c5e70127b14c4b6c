package wireguard

import (
	"crypto/cipher"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"hash"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

const (
	typeInitiation = 1
	typeResponse   = 2
	typeCookie     = 3
	typeTransport  = 4

	sizeInitiation = 148
	sizeResponse   = 92
	sizeCookie     = 64

	construction = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
	identifier   = "WireGuard v1 zx2c4 Jason@zx2c4.com"
)

var (
	errHandshake = errors.New("handshake message is not authentic")
	zeroNonce    [chacha20poly1305.NonceSize]byte
	noPSK        [KeySize]byte // pre-shared keys are not used: nodes prove themselves by certificates
	initialChain = blake2s.Sum256([]byte(construction))
	initialHash  = blake2s.Sum256(append(initialChain[:], identifier...))
)

// symmetric is the state of a Noise handshake: chaining key and hash of the transcript.
type symmetric struct {
	chain, hash [blake2s.Size]byte
}

func newSymmetric(responder PublicKey) symmetric {
	s := symmetric{chain: initialChain, hash: initialHash}
	s.mixHash(responder[:])
	return s
}

func (s *symmetric) mixHash(data []byte) {
	h, _ := blake2s.New256(nil) // fails only for long keys
	h.Write(s.hash[:])
	h.Write(data)
	h.Sum(s.hash[:0])
}

// mixKey mixes a secret into the chaining key and returns further outputs of the key derivation.
func (s *symmetric) mixKey(secret []byte, outputs int) [2][KeySize]byte {
	var derived [2][KeySize]byte
	root := mac(s.chain[:], secret)
	last := mac(root[:], []byte{1})
	s.chain = last
	for i := range outputs {
		last = mac(root[:], append(last[:], byte(i+2)))
		derived[i] = last
	}
	return derived
}

// mac is HMAC-BLAKE2s.
func mac(key, data []byte) (sum [blake2s.Size]byte) {
	m := hmac.New(func() hash.Hash { h, _ := blake2s.New256(nil); return h }, key)
	m.Write(data)
	m.Sum(sum[:0])
	return sum
}

func aead(key [KeySize]byte) cipher.AEAD {
	c, _ := chacha20poly1305.New(key[:]) // fails only for other sizes of keys
	return c
}

// seal encrypts a field of a handshake message in its place and mixes it into the transcript.
func (s *symmetric) seal(key [KeySize]byte, destination, plaintext []byte) {
	aead(key).Seal(destination[:0], zeroNonce[:], plaintext, s.hash[:])
	s.mixHash(destination)
}

// open decrypts a field of a handshake message.
func (s *symmetric) open(key [KeySize]byte, field []byte) ([]byte, error) {
	plaintext, err := aead(key).Open(nil, zeroNonce[:], field, s.hash[:])
	if err != nil {
		return nil, errHandshake
	}
	s.mixHash(field)
	return plaintext, nil
}

// timestamp is a TAI64N label, with nanoseconds coarse enough not to reveal timing.
type timestamp [12]byte

func newTimestamp(now time.Time) (t timestamp) {
	binary.BigEndian.PutUint64(t[:], 0x400000000000000a+uint64(now.Unix()))
	binary.BigEndian.PutUint32(t[8:], uint32(now.Nanosecond())&^0xffffff)
	return t
}

func (t timestamp) after(other timestamp) bool { return string(t[:]) > string(other[:]) }

// initiation is what a responder learns from an initiation.
type initiation struct {
	symmetric symmetric
	sender    uint32
	ephemeral [KeySize]byte
	static    PublicKey
	field     [12 + chacha20poly1305.Overhead]byte // the encrypted timestamp
}

// readInitiation decrypts the identity of the initiator.
func readInitiation(private PrivateKey, public PublicKey, message []byte) (*initiation, error) {
	i := &initiation{
		symmetric: newSymmetric(public), sender: binary.LittleEndian.Uint32(message[4:]),
		ephemeral: [KeySize]byte(message[8:40]), field: [28]byte(message[88:116]),
	}
	i.symmetric.mixHash(i.ephemeral[:])
	i.symmetric.mixKey(i.ephemeral[:], 0)
	shared, err := private.shared(i.ephemeral[:])
	if err != nil {
		return nil, errHandshake
	}
	key := i.symmetric.mixKey(shared, 1)[0]
	static, err := i.symmetric.open(key, message[40:88])
	if err != nil {
		return nil, err
	}
	i.static = PublicKey(static)
	return i, nil
}

// finish authenticates the initiator and returns its timestamp.
func (i *initiation) finish(staticStatic []byte) (timestamp, error) {
	key := i.symmetric.mixKey(staticStatic, 1)[0]
	stamp, err := i.symmetric.open(key, i.field[:])
	if err != nil {
		return timestamp{}, err
	}
	return timestamp(stamp), nil
}

// writeInitiation writes an initiation without its MACs and returns the state for the response.
func writeInitiation(message []byte, private, ephemeral PrivateKey, peer PublicKey, staticStatic []byte, sender uint32, stamp timestamp) (symmetric, error) {
	s := newSymmetric(peer)
	public, own := ephemeral.Public(), private.Public()
	binary.LittleEndian.PutUint32(message, typeInitiation)
	binary.LittleEndian.PutUint32(message[4:], sender)
	copy(message[8:40], public[:])
	s.mixHash(public[:])
	s.mixKey(public[:], 0)
	shared, err := ephemeral.shared(peer[:])
	if err != nil {
		return s, err
	}
	s.seal(s.mixKey(shared, 1)[0], message[40:88], own[:])
	s.seal(s.mixKey(staticStatic, 1)[0], message[88:116], stamp[:])
	return s, nil
}

// writeResponse writes a response without its MACs.
func (i *initiation) writeResponse(message []byte, ephemeral PrivateKey, sender uint32) error {
	s := &i.symmetric
	public := ephemeral.Public()
	binary.LittleEndian.PutUint32(message, typeResponse)
	binary.LittleEndian.PutUint32(message[4:], sender)
	binary.LittleEndian.PutUint32(message[8:], i.sender)
	copy(message[12:44], public[:])
	s.mixHash(public[:])
	s.mixKey(public[:], 0)
	for _, other := range [][]byte{i.ephemeral[:], i.static[:]} {
		shared, err := ephemeral.shared(other)
		if err != nil {
			return errHandshake
		}
		s.mixKey(shared, 0)
	}
	derived := s.mixKey(noPSK[:], 2)
	s.mixHash(derived[0][:])
	s.seal(derived[1], message[44:60], nil)
	return nil
}

// readResponse authenticates a response to an initiation with the given state.
func readResponse(s symmetric, private, ephemeral PrivateKey, message []byte) (symmetric, error) {
	public := message[12:44]
	s.mixHash(public)
	s.mixKey(public, 0)
	for _, own := range []PrivateKey{ephemeral, private} {
		shared, err := own.shared(public)
		if err != nil {
			return s, errHandshake
		}
		s.mixKey(shared, 0)
	}
	derived := s.mixKey(noPSK[:], 2)
	s.mixHash(derived[0][:])
	_, err := s.open(derived[1], message[44:60])
	return s, err
}

// transportKeys returns the keys from the initiator and from the responder.
func (s *symmetric) transportKeys() (fromInitiator, fromResponder cipher.AEAD) {
	root := mac(s.chain[:], nil)
	first := mac(root[:], []byte{1})
	second := mac(root[:], append(first[:], 2))
	return aead(first), aead(second)
}
