package membership

import (
	"fmt"
	"slices"
	"testing"
)

// TestGrow checks that a tree contains each replica once, respects the fanout, and has
// relays near the root.
func TestGrow(t *testing.T) {
	for _, size := range []int{0, 1, 2, 10, 11, 57, 256} {
		for _, fanout := range []int{1, 3, 10, 30} {
			var members []Member
			for i := range size {
				members = append(members, Member{Name: fmt.Sprint(i), Relay: i%10 == 9})
			}
			inner := map[string]bool{}
			for key := range 20 {
				branches := Grow(members, fanout, []byte{byte(key)})
				var all []string
				var walk func([]Branch)
				walk = func(branches []Branch) {
					if len(branches) > fanout {
						t.Fatalf("%d branches with a fanout of %d", len(branches), fanout)
					}
					for _, b := range branches {
						all = append(all, b.Member.Name)
						if len(b.Branches) > 0 {
							inner[b.Member.Name] = true
						}
						walk(b.Branches)
					}
				}
				walk(branches)
				slices.Sort(all)
				if len(slices.Compact(all)) != size {
					t.Fatalf("the tree has %d of %d replicas", len(slices.Compact(all)), size)
				}
			}
			if size == 256 && fanout == 10 && !inner["9"] {
				t.Error("relay 9 was never an inner node")
			}
		}
	}
}
