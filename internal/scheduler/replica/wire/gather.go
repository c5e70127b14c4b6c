package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Gather queries branches with send and merges their answers with the answer of own, which may be nil.
// The replicas of branches that do not answer in time are listed in Absent.
func Gather(
	ctx context.Context, own func() *Answer, branches []membership.Branch, patience Patience, offers int,
	send func(context.Context, *membership.Branch) (*Answer, error),
) *Answer {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience.Deadline)
	defer cancel()
	type reply struct {
		branch int
		answer *Answer
		err    error
	}
	replies := make(chan reply, len(branches))
	for i := range branches {
		go func() {
			answer, err := send(ctx, &branches[i])
			replies <- reply{i, answer, err}
		}()
	}
	var answers []*Answer
	if own != nil {
		answers = append(answers, own())
	}
	waiting := make([]bool, len(branches))
	for i := range waiting {
		waiting[i] = true
	}
	left := len(branches)
	add := func(r reply) {
		left--
		waiting[r.branch] = false
		if r.err != nil {
			branch := &branches[r.branch]
			r.answer = &Answer{Errors: []string{fmt.Sprintf("%s: %v", branch.Member.Name, r.err)}, Absent: branch.Names()}
		}
		answers = append(answers, r.answer)
	}
	timeout := time.NewTimer(patience.Deadline)
	defer timeout.Stop()
	for waits := true; waits && left > 0; {
		select {
		case r := <-replies:
			add(r)
			if done := len(branches) - left; patience.Quorum < 100 && done*100 >= patience.Quorum*len(branches) {
				timeout.Reset(min(max(patience.Grace, time.Since(started)), time.Until(started.Add(patience.Deadline))))
			}
		case <-timeout.C:
			waits = false
		}
	}
	// Answers that have arrived by now are not late, although own, or this goroutine, took longer than the deadline.
	for arrived := true; arrived && left > 0; {
		select {
		case r := <-replies:
			add(r)
		default:
			arrived = false
		}
	}
	for i := range branches {
		if waiting[i] {
			answers = append(answers, &Answer{Absent: branches[i].Names()})
		}
	}
	return Fold(answers, offers)
}
