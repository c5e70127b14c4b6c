package membership

import (
	"cmp"
	"slices"
)

// Table has the name of the owner of each hash slot; "" if the slot has no owner.
type Table []string

// Assign assigns each hash slot to one of the replicas. The numbers of slots of any two replicas differ by
// at most 1. As few slots as possible change their owner: a replica loses a slot only if it has more than
// its share.
func Assign(before Table, replicas []string) Table {
	after := make(Table, SlotCount)
	if len(replicas) == 0 {
		return after
	}
	members := slices.Sorted(slices.Values(replicas))
	owned := map[string]int{}
	for slot := range after {
		if slot < len(before) && slices.Contains(members, before[slot]) {
			after[slot] = before[slot]
			owned[before[slot]]++
		}
	}
	share := shares(members, owned)
	for slot, owner := range after {
		if owner != "" && owned[owner] > share[owner] {
			owned[owner]--
			after[slot] = ""
		}
	}
	for slot, owner := range after {
		for owner == "" && owned[members[0]] >= share[members[0]] {
			members = members[1:]
		}
		if owner == "" {
			after[slot] = members[0]
			owned[members[0]]++
		}
	}
	return after
}

// shares returns the number of slots that each replica must have. If the slots cannot be divided equally,
// the replicas that currently own the most slots get one more than the others.
func shares(members []string, owned map[string]int) map[string]int {
	byOwned := slices.Clone(members)
	slices.SortStableFunc(byOwned, func(a, b string) int { return cmp.Compare(owned[b], owned[a]) })
	share := map[string]int{}
	for i, member := range byOwned {
		share[member] = SlotCount / len(members)
		if i < SlotCount%len(members) {
			share[member]++
		}
	}
	return share
}

// Of returns the slots that a replica owns, sorted.
func (t Table) Of(replica string) []int {
	var slots []int
	for slot, owner := range t {
		if owner == replica {
			slots = append(slots, slot)
		}
	}
	return slots
}

// Owners returns the names of the replicas that own slots, sorted.
func (t Table) Owners() []string {
	owners := slices.DeleteFunc(slices.Sorted(slices.Values(t)), func(owner string) bool { return owner == "" })
	return slices.Compact(owners)
}
