package nat64

import (
	"encoding/binary"

	"github.com/k8s-1m/k8s-1m/internal/network/checksum"
)

const (
	flagDontFragment = 0x4000
	flagMore         = 0x2000
	maskOffset       = 0x1fff
)

// parse4 reads the header of an IPv4 packet.
func parse4(packet []byte, d *datagram) Reason {
	if len(packet) < header4 || packet[0]>>4 != 4 {
		return Malformed
	}
	header := int(packet[0]&15) * 4
	total := int(binary.BigEndian.Uint16(packet[2:]))
	if header < header4 || total < header || total > len(packet) {
		return Malformed
	}
	if checksum.Sum(packet[:header], 0) != 0xffff {
		return Malformed
	}
	return d.read4(packet, header, total)
}

// read4 reads the fields of an IPv4 header; lengths have been checked. An ICMP error contains packets
// that are cut off.
func (d *datagram) read4(packet []byte, header, total int) Reason {
	field := binary.BigEndian.Uint16(packet[6:])
	*d = datagram{
		source4: [4]byte(packet[12:16]), destination4: [4]byte(packet[16:20]),
		protocol: packet[9], hops: packet[8], class: packet[1],
		payload: packet[header:total], declared: total - header, dontFragment: field&flagDontFragment != 0,
		id: binary.BigEndian.Uint16(packet[4:]),
	}
	d.fragment = fragment{more: field&flagMore != 0, offset: field & maskOffset, id: uint32(d.id)}
	d.fragment.present = !d.fragment.whole()
	if d.fragment.more && len(d.payload)%8 != 0 {
		return Malformed
	}
	return sourceRoute(packet[header4:header])
}

// sourceRoute looks for a source route that has not ended (RFC 7915, section 4.1). Other options are
// ignored, because IPv6 has no equal.
func sourceRoute(options []byte) Reason {
	for len(options) > 0 {
		kind := options[0]
		if kind == 0 {
			return NotDropped
		}
		if kind == 1 {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return Malformed
		}
		if (kind == 131 || kind == 137) && options[1] >= 3 && options[2] <= options[1] {
			return SourceRoute
		}
		options = options[options[1]:]
	}
	return NotDropped
}

// put4 writes an IPv4 header without options and returns its length. The payload follows.
func put4(out []byte, d *datagram, payload int) int {
	out[0], out[1] = 0x45, d.class
	binary.BigEndian.PutUint16(out[2:], uint16(header4+payload))
	binary.BigEndian.PutUint16(out[4:], d.id)
	field := d.fragment.offset
	if d.fragment.more {
		field |= flagMore
	}
	if d.dontFragment {
		field |= flagDontFragment
	}
	binary.BigEndian.PutUint16(out[6:], field)
	out[8], out[9], out[10], out[11] = d.hops, d.protocol, 0, 0
	copy(out[12:], d.source4[:])
	copy(out[16:], d.destination4[:])
	binary.BigEndian.PutUint16(out[10:], ^uint16(checksum.Sum(out[:header4], 0)))
	return header4
}
