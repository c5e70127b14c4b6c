package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// TestGrow: everybody is asked once, by few, and relays hand on before others do.
func TestGrow(t *testing.T) {
	for _, size := range []int{0, 1, 2, 10, 11, 57, 256} {
		for _, fanout := range []int{1, 3, 10, 30} {
			var members []Member
			for i := range size {
				members = append(members, Member{Name: fmt.Sprint(i), Relay: i%10 == 9})
			}
			heads := map[string]bool{}
			for key := range 20 {
				branches := Grow(members, fanout, []byte{byte(key)})
				var all []string
				var walk func([]Branch)
				walk = func(branches []Branch) {
					if len(branches) > fanout {
						t.Fatalf("%d branches, with a fanout of %d", len(branches), fanout)
					}
					for _, b := range branches {
						all = append(all, b.Member.Name)
						if len(b.Branches) > 0 {
							heads[b.Member.Name] = true
						}
						walk(b.Branches)
					}
				}
				walk(branches)
				slices.Sort(all)
				if len(slices.Compact(all)) != size {
					t.Fatalf("%d of %d are asked", len(slices.Compact(all)), size)
				}
			}
			if size == 256 && fanout == 10 && !heads["9"] {
				t.Error("a relay hands nothing on")
			}
		}
	}
}

// TestGather: who is late is cut off, after a quorum or at the deadline.
func TestGather(t *testing.T) {
	members := []Member{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "slow"}, {Name: "broken"}}
	branches := Grow(members, 10, nil)
	answer := func(nodes int) *Answer {
		return &Answer{Summary: index.Summary{Nodes: nodes}, Values: []string{NoValue, ""}}
	}
	send := func(ctx context.Context, b *Branch) (*Answer, error) {
		switch b.Member.Name {
		case "slow":
			<-ctx.Done()
			return nil, ctx.Err()
		case "broken":
			return nil, errors.New("no such host")
		}
		return answer(10), nil
	}
	for _, patience := range []Patience{
		{Deadline: 50 * time.Millisecond, Quorum: 100},
		{Deadline: time.Hour, Quorum: 60, Grace: time.Millisecond},
	} {
		all := Gather(t.Context(), func() *Answer { return answer(1) }, branches, patience, 1, send)
		slices.Sort(all.Absent)
		if all.Summary.Nodes != 31 || !slices.Equal(all.Absent, []string{"broken", "slow"}) {
			t.Errorf("%+v: %d nodes, absent %v", patience, all.Summary.Nodes, all.Absent)
		}
	}
}
