package membership

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// SlotCount is the number of hash slots. The slots are UID hash ranges of equal size. The count is a power
// of two and must be the same in all replicas.
const SlotCount = 1024

// slotBits is the size of a slot number in bits. The first slotBits bits of a hash are its slot number.
var slotBits = bits.Len(uint(SlotCount)) - 1

// SlotOf returns the hash slot of the object with this UID, from 0 to SlotCount-1. The
// hash is the one that the API server uses for sharded lists and watches
// (k8s.io/apimachinery/pkg/sharding).
func SlotOf(uid types.UID) int {
	h := fnv.New64a()
	h.Write([]byte(uid))
	return int(h.Sum64() >> (64 - slotBits))
}

// Selector returns the shard selector, in the API server's syntax, for the objects in some hash slots. The
// slots must be sorted.
func Selector(slots []int) string {
	var ranges []string
	for first := 0; first < len(slots); {
		last := first
		for last+1 < len(slots) && slots[last+1] == slots[last]+1 {
			last++
		}
		ranges = append(ranges, fmt.Sprintf("shardRange(object.metadata.uid, '%s', '%s')", firstHash(slots[first]), firstHash(slots[last]+1)))
		first = last + 1
	}
	return strings.Join(ranges, " || ")
}

// firstHash returns the first hash of a slot, in the selector's notation. For SlotCount it returns 2^64,
// which is the end of the last slot. This value has 17 hexadecimal digits.
func firstHash(slot int) string {
	if slot == SlotCount {
		return "0x1" + strings.Repeat("0", 16)
	}
	return fmt.Sprintf("0x%016x", uint64(slot)<<(64-slotBits))
}
