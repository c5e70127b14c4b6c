package wire

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// Member is a replica, and where it is reached.
type Member struct {
	Name, Address string
	// Relay says that it owns no nodes.
	Relay bool `cbor:",omitempty"`
}

// Branch is a replica that a question is sent to, with those that it hands it on to.
type Branch struct {
	Member   Member
	Branches []Branch `cbor:",omitempty"`
}

// Members are all replicas in a branch.
func (b *Branch) Members() []Member {
	members := []Member{b.Member}
	for i := range b.Branches {
		members = append(members, b.Branches[i].Members()...)
	}
	return members
}

// Grow makes a tree of members: nobody hands a question on to more than fanout others.
// Where that leaves a choice, relays hand on, and which of the others do depends on the
// key, so that questions about different pods are gathered by different replicas.
func Grow(members []Member, fanout int, key []byte) []Branch {
	h := fnv.New64a()
	h.Write(key)
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int {
		if a.Relay != b.Relay {
			if a.Relay {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	relays := slices.IndexFunc(members, func(m Member) bool { return !m.Relay })
	if relays >= 0 && relays < len(members) {
		rotate(members[relays:], int(h.Sum64()%uint64(len(members)-relays)))
	}
	if relays > 0 {
		rotate(members[:relays], int(h.Sum64()%uint64(relays)))
	}
	return split(members, fanout)
}

// split makes branches of about the same size, each under the first of its members.
func split(members []Member, fanout int) []Branch {
	var branches []Branch
	heads := min(fanout, len(members))
	rest := members[heads:]
	for i := range heads {
		size := len(rest) / (heads - i)
		branches = append(branches, Branch{Member: members[i], Branches: split(rest[:size], fanout)})
		rest = rest[size:]
	}
	return branches
}

func rotate(members []Member, by int) {
	slices.Reverse(members[:by])
	slices.Reverse(members[by:])
	slices.Reverse(members)
}

// Patience is how long answers are waited for.
type Patience struct {
	// Deadline is when those that have not come are done without.
	Deadline time.Duration
	// Quorum, in hundredths, of the branches have to have answered before the others
	// are given no more than Grace, or as long as it took so far if that is longer.
	// At 100 all are waited for until the deadline.
	Quorum int
	Grace  time.Duration
}

// Gather asks branches by send, and folds what they answer with own, which may be nil.
// Replicas that do not answer in time are listed as absent.
func Gather(
	ctx context.Context, own func() *Answer, branches []Branch, patience Patience, offers int,
	send func(context.Context, *Branch) (*Answer, error),
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
	cut := time.NewTimer(patience.Deadline)
	defer cut.Stop()
	for left := len(branches); left > 0; {
		select {
		case r := <-replies:
			left--
			waiting[r.branch] = false
			if r.err != nil {
				r.answer = &Answer{Errors: []string{fmt.Sprintf("%s: %v", branches[r.branch].Member.Name, r.err)}, Absent: names(&branches[r.branch])}
			}
			answers = append(answers, r.answer)
			if done := len(branches) - left; patience.Quorum < 100 && done*100 >= patience.Quorum*len(branches) {
				cut.Reset(min(max(patience.Grace, time.Since(started)), time.Until(started.Add(patience.Deadline))))
			}
		case <-cut.C:
			left = 0
		}
	}
	for i := range branches {
		if waiting[i] {
			answers = append(answers, &Answer{Absent: names(&branches[i])})
		}
	}
	return Fold(answers, offers)
}

func names(b *Branch) []string {
	var all []string
	for _, member := range b.Members() {
		all = append(all, member.Name)
	}
	return all
}
