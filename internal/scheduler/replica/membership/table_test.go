package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/sharding"
)

// TestSelectorMatchesObjectsOfItsSlots checks that the selector, as parsed by the API server,
// selects the objects whose [SlotOf] is in the list.
func TestSelectorMatchesObjectsOfItsSlots(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		var slots []int
		for slot := range SlotCount {
			if random.IntN(3) == 0 || slot == 0 || slot == SlotCount-1 {
				slots = append(slots, slot)
			}
		}
		selector, err := sharding.Parse(Selector(slots))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			uid := types.UID(fmt.Sprintf("%x-%d", random.Uint64(), i))
			matches, err := selector.Matches(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
			if err != nil {
				t.Fatal(err)
			}
			if want := slices.Contains(slots, SlotOf(uid)); matches != want {
				t.Fatalf("Matches() of UID %s in slot %d = %v, want %v", uid, SlotOf(uid), matches, want)
			}
		}
	}
}

// TestAssignBalancesSlotsWithFewestMoves checks that replicas get equal shares and that no slot
// moves unnecessarily.
func TestAssignBalancesSlotsWithFewestMoves(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	var table Table
	for round := range 300 {
		var replicas []string
		for i := range 12 {
			if random.IntN(2) == 0 {
				replicas = append(replicas, fmt.Sprintf("replica-%d", i))
			}
		}
		before := table
		table = Assign(before, replicas)
		if len(replicas) == 0 {
			if len(table.Owners()) > 0 {
				t.Fatalf("round %d: Owners() = %v without replicas, want none", round, table.Owners())
			}
			continue
		}
		moved, needed := 0, 0
		for _, replica := range replicas {
			owned := len(table.Of(replica))
			if owned > SlotCount/len(replicas)+1 || owned < SlotCount/len(replicas) {
				t.Fatalf("round %d: %s owns %d of %d slots, want an equal share for %d replicas", round, replica, owned, SlotCount, len(replicas))
			}
			if before != nil {
				needed += max(0, owned-len(before.Of(replica)))
			}
		}
		for slot := range before {
			if before[slot] != table[slot] {
				moved++
			}
		}
		if before != nil && moved != needed {
			t.Fatalf("round %d: %d slots moved, want %d", round, moved, needed)
		}
	}
}
