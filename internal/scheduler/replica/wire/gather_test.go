package wire

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TestGatherReportsReplicasWithoutAnswer checks that replicas that have not answered are reported
// as absent at the deadline, or after the grace time that follows the quorum.
func TestGatherReportsReplicasWithoutAnswer(t *testing.T) {
	members := []membership.Member{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "slow"}, {Name: "broken"}}
	branches := membership.Grow(members, 10, nil)
	answer := func(nodes int) *Answer {
		return &Answer{Summary: index.Summary{Nodes: nodes}, Values: []string{NoValue, ""}}
	}
	send := func(ctx context.Context, b *membership.Branch) (*Answer, error) {
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
		{Deadline: time.Second, Quorum: 100},
		{Deadline: time.Hour, Quorum: 60, Grace: time.Second},
	} {
		all := Gather(t.Context(), func() *Answer { return answer(1) }, branches, patience, 1, send)
		slices.Sort(all.Absent)
		if all.Summary.Nodes != 31 || !slices.Equal(all.Absent, []string{"broken", "slow"}) {
			t.Errorf("Gather() with %+v = %d nodes, absent %v, want 31 nodes, absent [broken slow]", patience, all.Summary.Nodes, all.Absent)
		}
	}
}

// TestGatherUsesAnswersThatHaveArrived has the own answer take longer than the deadline. The answers of other replicas that
// have arrived meanwhile are used.
func TestGatherUsesAnswersThatHaveArrived(t *testing.T) {
	var members []membership.Member
	for i := range 20 {
		members = append(members, membership.Member{Name: string(rune('a' + i))})
	}
	const deadline = 10 * time.Millisecond
	answer := func() *Answer { return &Answer{Summary: index.Summary{Nodes: 1}, Values: []string{NoValue, ""}} }
	send := func(context.Context, *membership.Branch) (*Answer, error) { return answer(), nil }
	own := func() *Answer { time.Sleep(50 * deadline); return answer() }
	all := Gather(t.Context(), own, membership.Grow(members, 20, nil), Patience{Deadline: deadline, Quorum: 90}, 1, send)
	if all.Summary.Nodes != 21 || len(all.Absent) > 0 {
		t.Errorf("Gather() = %d nodes, absent %v, want 21 nodes and none absent", all.Summary.Nodes, all.Absent)
	}
}
