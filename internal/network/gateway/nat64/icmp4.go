package nat64

import (
	"encoding/binary"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

const (
	echoReply4          = 0
	unreachable4        = 3
	echoRequest4        = 8
	timeExceeded4       = 11
	parameter4          = 12
	fragmentationNeeded = 4 // a code of unreachable4
)

// inboundICMP translates ICMP for the pool.
func (t *Translator) inboundICMP(d *datagram, out []byte, now time.Duration) (*Node, int, Reason) {
	if d.fragment.present {
		return nil, 0, FragmentICMP
	}
	if len(d.payload) < 8 || checksum.Sum(d.payload, 0) != 0xffff {
		return nil, 0, Malformed
	}
	switch d.payload[0] {
	case echoReply4:
		return t.echoReply(d, out, now)
	case unreachable4, timeExceeded4, parameter4:
		return t.inboundError(d, out)
	case echoRequest4:
		return nil, 0, NoSession
	}
	return nil, 0, Untranslatable
}

func (t *Translator) echoReply(d *datagram, out []byte, now time.Duration) (*Node, int, Reason) {
	s := t.sessions4[key4{remote: d.source4, local: d.destination4, family: icmp, localPort: binary.BigEndian.Uint16(d.payload[4:])}]
	if s == nil {
		return nil, 0, NoSession
	}
	t.touch(s, d, false, false, now)
	t.header6(s, d)
	size := put6(out, d, len(d.payload))
	copy(out[size:], d.payload)
	pseudo := pseudo6(&d.source6, &d.destination6, len(d.payload), protocolICMPv6)
	rewriteEcho(out[size:], echoReply6, s.binding.port, pseudo, false)
	return s.binding.node, size + len(d.payload), NotDropped
}

// inboundError translates an ICMP error about a packet of a node. Its sender may be any router.
func (t *Translator) inboundError(d *datagram, out []byte) (*Node, int, Reason) {
	kind, code, parameter, ok := t.error6(d.payload)
	if !ok {
		return nil, 0, Untranslatable
	}
	var inner datagram
	if reason := parseInner4(d.payload[8:], &inner); reason != NotDropped {
		return nil, 0, reason
	}
	s := t.sessionOfInner4(&inner)
	if s == nil || inner.source4 != d.destination4 {
		return nil, 0, NoSession
	}
	d.source6, d.destination6 = t.config.Prefix.Embed(d.source4), s.binding.source
	d.protocol = protocolICMPv6
	d.hops--
	length := t.inner6(s, &inner, out[header6+8:])
	message := out[header6 : header6+8+length]
	putError(message, kind, code, parameter)
	writeChecksum6(message, d, 2)
	return s.binding.node, put6(out, d, len(message)) + len(message), NotDropped
}

// error6 maps an ICMP error to ICMPv6 (RFC 7915, section 4.2).
func (t *Translator) error6(payload []byte) (kind, code byte, parameter uint32, ok bool) {
	switch payload[0] {
	case unreachable4:
		switch payload[1] {
		case 2: // protocol unreachable: the next header, at octet 6, is not known
			return parameter6, 1, 6, true
		case fragmentationNeeded:
			return tooBig6, 0, t.mtu6(binary.BigEndian.Uint16(payload[6:])), true
		}
		code, ok = map[byte]byte{0: 0, 1: 0, 3: 4, 5: 0, 6: 0, 7: 0, 8: 0, 9: 1, 10: 1, 11: 0, 12: 0, 13: 1, 15: 1}[payload[1]]
		return unreachable6, code, 0, ok
	case timeExceeded4:
		return timeExceeded6, payload[1], 0, payload[1] <= 1
	case parameter4:
		// Octets of the IPv4 header, and the octets of the IPv6 header that they were made from.
		pointers := map[byte]uint32{0: 0, 1: 1, 2: 4, 3: 4, 8: 7, 9: 6, 12: 8, 13: 8, 14: 8, 15: 8, 16: 24, 17: 24, 18: 24, 19: 24}
		pointer, known := pointers[payload[4]]
		return parameter6, 0, pointer, known && (payload[1] == 0 || payload[1] == 2)
	}
	return 0, 0, 0, false
}

// mtu6 is the MTU for IPv6 of a path whose MTU for IPv4 is known. Routers that do not tell it send 0;
// 1280 always works.
func (t *Translator) mtu6(mtu4 uint16) uint32 {
	return uint32(min(max(1280, int(mtu4)+header6-header4), t.config.MTU6))
}

// parseInner4 reads the start of a packet that an error contains.
func parseInner4(packet []byte, d *datagram) Reason {
	if len(packet) < header4 || packet[0]>>4 != 4 {
		return Malformed
	}
	header := int(packet[0]&15) * 4
	total := int(binary.BigEndian.Uint16(packet[2:]))
	if header < header4 || total < header || len(packet) < header+8 {
		return Malformed
	}
	reason := d.read4(packet, header, min(total, len(packet)))
	d.declared = total - header
	if reason == Malformed { // a fragment that has been cut off
		reason = NotDropped
	}
	return reason
}

// sessionOfInner4 finds the session of a packet of a node that an error contains.
func (t *Translator) sessionOfInner4(d *datagram) *session {
	if d.fragment.offset != 0 || len(d.payload) < 8 {
		return nil
	}
	k := key4{remote: d.destination4, local: d.source4}
	if d.protocol == protocolICMP {
		k.family, k.localPort = icmp, binary.BigEndian.Uint16(d.payload[4:])
		if d.payload[0] != echoRequest4 {
			return nil
		}
	} else {
		var known bool
		if k.family, known = familyOf(d.protocol); !known {
			return nil
		}
		k.localPort, k.remotePort = binary.BigEndian.Uint16(d.payload), binary.BigEndian.Uint16(d.payload[2:])
	}
	return t.sessions4[k]
}

// inner6 writes the packet that an error contains as the IPv6 packet that it was. The error has at
// most 1280 bytes (RFC 4443, section 2.4).
func (t *Translator) inner6(s *session, d *datagram, out []byte) int {
	b := s.binding
	d.source6, d.destination6 = b.source, t.config.Prefix.Embed(s.remote)
	d.protocol = b.family.protocol6()
	size := put6(out, d, d.declared)
	length := copy(out[size:MinOutput-header6-8], d.payload)
	payload := out[size : size+length]
	if b.family == icmp {
		rewriteEcho(payload, echoRequest6, b.port, pseudo6(&d.source6, &d.destination6, d.declared, protocolICMPv6), false)
	} else {
		rewrite(payload, b.family, 0, b.port, ^s.delta)
	}
	return size + length
}

// refuse4 drops a packet from IPv4, and tells the sender if it should know.
func (t *Translator) refuse4(packet []byte, d *datagram, out []byte, reason Reason, now time.Duration) Result {
	result := t.drop(nil, reason)
	kind, code, parameter := byte(timeExceeded4), byte(0), uint32(0)
	if reason == TooBig {
		kind, code = unreachable4, fragmentationNeeded
		parameter = uint32(t.config.MTU6 - t.overhead6(d) + header4)
	}
	isError := d.protocol == protocolICMP && (len(d.payload) == 0 || d.payload[0] != echoReply4 && d.payload[0] != echoRequest4)
	if _, ours := t.inPool[d.destination4]; !ours || isError || d.fragment.offset != 0 || !t.errors4.take(now, errorsPerSecond) {
		return result
	}
	e := datagram{source4: d.destination4, destination4: d.source4, protocol: protocolICMP, hops: 64, id: t.nextID()}
	message := out[header4 : header4+8+copy(out[header4+8:576], packet)]
	putError(message, kind, code, parameter)
	binary.BigEndian.PutUint16(message[2:], ^uint16(checksum.Sum(message, 0)))
	result.Action, result.Length = Reply, put4(out, &e, len(message))+len(message)
	return result
}
