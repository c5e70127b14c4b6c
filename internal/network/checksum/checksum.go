// Package checksum computes the checksums of IPv4, ICMP, UDP and TCP (RFC 1071).
package checksum

import "encoding/binary"

// Sum adds the 16-bit words of data to an initial sum, in ones' complement. An odd octet at the end is padded with zero. The result has
// 16 bits; its complement is the checksum. It is 0xffff for data that contains its checksum.
func Sum(data []byte, initial uint32) uint32 {
	total := uint64(initial)
	for len(data) >= 8 {
		word := binary.BigEndian.Uint64(data)
		total += word>>32 + word&0xffffffff
		data = data[8:]
	}
	for len(data) >= 2 {
		total += uint64(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) == 1 {
		total += uint64(data[0]) << 8
	}
	for total>>16 != 0 {
		total = total>>16 + total&0xffff
	}
	return uint32(total)
}
