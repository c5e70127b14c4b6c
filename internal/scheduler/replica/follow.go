package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

const (
	// If the Lease cannot be read, a replica follows terms up to maxUnverifiedTerms beyond the last one
	// that it has verified. Each change of the leader is one term.
	maxUnverifiedTerms = 8
	// verifyInterval is the interval between attempts to verify such a term.
	verifyInterval = time.Second
)

// receiveAssignments follows the assignments from another replica that [Replica.mayFollow] admits.
func (r *Replica) receiveAssignments(from string, assignments []*wire.Assignment) error {
	for _, a := range assignments {
		follow, err := r.mayFollow(from, a)
		switch {
		case errors.Is(err, membership.ErrReplaced):
			// The later leader sends its own assignment.
		case errors.Is(err, membership.ErrNotElected):
			rejectedAssignments.Inc()
			r.logger.Error(err, "Ignoring an assignment of hash slots", "from", from, "number", a.Number)
		case err == nil && follow:
			r.member.Adopt(a)
		}
		r.member.SendNewerAssignment(from, a)
		if err != nil && !errors.Is(err, membership.ErrReplaced) && !errors.Is(err, membership.ErrNotElected) {
			// The sender sends the assignment again on its next connection.
			return err
		}
	}
	return nil
}

// mayFollow returns whether this replica may follow an assignment that another replica has sent. Within a
// term, only its first leader may assign slots. A later term is followed only if the Lease says that the
// sender leads for exactly this term. Otherwise a replica with a wrong term, however large, would stop
// scheduling for all.
func (r *Replica) mayFollow(from string, a *wire.Assignment) (bool, error) {
	current, self := r.member.Assignment(), r.member.Self()
	switch {
	case from == self:
		return true, nil
	case !r.options.Elected && r.leader.Contested(a):
		err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
		if err == nil {
			r.leader.StartAgain(a.Term)
		}
		return false, err
	case a.Leader.Name != from:
		// Another replica has answered an assignment of this one with a later one. It is only important
		// to a leader, which has been replaced if the later term is right.
		if term := r.leader.Term(); term == 0 || a.Term <= term || a.Leader.Name == self {
			return false, nil
		}
	case current == nil || a.Term > current.Term:
	case a.Term == current.Term:
		if a.Leader.Name != current.Leader.Name {
			if !r.options.Elected {
				// The sender starts again with a later term.
				return false, nil
			}
			return false, fmt.Errorf("replica %s as leader for term %d: %w; this is the term of %s", from, a.Term, membership.ErrNotElected, current.Leader.Name)
		}
		return true, nil
	default:
		return false, r.exitIfLeaseReplaced(a, current.Term)
	}
	return r.verify(a)
}

// verify returns whether the leader of an assignment was elected for its term. If the Lease cannot be read,
// it believes a term that is near the last verified one, and verifies it later. A replica that is cut off
// from the API server for a moment would otherwise lose its nodes when the leader changes.
func (r *Replica) verify(a *wire.Assignment) (bool, error) {
	err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
	switch {
	case err == nil:
		r.verifiedTerm.Store(max(r.verifiedTerm.Load(), a.Term))
		return true, nil
	case errors.Is(err, membership.ErrNotElected), errors.Is(err, membership.ErrReplaced):
		return false, err
	}
	if last := r.verifiedTerm.Load(); last == 0 || a.Term > last+maxUnverifiedTerms {
		return false, err
	}
	r.logger.Info("Following a leader without having verified that it was elected", "leader", a.Leader.Name, "term", a.Term, "err", err)
	go r.verifyLater(a)
	return true, nil
}

// verifyLater makes this process exit if it follows a leader that was not elected.
func (r *Replica) verifyLater(a *wire.Assignment) {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-time.After(verifyInterval):
		}
		if current := r.member.Assignment(); current.Term != a.Term || current.Leader.Name != a.Leader.Name {
			return
		}
		switch err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term); {
		case err == nil:
			r.verifiedTerm.Store(max(r.verifiedTerm.Load(), a.Term))
			return
		case errors.Is(err, membership.ErrReplaced):
			return
		case errors.Is(err, membership.ErrNotElected):
			r.exit(err, "Starting again without a term")
			return
		}
	}
}

// exitIfLeaseReplaced makes this process exit if a replica was elected for an earlier term than the current
// one. Somebody has replaced the leader election Lease, and terms are counted anew. The next process starts
// without a term.
func (r *Replica) exitIfLeaseReplaced(a *wire.Assignment, current int64) error {
	if !r.options.Elected {
		return nil
	}
	err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
	if err == nil {
		r.exit(fmt.Errorf("the leader election Lease was replaced: %s was elected for term %d, after term %d", a.Leader.Name, a.Term, current), "Starting again without a term")
	}
	return err
}
