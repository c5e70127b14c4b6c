package wireguard

import (
	"crypto/ecdh"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// KeySize is the size of all keys in bytes.
const KeySize = 32

// PublicKey identifies a peer.
type PublicKey [KeySize]byte

// PrivateKey is a clamped Curve25519 key.
type PrivateKey [KeySize]byte

// NewPrivateKey makes a key from random bytes.
func NewPrivateKey(random io.Reader) (PrivateKey, error) {
	var key PrivateKey
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("WireGuard key: %w", err)
	}
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key, nil
}

// Public returns the public key.
func (k PrivateKey) Public() PublicKey {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return PublicKey{} // the length is right, and X25519 has no other errors
	}
	return PublicKey(private.PublicKey().Bytes())
}

// shared is the Diffie-Hellman function. Public keys of small order are an error.
func (k PrivateKey) shared(public []byte) ([]byte, error) {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return nil, err
	}
	other, err := ecdh.X25519().NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	return private.ECDH(other)
}

// String returns the key in base64, as wg(8) does.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Text returns the key in base64, as wg(8) stores it. It is not String, so that logs do not contain it.
func (k PrivateKey) Text() string { return base64.StdEncoding.EncodeToString(k[:]) }

// String hides the key.
func (k PrivateKey) String() string { return "(private key)" }

// Hex returns the key as the configuration protocol of wireguard-go has it.
func (k PrivateKey) Hex() string { return hex.EncodeToString(k[:]) }

// Hex returns the key as the configuration protocol of wireguard-go has it.
func (k PublicKey) Hex() string { return hex.EncodeToString(k[:]) }

// ParsePublicKey reads a key in base64. Keys of small order are rejected: no peer can have one.
func ParsePublicKey(text string) (PublicKey, error) {
	key, err := parseKey(text)
	if err != nil {
		return PublicKey{}, err
	}
	if _, err := (PrivateKey{0: 8, 31: 64}).shared(key[:]); err != nil {
		return PublicKey{}, fmt.Errorf("WireGuard key: not a public key")
	}
	return PublicKey(key), nil
}

// ParsePrivateKey reads a key in base64.
func ParsePrivateKey(text string) (PrivateKey, error) {
	key, err := parseKey(text)
	return PrivateKey(key), err
}

func parseKey(text string) (key [KeySize]byte, err error) {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(data) != KeySize {
		return key, fmt.Errorf("WireGuard key: want 32 bytes in base64, as wg genkey prints")
	}
	return [KeySize]byte(data), nil
}
