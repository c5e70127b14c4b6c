package wire

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Slots is into how many parts of equal size the hashes of UIDs are divided. It is a
// power of two, and the same for all replicas.
const Slots = 1024

// slotBits of a hash are the number of its slot.
var slotBits = bits.Len(uint(Slots)) - 1

// Slot of an object. The hash is the one that the API server selects shards by
// (k8s.io/apimachinery/pkg/sharding).
func Slot(uid types.UID) int {
	h := fnv.New64a()
	h.Write([]byte(uid))
	return int(h.Sum64() >> (64 - slotBits))
}

// Selector is the API server's for objects in some slots; they are in order.
func Selector(slots []int) string {
	var ranges []string
	for first := 0; first < len(slots); {
		last := first
		for last+1 < len(slots) && slots[last+1] == slots[last]+1 {
			last++
		}
		ranges = append(ranges, fmt.Sprintf("shardRange(object.metadata.uid, '%s', '%s')", bound(slots[first]), bound(slots[last]+1)))
		first = last + 1
	}
	return strings.Join(ranges, " || ")
}

// bound is the first hash of a slot; that after the last slot has a digit more.
func bound(slot int) string {
	if slot == Slots {
		return "0x1" + strings.Repeat("0", 16)
	}
	return fmt.Sprintf("0x%016x", uint64(slot)<<(64-slotBits))
}

// Table says which replica owns which slot; "" where none does.
type Table []string

// Assign gives each slot to one of the replicas. Those that have a slot keep it, unless
// they have more than their share, and no more slots move than have to.
func Assign(before Table, replicas []string) Table {
	after := make(Table, Slots)
	if len(replicas) == 0 {
		return after
	}
	members := slices.Sorted(slices.Values(replicas))
	held := map[string]int{}
	for slot := range after {
		if slot < len(before) && slices.Contains(members, before[slot]) {
			after[slot] = before[slot]
			held[before[slot]]++
		}
	}
	share := shares(members, held)
	for slot, owner := range after {
		if owner != "" && held[owner] > share[owner] {
			held[owner]--
			after[slot] = ""
		}
	}
	for slot, owner := range after {
		for owner == "" && held[members[0]] >= share[members[0]] {
			members = members[1:]
		}
		if owner == "" {
			after[slot] = members[0]
			held[members[0]]++
		}
	}
	return after
}

// shares are how many slots each replica is to have: as many as the others, or one
// more, which those get that have the most.
func shares(members []string, held map[string]int) map[string]int {
	most := slices.Clone(members)
	slices.SortStableFunc(most, func(a, b string) int { return cmp.Compare(held[b], held[a]) })
	share := map[string]int{}
	for i, member := range most {
		share[member] = Slots / len(members)
		if i < Slots%len(members) {
			share[member]++
		}
	}
	return share
}

// Of is the slots of a replica, in order.
func (t Table) Of(replica string) []int {
	var slots []int
	for slot, owner := range t {
		if owner == replica {
			slots = append(slots, slot)
		}
	}
	return slots
}

// Owners are the replicas that have slots, in order.
func (t Table) Owners() []string {
	owners := slices.DeleteFunc(slices.Sorted(slices.Values(t)), func(owner string) bool { return owner == "" })
	return slices.Compact(owners)
}
