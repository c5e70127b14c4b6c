package nat64

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// family indexes tables by protocol.
type family uint8

const (
	tcp family = iota
	udp
	icmp
	families
)

func (f family) protocol4() byte { return [families]byte{protocolTCP, protocolUDP, protocolICMP}[f] }
func (f family) protocol6() byte { return [families]byte{protocolTCP, protocolUDP, protocolICMPv6}[f] }

// pool hands out ports of IPv4 addresses. A set of ports is allocated when its address is first used.
type pool struct {
	addresses   [][4]byte
	ports       [][families]*portSet
	first, last uint16
	random      *rand.Rand
}

func newPool(prefixes []netip.Prefix, first, last uint16, random *rand.Rand) *pool {
	p := &pool{first: first, last: last, random: random}
	for _, prefix := range prefixes {
		start := prefix.Addr().As4()
		number := binary.BigEndian.Uint32(start[:])
		for i := range uint32(1) << (32 - prefix.Bits()) {
			var address [4]byte
			binary.BigEndian.PutUint32(address[:], number+i)
			p.addresses = append(p.addresses, address)
		}
	}
	p.ports = make([][families]*portSet, len(p.addresses))
	return p
}

// take returns a random free port of an address.
func (p *pool) take(address int, f family) (uint16, bool) {
	set := p.set(address, f)
	size := int(p.last) - int(p.first) + 1
	if set.used == size {
		return 0, false
	}
	port := set.free(int(p.first)+p.random.IntN(size), int(p.first), int(p.last))
	set.mark(port)
	return uint16(port), true
}

// claim takes a given port. It is false if the port is taken or out of range.
func (p *pool) claim(address int, f family, port uint16) bool {
	set := p.set(address, f)
	if port < p.first || port > p.last || set.words[port/64]&(1<<(port%64)) != 0 {
		return false
	}
	set.mark(int(port))
	return true
}

func (p *pool) release(address int, f family, port uint16) {
	set := p.ports[address][f]
	set.words[port/64] &^= 1 << (port % 64)
	set.used--
}

func (p *pool) set(address int, f family) *portSet {
	if p.ports[address][f] == nil {
		p.ports[address][f] = new(portSet)
	}
	return p.ports[address][f]
}

// portSet is a set of ports as bits.
type portSet struct {
	words [1024]uint64
	used  int
}

func (s *portSet) mark(port int) {
	s.words[port/64] |= 1 << (port % 64)
	s.used++
}

// free returns the first free port from start on, and after the last from the first on. There must be
// one.
func (s *portSet) free(start, first, last int) int {
	if port := s.scan(start, last); port >= 0 {
		return port
	}
	return s.scan(first, start)
}

func (s *portSet) scan(from, to int) int {
	for port := from; port <= to; {
		free := ^s.words[port/64] >> (port % 64)
		if free != 0 {
			port += bits.TrailingZeros64(free)
			if port > to {
				return -1
			}
			return port
		}
		port = (port/64 + 1) * 64
	}
	return -1
}
