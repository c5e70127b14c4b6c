// Package refresh tracks full lists that replicas send to each other: after a list is complete,
// objects that were not in it are removed.
package refresh

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// SlotSet is a set of hash slots; nil is empty.
type SlotSet []bool

// NewSlotSet returns a set of some slots.
func NewSlotSet(slots []int) SlotSet {
	all := make(SlotSet, membership.SlotCount)
	all.Add(slots)
	return all
}

// AllSlots returns the set of all slots.
func AllSlots() SlotSet {
	all := make(SlotSet, membership.SlotCount)
	for slot := range all {
		all[slot] = true
	}
	return all
}

// Add adds slots. It ignores numbers that are not slots.
func (s SlotSet) Add(slots []int) {
	for _, slot := range slots {
		if slot >= 0 && slot < len(s) {
			s[slot] = true
		}
	}
}

// Has returns whether a slot is in the set.
func (s SlotSet) Has(slot int) bool { return slot < len(s) && s[slot] }

// Of returns the slots in the set that a replica owns, in order.
func (s SlotSet) Of(table membership.Table, owner string) []int {
	return slices.DeleteFunc(table.Of(owner), func(slot int) bool { return !s.Has(slot) })
}
