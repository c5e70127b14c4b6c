package refresh

import (
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// slotSet is some of the slots; nil is none.
type SlotSet []bool

func NewSlotSet(slots []int) SlotSet {
	all := make(SlotSet, wire.Slots)
	all.Add(slots)
	return all
}

// every is all slots.
func AllSlots() SlotSet {
	all := make(SlotSet, wire.Slots)
	for slot := range all {
		all[slot] = true
	}
	return all
}

// add adds slots, as far as there are such.
func (s SlotSet) Add(slots []int) {
	for _, slot := range slots {
		if slot >= 0 && slot < len(s) {
			s[slot] = true
		}
	}
}

func (s SlotSet) Has(slot int) bool { return slot < len(s) && s[slot] }

// of are those slots that a replica owns, in order.
func (s SlotSet) Of(table wire.Table, owner string) []int {
	return slices.DeleteFunc(table.Of(owner), func(slot int) bool { return !s.Has(slot) })
}
