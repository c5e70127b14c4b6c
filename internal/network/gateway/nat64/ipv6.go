package nat64

import "encoding/binary"

const (
	header6 = 40
	header4 = 20

	protocolICMP     = 1
	protocolTCP      = 6
	protocolUDP      = 17
	protocolICMPv6   = 58
	extensionHop     = 0
	extensionRouting = 43
	extensionFrag    = 44
	extensionOptions = 60

	// maxExtensions bounds the walk over extension headers.
	maxExtensions = 8
)

// datagram is a parsed packet of either family. Addresses of IPv4 are in source4 and destination4.
type datagram struct {
	source6, destination6 [16]byte
	source4, destination4 [4]byte
	protocol              byte
	hops                  byte
	class                 byte // traffic class or type of service
	payload               []byte
	declared              int // length of the payload of a packet that may have been cut off
	fragment              fragment
	dontFragment          bool
	id                    uint16 // of IPv4
}

// fragment describes the part of a packet that a fragment is. The zero value is a whole packet.
type fragment struct {
	present bool
	more    bool
	offset  uint16 // in units of 8 bytes
	id      uint32
}

// whole tells packets, and fragments that are all of their packet, from real fragments.
func (f fragment) whole() bool { return !f.more && f.offset == 0 }

// parse6 reads the headers of an IPv6 packet up to TCP, UDP or ICMPv6. A packet that an error contains
// may be cut off.
func parse6(packet []byte, d *datagram, cut bool) Reason {
	if len(packet) < header6 || packet[0]>>4 != 6 {
		return Malformed
	}
	length := int(binary.BigEndian.Uint16(packet[4:]))
	if length > len(packet)-header6 && !cut {
		return Malformed
	}
	*d = datagram{
		source6: [16]byte(packet[8:24]), destination6: [16]byte(packet[24:40]),
		hops: packet[7], class: packet[0]<<4 | packet[1]>>4,
	}
	rest := packet[header6:min(len(packet), header6+length)]
	if reason := d.extensions(packet[6], rest); reason != NotDropped {
		return reason
	}
	if d.fragment.more && len(d.payload)%8 != 0 && !cut {
		return Malformed
	}
	d.declared = length - (len(rest) - len(d.payload))
	return NotDropped
}

func (d *datagram) extensions(next byte, rest []byte) Reason {
	for range maxExtensions {
		switch next {
		case extensionHop, extensionOptions, extensionRouting:
			size := 0
			if len(rest) >= 8 {
				size = 8 + 8*int(rest[1])
			}
			if size == 0 || size > len(rest) {
				return Malformed
			}
			if next == extensionRouting && rest[3] != 0 {
				return SourceRoute
			}
			next, rest = rest[0], rest[size:]
		case extensionFrag:
			if len(rest) < 8 || d.fragment.present {
				return Malformed
			}
			field := binary.BigEndian.Uint16(rest[2:])
			d.fragment = fragment{present: true, more: field&1 != 0, offset: field >> 3, id: binary.BigEndian.Uint32(rest[4:])}
			next, rest = rest[0], rest[8:]
			if d.fragment.offset != 0 {
				d.protocol, d.payload = next, rest
				return NotDropped
			}
		default:
			d.protocol, d.payload = next, rest
			return NotDropped
		}
	}
	return Malformed
}

// put6 writes an IPv6 header, with a fragment header if the datagram is a fragment, and returns the
// length of both. The payload follows.
func put6(out []byte, d *datagram, payload int) int {
	size := header6
	next := d.protocol
	if d.fragment.present {
		size += 8
		next = extensionFrag
	}
	out[0], out[1], out[2], out[3] = 0x60|d.class>>4, d.class<<4, 0, 0
	binary.BigEndian.PutUint16(out[4:], uint16(payload+size-header6))
	out[6], out[7] = next, d.hops
	copy(out[8:], d.source6[:])
	copy(out[24:], d.destination6[:])
	if d.fragment.present {
		out[40], out[41] = d.protocol, 0
		field := d.fragment.offset << 3
		if d.fragment.more {
			field |= 1
		}
		binary.BigEndian.PutUint16(out[42:], field)
		binary.BigEndian.PutUint32(out[44:], d.fragment.id)
	}
	return size
}

// isUnicast6 is false for addresses that may not be a source.
func isUnicast6(address *[16]byte) bool {
	return address[0] != 0xff && *address != [16]byte{} && *address != [16]byte{15: 1}
}
