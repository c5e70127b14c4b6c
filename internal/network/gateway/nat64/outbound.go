package nat64

import (
	"encoding/binary"
	"time"
)

// smallPacket is the longest IPv4 packet that routers may fragment: IPv6 has no equal of packets that
// may be fragmented on the way, but a path whose MTU is smaller than 1280 must carry it (RFC 7915,
// section 5.1).
const smallPacket = 1260

// outbound translates a parsed packet from a node.
func (t *Translator) outbound(n *Node, d *datagram, out []byte, now time.Duration) (int, Reason) {
	if d.protocol == protocolICMPv6 {
		return t.outboundICMP(n, d, out, now)
	}
	f, ok := familyOf(d.protocol)
	if !ok {
		return 0, UnsupportedProtocol
	}
	if d.fragment.offset != 0 {
		return t.laterFragment4(n, d, out)
	}
	if reason := checkTransport(f, d); reason != NotDropped {
		return 0, reason
	}
	k := key6{
		source: d.source6, destination: d.destination4, family: f,
		sourcePort: binary.BigEndian.Uint16(d.payload), port: binary.BigEndian.Uint16(d.payload[2:]),
	}
	s, reason := t.flow(n, &k, d, now)
	if reason != NotDropped {
		return 0, reason
	}
	if reason := t.header4(s, d, now); reason != NotDropped {
		return 0, reason
	}
	size := put4(out, d, len(d.payload))
	copy(out[size:], d.payload)
	rewrite(out[size:size+len(d.payload)], f, 0, s.binding.poolPort, s.delta)
	return size + len(d.payload), NotDropped
}

func familyOf(protocol byte) (family, bool) {
	switch protocol {
	case protocolTCP:
		return tcp, true
	case protocolUDP:
		return udp, true
	}
	return 0, false
}

// checkTransport checks that the headers of TCP and UDP are whole.
func checkTransport(f family, d *datagram) Reason {
	switch {
	case f == udp && len(d.payload) < 8, f == tcp && len(d.payload) < 20:
		return Malformed
	case f == tcp && (d.payload[12]>>4 < 5 || d.fragment.whole() && int(d.payload[12]>>4)*4 > len(d.payload)):
		return Malformed
	case f == udp && d.fragment.whole() && int(binary.BigEndian.Uint16(d.payload[4:])) != len(d.payload):
		return Malformed
	}
	return NotDropped
}

// flow finds or opens the session of a packet from a node and moves its timer.
func (t *Translator) flow(n *Node, k *key6, d *datagram, now time.Duration) (*session, Reason) {
	s := t.sessions6[*k]
	fresh := s == nil || s.binding.node != n
	if fresh {
		if k.family == tcp && (d.payload[13]&(flagSYN|flagRST|flagFIN)) != flagSYN {
			return nil, NoSession
		}
		if k.family == udp && binary.BigEndian.Uint16(d.payload[6:]) == 0 {
			return nil, Malformed // IPv6 requires the checksum
		}
		if reason := t.permitted(k.destination); reason != NotDropped {
			return nil, reason
		}
		var reason Reason
		if s, reason = t.open(n, k, now); reason != NotDropped {
			return nil, reason
		}
	}
	t.touch(s, d, true, fresh, now)
	return s, NotDropped
}

// touch moves the state and the timer of a session for a packet.
func (t *Translator) touch(s *session, d *datagram, fromNode, fresh bool, now time.Duration) {
	timeouts := &t.config.Timeouts
	switch s.binding.family {
	case udp:
		t.refresh(s, timeouts.UDP, now)
	case icmp:
		t.refresh(s, timeouts.ICMP, now)
	case tcp:
		next, restart := s.state.next(d.payload[13], fromNode)
		s.state = next
		if restart || fresh {
			t.refresh(s, next.timeout(timeouts), now)
		}
	}
}

// header4 sets the fields of the IPv4 header of an outbound packet.
func (t *Translator) header4(s *session, d *datagram, now time.Duration) Reason {
	b := s.binding
	d.source4 = t.pool.addresses[b.address]
	d.protocol = b.family.protocol4()
	d.hops--
	d.dontFragment = d.fragment.whole() && len(d.payload)+header4 > smallPacket
	if d.fragment.whole() {
		d.fragment = fragment{}
		d.id = t.nextID()
		return NotDropped
	}
	k := d.fragmentKey6()
	k.protocol = b.family.protocol6()
	e, reason := t.track(k, s, now)
	if reason == NotDropped {
		d.id = e.id
	}
	return reason
}

// laterFragment4 translates a fragment that has no ports.
func (t *Translator) laterFragment4(n *Node, d *datagram, out []byte) (int, Reason) {
	e := t.fragments.find(d.fragmentKey6())
	if e == nil || e.session.binding.node != n {
		return 0, FragmentFirst
	}
	b := e.session.binding
	d.source4, d.destination4 = t.pool.addresses[b.address], e.session.remote
	d.protocol, d.id = b.family.protocol4(), e.id
	d.hops--
	size := put4(out, d, len(d.payload))
	return size + copy(out[size:], d.payload), NotDropped
}

// rewrite replaces a port, at an offset of the header, and adjusts the checksum, if it has not been
// cut off.
func rewrite(payload []byte, f family, offset int, port, delta uint16) {
	binary.BigEndian.PutUint16(payload[offset:], port)
	position := 16
	if f == udp {
		position = 6
	}
	if len(payload) < position+2 {
		return
	}
	checksum := binary.BigEndian.Uint16(payload[position:])
	if f == udp && checksum == 0 {
		return
	}
	checksum = adjust(checksum, delta)
	if f == udp && checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(payload[position:], checksum)
}
