package membership

import (
	"fmt"
	"slices"
	"testing"
)

// TestTreeContainsEachReplicaOnce checks that a tree contains as many different replicas as exist, that
// no replica has more branches than the fanout, and that a relay is an inner node in at least one of 20
// trees.
func TestTreeContainsEachReplicaOnce(t *testing.T) {
	for _, size := range []int{0, 1, 2, 10, 11, 57, 256} {
		for _, fanout := range []int{1, 3, 10, 30} {
			var members []Member
			for i := range size {
				members = append(members, Member{Name: fmt.Sprint(i), Relay: i%10 == 9})
			}
			innerNodes := map[string]bool{}
			for key := range 20 {
				branches := Grow(members, fanout, []byte{byte(key)})
				var names []string
				var walk func([]Branch)
				walk = func(branches []Branch) {
					if len(branches) > fanout {
						t.Fatalf("%d replicas: a replica has %d branches, want at most the fanout %d", size, len(branches), fanout)
					}
					for _, b := range branches {
						names = append(names, b.Member.Name)
						if len(b.Branches) > 0 {
							innerNodes[b.Member.Name] = true
						}
						walk(b.Branches)
					}
				}
				walk(branches)
				slices.Sort(names)
				if distinct := len(slices.Compact(names)); distinct != size {
					t.Fatalf("fanout %d: the tree has %d distinct replicas, want %d", fanout, distinct, size)
				}
			}
			if size == 256 && fanout == 10 && !innerNodes["9"] {
				t.Error("relay 9 was an inner node in none of 20 trees, want at least one")
			}
		}
	}
}
