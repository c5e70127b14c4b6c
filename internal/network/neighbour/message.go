package neighbour

import (
	"encoding/binary"
	"net/netip"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

// Sizes and values of Ethernet, IPv6 and neighbour discovery (RFC 4861).
const (
	ethernetSize = 14
	ipv6Size     = 40
	messageSize  = 24 // of a solicitation or an advertisement, without options
	optionSize   = 8  // an Ethernet address as an option

	etherTypeIPv6 = 0x86dd
	protocolICMP6 = 58
	hopLimit      = 255

	typeSolicitation  = 135
	typeAdvertisement = 136
	optionSource      = 1
	optionTarget      = 2

	flagRouter, flagSolicited, flagOverride = 0x80, 0x40, 0x20

	// frameSize is the size of the frames that this package sends.
	frameSize = ethernetSize + ipv6Size + messageSize + optionSize
)

// MAC is an Ethernet address.
type MAC [6]byte

// Solicitation is a question for the Ethernet address of an IPv6 address.
type Solicitation struct {
	// From is the Ethernet address of the frame, Source the IPv6 address that asks; unspecified for the detection of
	// duplicate addresses.
	From   MAC
	Source netip.Addr
	Target netip.Addr
}

// ParseSolicitation parses an Ethernet frame. ok is false for everything that is not a valid neighbour solicitation (RFC 4861,
// section 7.1.1).
func ParseSolicitation(frame []byte) (s Solicitation, ok bool) {
	if len(frame) < ethernetSize+ipv6Size+messageSize || binary.BigEndian.Uint16(frame[12:]) != etherTypeIPv6 {
		return s, false
	}
	ip := frame[ethernetSize:]
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != protocolICMP6 || ip[7] != hopLimit || length < messageSize || len(ip) < ipv6Size+length {
		return s, false
	}
	message := ip[ipv6Size : ipv6Size+length]
	if message[0] != typeSolicitation || message[1] != 0 || icmp6Checksum(ip[8:40], message) != 0 {
		return s, false
	}
	s.Source, s.Target = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(message[8:24]))
	copy(s.From[:], frame[6:12])
	destination := netip.AddrFrom16([16]byte(ip[24:40]))
	if s.Target.IsMulticast() || s.From[0]&1 != 0 || s.Source.IsMulticast() {
		return s, false
	}
	hasSource, ok := parseOptions(message[messageSize:])
	if s.Source.IsUnspecified() && (hasSource || !destination.IsMulticast()) {
		return s, false
	}
	return s, ok
}

// parseOptions reports whether options are valid, and whether one of them is the Ethernet address of the sender.
func parseOptions(options []byte) (hasSource, ok bool) {
	for len(options) > 0 {
		if len(options) < 8 || options[1] == 0 || int(options[1])*8 > len(options) {
			return false, false
		}
		hasSource = hasSource || options[0] == optionSource
		options = options[int(options[1])*8:]
	}
	return hasSource, true
}

// allNodes is the address of all nodes on a link.
var allNodes = netip.MustParseAddr("ff02::1")

// AppendAdvertisement appends the frame that answers a solicitation: the target is at an Ethernet address, which is a
// router. The answer to a detection of duplicate addresses goes to all nodes.
func AppendAdvertisement(b []byte, s Solicitation, own MAC) []byte {
	to, destination, flags := s.From, s.Source, byte(flagRouter|flagSolicited|flagOverride)
	if s.Source.IsUnspecified() {
		to, destination, flags = MAC{0x33, 0x33, 0, 0, 0, 1}, allNodes, flagRouter|flagOverride
	}
	b = appendHeaders(b, own, to, s.Target, destination)
	message := [messageSize + optionSize]byte{0: typeAdvertisement, 4: flags, 24: optionTarget, 25: 1}
	return appendMessage(b, message, s.Target, own)
}

// AppendSolicitation appends a frame that asks for an address, as routers send it: to the multicast address of the target.
func AppendSolicitation(b []byte, own MAC, source, target netip.Addr) []byte {
	t := target.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]}
	b = appendHeaders(b, own, MAC{0x33, 0x33, 0xff, t[13], t[14], t[15]}, source, netip.AddrFrom16(group))
	message := [messageSize + optionSize]byte{0: typeSolicitation, 24: optionSource, 25: 1}
	return appendMessage(b, message, target, own)
}

func appendHeaders(b []byte, from, to MAC, source, destination netip.Addr) []byte {
	b = append(b, to[:]...)
	b = append(b, from[:]...)
	b = append(b, etherTypeIPv6>>8, etherTypeIPv6&0xff)
	b = append(b, 0x60, 0, 0, 0, 0, messageSize+optionSize, protocolICMP6, hopLimit)
	s, d := source.As16(), destination.As16()
	b = append(b, s[:]...)
	return append(b, d[:]...)
}

// appendMessage completes a message with its target, the Ethernet address in its option and its checksum, and appends it
// behind the headers.
func appendMessage(b []byte, message [messageSize + optionSize]byte, target netip.Addr, own MAC) []byte {
	t := target.As16()
	copy(message[8:], t[:])
	copy(message[26:], own[:])
	binary.BigEndian.PutUint16(message[2:], icmp6Checksum(b[len(b)-32:], message[:]))
	return append(b, message[:]...)
}

// icmp6Checksum returns the checksum of an ICMPv6 message. addresses are the source and the destination. The result is 0 for a
// message that contains its checksum.
func icmp6Checksum(addresses, message []byte) uint16 {
	return ^uint16(checksum.Sum(message, checksum.Sum(addresses, uint32(len(message))+protocolICMP6)))
}

// ParseAdvertisement returns the target and the Ethernet address of a neighbour advertisement in a frame.
func ParseAdvertisement(frame []byte) (target netip.Addr, at MAC, ok bool) {
	if len(frame) < frameSize || binary.BigEndian.Uint16(frame[12:]) != etherTypeIPv6 {
		return target, at, false
	}
	ip := frame[ethernetSize:]
	message := ip[ipv6Size : ipv6Size+messageSize+optionSize]
	if ip[6] != protocolICMP6 || ip[7] != hopLimit || message[0] != typeAdvertisement || message[24] != optionTarget || icmp6Checksum(ip[8:40], message) != 0 {
		return target, at, false
	}
	copy(at[:], message[26:])
	return netip.AddrFrom16([16]byte(message[8:24])), at, true
}
