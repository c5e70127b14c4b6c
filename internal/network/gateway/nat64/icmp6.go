package nat64

import (
	"encoding/binary"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

const (
	unreachable6  = 1
	tooBig6       = 2
	timeExceeded6 = 3
	parameter6    = 4
	echoRequest6  = 128
	echoReply6    = 129
)

// outboundICMP translates ICMPv6 of a node.
func (t *Translator) outboundICMP(n *Node, d *datagram, out []byte, now time.Duration) (int, Reason) {
	if !d.fragment.whole() {
		return 0, FragmentICMP
	}
	if len(d.payload) < 8 {
		return 0, Malformed
	}
	switch kind := d.payload[0]; {
	case kind == echoRequest6:
		return t.echoRequest(n, d, out, now)
	case kind >= unreachable6 && kind <= parameter6:
		return t.outboundError(n, d, out)
	}
	return 0, UnsupportedProtocol
}

func (t *Translator) echoRequest(n *Node, d *datagram, out []byte, now time.Duration) (int, Reason) {
	k := key6{source: d.source6, destination: d.destination4, family: icmp, sourcePort: binary.BigEndian.Uint16(d.payload[4:])}
	s, reason := t.flow(n, &k, d, now)
	if reason != NotDropped {
		return 0, reason
	}
	pseudo := pseudo6(&d.source6, &d.destination6, len(d.payload), protocolICMPv6)
	if reason := t.header4(s, d, now); reason != NotDropped {
		return 0, reason
	}
	size := put4(out, d, len(d.payload))
	copy(out[size:], d.payload)
	rewriteEcho(out[size:], echoRequest4, s.binding.poolPort, pseudo, true)
	return size + len(d.payload), NotDropped
}

// rewriteEcho replaces type and identifier of an echo message. Only ICMPv6 includes the pseudo-header
// in the checksum.
func rewriteEcho(payload []byte, kind byte, id uint16, pseudo uint32, to4 bool) {
	old := uint32(binary.BigEndian.Uint16(payload)) + uint32(binary.BigEndian.Uint16(payload[4:]))
	payload[0] = kind
	binary.BigEndian.PutUint16(payload[4:], id)
	new := uint32(binary.BigEndian.Uint16(payload)) + uint32(id)
	if to4 {
		old += pseudo
	} else {
		new += pseudo
	}
	former := binary.BigEndian.Uint16(payload[2:])
	binary.BigEndian.PutUint16(payload[2:], adjust(former, difference(old, new)))
}

// outboundError translates an ICMPv6 error about a packet that came from IPv4.
func (t *Translator) outboundError(n *Node, d *datagram, out []byte) (int, Reason) {
	kind, code, parameter, ok := error4(d.payload)
	if !ok {
		return 0, Untranslatable
	}
	var inner datagram
	if reason := parse6(d.payload[8:], &inner, true); reason != NotDropped {
		return 0, reason
	}
	s := t.sessionOfInner6(&inner)
	if s == nil || s.binding.node != n {
		return 0, NoSession
	}
	d.source4, d.destination4 = t.pool.addresses[s.binding.address], s.remote
	d.protocol, d.dontFragment, d.fragment, d.id = protocolICMP, false, fragment{}, t.nextID()
	d.hops--
	length := t.inner4(s, &inner, out[header4+8:])
	message := out[header4 : header4+8+length]
	putError(message, kind, code, parameter)
	binary.BigEndian.PutUint16(message[2:], ^uint16(checksum.Sum(message, 0)))
	return put4(out, d, len(message)) + len(message), NotDropped
}

// error4 maps an ICMPv6 error to ICMP (RFC 7915, section 5.2).
func error4(payload []byte) (kind, code byte, parameter uint32, ok bool) {
	parameter = binary.BigEndian.Uint32(payload[4:])
	switch payload[0] {
	case unreachable6:
		code, ok = map[byte]byte{0: 1, 1: 10, 2: 1, 3: 1, 4: 3}[payload[1]]
		return unreachable4, code, 0, ok
	case tooBig6:
		mtu := min(max(parameter, header6+68)-(header6-header4), 65535)
		return unreachable4, fragmentationNeeded, mtu, true
	case timeExceeded6:
		return timeExceeded4, payload[1], 0, payload[1] <= 1
	case parameter6:
		if payload[1] == 1 {
			return unreachable4, 2, 0, true
		}
		// Octets of the IPv6 header, and the octets of the IPv4 header that they were made from.
		pointer, known := map[uint32]uint32{0: 0, 1: 1, 4: 2, 5: 2, 6: 9, 7: 8}[parameter]
		switch {
		case parameter >= 8 && parameter < 24:
			pointer, known = 12, true
		case parameter >= 24 && parameter < 40:
			pointer, known = 16, true
		}
		return parameter4, 0, pointer << 24, known && payload[1] == 0
	}
	return 0, 0, 0, false
}

// sessionOfInner6 finds the session of a packet to a node that an error contains.
func (t *Translator) sessionOfInner6(d *datagram) *session {
	remote, ok := t.config.Prefix.Extract(&d.source6)
	if !ok || d.fragment.offset != 0 || len(d.payload) < 8 {
		return nil
	}
	k := key6{source: d.destination6, destination: remote}
	if d.protocol == protocolICMPv6 {
		k.family, k.sourcePort = icmp, binary.BigEndian.Uint16(d.payload[4:])
		if d.payload[0] != echoReply6 {
			return nil
		}
	} else {
		var known bool
		if k.family, known = familyOf(d.protocol); !known {
			return nil
		}
		k.port, k.sourcePort = binary.BigEndian.Uint16(d.payload), binary.BigEndian.Uint16(d.payload[2:])
	}
	return t.sessions6[k]
}

// inner4 writes the packet that an error contains as the IPv4 packet that it was. The error has at
// most 576 bytes (RFC 1812, section 4.3.2.3).
func (t *Translator) inner4(s *session, d *datagram, out []byte) int {
	b := s.binding
	pseudo := pseudo6(&d.source6, &d.destination6, d.declared, d.protocol)
	d.source4, d.destination4 = s.remote, t.pool.addresses[b.address]
	d.protocol = b.family.protocol4()
	d.id = uint16(d.fragment.id)
	if d.fragment.whole() {
		d.fragment = fragment{}
	}
	put4(out, d, d.declared)
	length := copy(out[header4:576-header4-8], d.payload)
	payload := out[header4 : header4+length]
	if b.family == icmp {
		rewriteEcho(payload, echoReply4, b.poolPort, pseudo, true)
	} else {
		rewrite(payload, b.family, 2, b.poolPort, s.delta)
	}
	return header4 + length
}

func putError(message []byte, kind, code byte, parameter uint32) {
	message[0], message[1], message[2], message[3] = kind, code, 0, 0
	binary.BigEndian.PutUint32(message[4:], parameter)
}

// refuse6 drops a packet of a node, and tells the node if it should know.
func (t *Translator) refuse6(n *Node, packet []byte, d *datagram, out []byte, reason Reason, now time.Duration) Result {
	result := t.drop(n, reason)
	kind, code, answer := byte(unreachable6), byte(0), true
	switch reason {
	case HopLimit:
		kind = timeExceeded6
	case DeniedDestination, Hairpin:
		code = 1 // administratively prohibited
	case NodeSessions, NodePorts, NodeRate, TableFull, PoolExhausted:
		code = 3 // address unreachable (RFC 6146, section 3.5.1.1)
	default:
		answer = false
	}
	isError := d.protocol == protocolICMPv6 && (len(d.payload) == 0 || d.payload[0] < 128)
	if !answer || isError || d.fragment.offset != 0 || !n.errors.take(now, errorsPerSecond) {
		return result
	}
	e := datagram{
		source6: t.config.Prefix.Embed(ownAddress4), destination6: d.source6,
		protocol: protocolICMPv6, hops: 64,
	}
	message := out[header6 : header6+8+copy(out[header6+8:MinOutput], packet)]
	putError(message, kind, code, 0)
	writeChecksum6(message, &e, 2)
	result.Action, result.Length = Reply, put6(out, &e, len(message))+len(message)
	return result
}
