// Package refresh tracks full lists of pods that replicas send to each other. At the end of a list, the
// receiver removes the pods that were not in the list.
package refresh

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// SlotSet is a set of hash slots; nil is empty.
type SlotSet []bool

// NewSlotSet returns the set of the given slots.
func NewSlotSet(slots []int) SlotSet {
	set := make(SlotSet, membership.SlotCount)
	set.Add(slots)
	return set
}

// AllSlots returns the set of all slots.
func AllSlots() SlotSet {
	set := make(SlotSet, membership.SlotCount)
	for slot := range set {
		set[slot] = true
	}
	return set
}

// Add adds slots. It ignores numbers that are not slots.
func (s SlotSet) Add(slots []int) {
	for _, slot := range slots {
		if slot >= 0 && slot < len(s) {
			s[slot] = true
		}
	}
}

// AddAll adds the slots of another set.
func (s SlotSet) AddAll(other SlotSet) {
	for slot, has := range other {
		s[slot] = s[slot] || has
	}
}

// Has returns whether a slot is in the set.
func (s SlotSet) Has(slot int) bool { return slot < len(s) && s[slot] }

// Of returns the slots in the set that a replica owns, sorted.
func (s SlotSet) Of(table membership.Table, owner string) []int {
	return slices.DeleteFunc(table.Of(owner), func(slot int) bool { return !s.Has(slot) })
}
