package core

import (
	"errors"
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// MaxUnverifiedTerms is the number of terms, beyond the last one that it has verified, up to which a replica follows a
// leader while the Lease cannot be read. Each change of the leader is one term.
const MaxUnverifiedTerms = 8

// Follower decides which assignments a replica may follow. Within a term, only its first leader may assign slots. A later
// term is followed only if the Lease says that the sender leads for exactly this term. Otherwise a replica with a wrong
// term, however large, would stop scheduling for all.
type Follower struct {
	// Self is the name of this replica. Elected is true if leader election is used.
	Self    string
	Elected bool
	Fault   Fault
	// verified is the last term for which this replica has verified who was elected.
	verified int64
}

// Judgement says what a replica does with an assignment that it has received.
type Judgement int

const (
	// Ignore means that the assignment has no effect.
	Ignore Judgement = iota
	// Follow means that the replica may follow the assignment.
	Follow
	// Verify means that the caller asks the election whether the leader was elected for the term, and then calls
	// [Follower.Verified].
	Verify
	// Contest means that another process leads for the term of this leader. If the election does not refute that, this
	// leader starts again with a later term.
	Contest
	// CheckReplaced means that the assignment is of an earlier term than the current one. If the election says that its
	// leader was elected, the Lease was replaced, and terms are counted anew: the process exits, and starts again without
	// a term.
	CheckReplaced
	// Reject means that the sender claims a term of another leader.
	Reject
)

// Judge returns what to do with an assignment that another replica has sent. current is the assignment that this replica
// follows; nil if there is none. leads is the term for which this replica leads; 0 if it does not. contested is
// [Leader.Contested].
func (f *Follower) Judge(from string, a, current *wire.Assignment, leads int64, contested bool) Judgement {
	switch {
	case from == f.Self:
		return Follow
	case !f.Elected && contested:
		return Contest
	case a.Leader.Name != from && f.Fault != FollowAnySender:
		// Another replica has answered an assignment of this one with a later one. It is only important
		// to a leader, which has been replaced if the later term is right.
		if leads == 0 || a.Term <= leads || a.Leader.Name == f.Self {
			return Ignore
		}
	case current == nil || a.Term > current.Term:
	case a.Term == current.Term:
		switch {
		case a.Leader.Name == current.Leader.Name:
			return Follow
		case !f.Elected:
			// The sender starts again with a later term.
			return Ignore
		}
		return Reject
	case f.Elected:
		return CheckReplaced
	default:
		return Ignore
	}
	if f.Fault == FollowUnverified {
		return Follow
	}
	return Verify
}

// Verified returns whether to follow an assignment after the election has answered with an error or nil. If it cannot
// answer, the replica believes a term that is near the last verified one; then later is true, and the caller verifies it
// later. A replica that is cut off from the API server for a moment would otherwise lose its nodes when the leader changes.
func (f *Follower) Verified(a *wire.Assignment, answer error) (follow, later bool, err error) {
	switch {
	case answer == nil:
		f.Believe(a.Term)
		return true, false, nil
	case errors.Is(answer, membership.ErrNotElected), errors.Is(answer, membership.ErrReplaced):
		return false, false, answer
	case f.verified == 0 || a.Term > f.verified+MaxUnverifiedTerms:
		return false, false, answer
	}
	return true, true, nil
}

// VerifiedTerm returns the last term for which this replica knows who was elected; 0 if there is none.
func (f *Follower) VerifiedTerm() int64 { return f.verified }

// Believe records that this replica knows who was elected for a term.
func (f *Follower) Believe(term int64) { f.verified = max(f.verified, term) }

// Rejection returns the error of an assignment for a term of another leader.
func Rejection(from string, a, current *wire.Assignment) error {
	return fmt.Errorf("replica %s as leader for term %d: %w; this is the term of %s", from, a.Term, membership.ErrNotElected, current.Leader.Name)
}

// Adoption says what an assignment changes for a replica that follows it.
type Adoption struct {
	// Later is false if the replica follows this assignment, or a later one, already. Nothing else is set then.
	Later bool
	// Replaced is true if this replica is a leader, and another one leads for a later term. The process exits: even if it
	// holds the Lease again, no replica follows its earlier term.
	Replaced bool
	// Missed is true if the replica did not follow the preceding assignment. It may have missed a change of owners, so it
	// removes all objects and lists them again.
	Missed bool
	// NewTerm is true if another leader, or another term of the leader, begins. It needs the pending pods, and sends its
	// own nominations.
	NewTerm bool
}

// Followed returns what an assignment changes. leads is the term for which this replica leads; 0 if it does not. If the
// assignment is later, and does not replace this replica as the leader, the caller takes these steps, with other calls
// between them as they come:
//
//  1. [Member.Adopt], and [Ledger.ForgetNominated] if the term is new, and [Ledger.ShortenOld].
//  2. If an assignment was missed, it stops all watches and removes all objects, with [Member.Cleared] and
//     [Ledger.Clear].
//  3. [Member.StartLists]. Then it watches the hash slots of this replica.
//  4. [Member.LostNodes] with the nodes in the hash slots that the replica has lost, and [Ledger.DropNodes].
//  5. [Member.Applied] with the hash slots that it has gained. Then it sends a request on the connection of the watches,
//     and calls [Member.Checked] when this has succeeded.
//  6. It carries out the output of Adopt from DropPods on, and calls [Member.Due] and [Member.SendDue].
func (m *Member) Followed(a *wire.Assignment, leads int64) Adoption {
	current := m.assignment
	if !a.Later(current) && m.config.Fault != FollowOlder {
		return Adoption{}
	}
	return Adoption{
		Later:    true,
		Replaced: m.config.Elected && leads > 0 && a.Term > leads && a.Leader.Name != m.config.Self,
		Missed:   current != nil && !a.Follows(current) && m.config.Fault != MissAssignments,
		NewTerm:  current == nil || current.Term != a.Term,
	}
}

// isOutdated returns whether a replica has sent an assignment in place of which it should follow that of this replica. The sender
// may not know of the later leader, for example because its process was suspended, or of the other leader for its term. A
// leader sends its own assignment to each replica anyway.
func (m *Member) isOutdated(from string, sent *wire.Assignment) bool {
	latest := m.assignment
	if latest == nil || sent == nil {
		return false
	}
	leads := sent.Leader.Name == from && latest.Leader.Name != m.config.Self
	return latest.Term > sent.Term || leads && sent.Superseded(latest)
}
