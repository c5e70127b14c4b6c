package nat64

import "github.com/k8s-1m/k8s-1m/internal/network/checksum"

func fold(total uint32) uint16 {
	for total>>16 != 0 {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// adjust changes a checksum for words that change, of which delta is the difference: the sum of the
// new words and of the complement of the old ones (RFC 1624).
func adjust(former, delta uint16) uint16 {
	return ^fold(uint32(^former) + uint32(delta))
}

// difference is the delta for adjust from sums of old and new words.
func difference(old, new uint32) uint16 {
	return fold(uint32(^fold(old)) + uint32(fold(new)))
}

func pseudo6(source, destination *[16]byte, length int, protocol byte) uint32 {
	return checksum.Sum(source[:], checksum.Sum(destination[:], uint32(length)+uint32(protocol)))
}
