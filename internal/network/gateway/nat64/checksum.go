package nat64

import "encoding/binary"

// sum adds 16-bit words in ones' complement; an odd octet at the end is padded with zero.
func sum(data []byte, initial uint32) uint32 {
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

func fold(total uint32) uint16 {
	for total>>16 != 0 {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// adjust changes a checksum for words that change, of which delta is the difference: the sum of the
// new words and of the complement of the old ones (RFC 1624).
func adjust(checksum, delta uint16) uint16 {
	return ^fold(uint32(^checksum) + uint32(delta))
}

// difference is the delta for adjust from sums of old and new words.
func difference(old, new uint32) uint16 {
	return fold(uint32(^fold(old)) + uint32(fold(new)))
}

func pseudo6(source, destination *[16]byte, length int, protocol byte) uint32 {
	return sum(source[:], sum(destination[:], uint32(length)+uint32(protocol)))
}
