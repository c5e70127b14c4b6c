package nat64

import (
	"encoding/binary"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

// inbound translates a parsed packet from IPv4.
func (t *Translator) inbound(d *datagram, out []byte, now time.Duration) (*Node, int, Reason) {
	if d.protocol == protocolICMP {
		return t.inboundICMP(d, out, now)
	}
	f, ok := familyOf(d.protocol)
	if !ok {
		return nil, 0, UnsupportedProtocol
	}
	if d.fragment.offset != 0 {
		return t.laterFragment6(d, out)
	}
	if reason := checkTransport(f, d); reason != NotDropped {
		return nil, 0, reason
	}
	s := t.sessions4[key4{
		remote: d.source4, local: d.destination4, family: f,
		remotePort: binary.BigEndian.Uint16(d.payload), localPort: binary.BigEndian.Uint16(d.payload[2:]),
	}]
	if s == nil {
		return nil, 0, NoSession
	}
	n := s.binding.node
	noChecksum := f == udp && binary.BigEndian.Uint16(d.payload[6:]) == 0
	if noChecksum && d.fragment.present {
		return n, 0, FragmentChecksum
	}
	if d.fragment.present {
		if _, reason := t.track(d.fragmentKey4(), s, now); reason != NotDropped {
			return n, 0, reason
		}
	}
	t.touch(s, d, false, false, now)
	t.header6(s, d)
	size := put6(out, d, len(d.payload))
	payload := out[size : size+copy(out[size:], d.payload)]
	rewrite(payload, f, 2, s.binding.port, ^s.delta)
	if noChecksum {
		writeChecksum6(payload, d, 6)
	}
	return n, size + len(payload), NotDropped
}

// header6 sets the fields of the IPv6 header of an inbound packet.
func (t *Translator) header6(s *session, d *datagram) {
	d.source6 = t.config.Prefix.Embed(d.source4)
	d.destination6 = s.binding.source
	d.protocol = s.binding.family.protocol6()
	d.hops--
}

// laterFragment6 translates a fragment that has no ports.
func (t *Translator) laterFragment6(d *datagram, out []byte) (*Node, int, Reason) {
	e := t.fragments.find(d.fragmentKey4())
	if e == nil {
		return nil, 0, FragmentFirst
	}
	t.header6(e.session, d)
	size := put6(out, d, len(d.payload))
	return e.session.binding.node, size + copy(out[size:], d.payload), NotDropped
}

// writeChecksum6 computes the checksum of a whole payload.
func writeChecksum6(payload []byte, d *datagram, position int) {
	payload[position], payload[position+1] = 0, 0
	value := ^uint16(checksum.Sum(payload, pseudo6(&d.source6, &d.destination6, len(payload), d.protocol)))
	if value == 0 && d.protocol == protocolUDP {
		value = 0xffff
	}
	binary.BigEndian.PutUint16(payload[position:], value)
}
