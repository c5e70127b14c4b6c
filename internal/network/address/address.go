// Package address has the arithmetic of the network's IPv6 prefixes: subnets of a prefix, addresses in it, the prefix that
// a node tries to get from a pool, and the range from which its pods get addresses. It is pure: no I/O and no clock.
package address

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
)

const (
	// PodBits is the length of the prefix from which the pods of a node get addresses: 2^32 addresses.
	PodBits = 96
	// reservedHosts addresses at the beginning of a pod prefix are not given to pods: the gateway of the pods is the
	// first of them, and a provider may choose one for the node.
	reservedHosts = 1 << 16
	addressBits   = 128
)

// number is an IPv6 address as a number.
type number struct{ hi, lo uint64 }

func toNumber(a netip.Addr) number {
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n number) addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

// plus returns n + m modulo 2^128.
func (n number) plus(m number) number {
	lo, carry := bits.Add64(n.lo, m.lo, 0)
	hi, _ := bits.Add64(n.hi, m.hi, carry)
	return number{hi, lo}
}

// minus returns n - m modulo 2^128.
func (n number) minus(m number) number {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	hi, _ := bits.Sub64(n.hi, m.hi, borrow)
	return number{hi, lo}
}

// shifted returns a number shifted to the left by a number of bits, 0 to 127.
func shifted(value uint64, by int) number {
	if by >= 64 {
		return number{hi: value << (by - 64)}
	}
	return number{hi: value >> (64 - by), lo: value << by}
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

// CheckPrefix returns an error if a prefix is not an IPv6 prefix of at most max bits.
func CheckPrefix(p netip.Prefix, max int) error {
	switch {
	case !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6():
		return fmt.Errorf("prefix %s: not an IPv6 prefix", p)
	case p.Bits() > max:
		return fmt.Errorf("prefix %s: longer than /%d", p, max)
	case p != p.Masked():
		return fmt.Errorf("prefix %s: has bits behind its length; write %s", p, p.Masked())
	}
	return nil
}

// Subnet returns the subnet of a prefix with a length and a number.
func Subnet(base netip.Prefix, length int, index uint64) (netip.Prefix, error) {
	if err := CheckPrefix(base, length); err != nil {
		return netip.Prefix{}, err
	}
	if length > addressBits {
		return netip.Prefix{}, fmt.Errorf("length %d: an IPv6 prefix has at most %d bits", length, addressBits)
	}
	if free := length - base.Bits(); free < 64 && index>>free != 0 {
		return netip.Prefix{}, fmt.Errorf("prefix %s has only %d subnets of length %d", base, uint64(1)<<free, length)
	}
	first := toNumber(base.Addr())
	if length > 0 && length < addressBits+1 && index != 0 {
		first = first.plus(shifted(index, addressBits-length))
	}
	return netip.PrefixFrom(first.addr(), length), nil
}

// Host returns the address with a number in a prefix. It panics if the prefix has no such address.
func Host(p netip.Prefix, index uint64) netip.Addr {
	a := toNumber(p.Masked().Addr()).plus(number{lo: index}).addr()
	if !p.Contains(a) {
		panic("prefix " + p.String() + " has no address number " + strconv.FormatUint(index, 10))
	}
	return a
}

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	size := shifted(1, addressBits-p.Bits()) // 0 for ::/0, whose last address is 2^128 - 1, too
	if p.Bits() == 0 {
		size = number{}
	}
	return toNumber(p.Masked().Addr()).plus(size).minus(number{lo: 1}).addr()
}

// Pods returns the prefix of a node's pods in what the provider gives the node: a /96 itself, or the second /96 of a shorter
// prefix. The first one has the addresses that providers give to the node.
func Pods(provided netip.Prefix) (netip.Prefix, error) {
	if err := CheckPrefix(provided, PodBits); err != nil {
		return netip.Prefix{}, err
	}
	if provided.Bits() == PodBits {
		return provided, nil
	}
	return Subnet(provided, PodBits, 1)
}

// Gateway returns the address of the bridge to which the pods of a prefix are attached.
func Gateway(pods netip.Prefix) netip.Addr { return Host(pods, 1) }

// PodRange returns the first and the last address that a pod may get. It is the larger part of the prefix beside the
// address of the node, which a provider may have chosen anywhere in the prefix. node may be outside, or invalid.
func PodRange(pods netip.Prefix, node netip.Addr) (first, last netip.Addr) {
	first, last = Host(pods, reservedHosts), Last(pods)
	if !node.IsValid() || node.Compare(first) < 0 || node.Compare(last) > 0 {
		return first, last
	}
	below, above := toNumber(node).minus(toNumber(first)), toNumber(last).minus(toNumber(node))
	if below.less(above) {
		return node.Next(), last
	}
	return first, node.Prev()
}

// Candidate returns the prefix that a node tries to get from a pool at an attempt. It follows from the name of the node, so
// that no node needs to know what others have, and a node that lost its state finds its prefix again.
func Candidate(pool netip.Prefix, length int, node string, attempt int) (netip.Prefix, error) {
	if err := CheckPrefix(pool, length); err != nil {
		return netip.Prefix{}, err
	}
	hash := sha256.Sum256([]byte(strconv.Itoa(attempt) + "/" + node))
	index := binary.BigEndian.Uint64(hash[:])
	if free := length - pool.Bits(); free < 64 {
		index &= 1<<free - 1
	}
	return Subnet(pool, length, index)
}

// LinkLocal returns the link-local address that a kernel derives from a hardware address (RFC 4291, EUI-64).
func LinkLocal(mac net.HardwareAddr) netip.Addr {
	if len(mac) != 6 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}
