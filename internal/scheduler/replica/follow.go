package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// verifyInterval is the interval between attempts to verify a term for which the Lease could not be read.
const verifyInterval = time.Second

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

// mayFollow returns whether this replica may follow an assignment that another replica has sent (see
// [core.Follower.Judge]).
func (r *Replica) mayFollow(from string, a *wire.Assignment) (bool, error) {
	current := r.member.Assignment()
	switch r.follower.Judge(from, a, current, r.leader.Term(), r.leader.Contested(a)) {
	case core.Follow:
		return true, nil
	case core.Verify:
		return r.verify(a)
	case core.Contest:
		err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
		if err == nil {
			r.leader.StartAgain(a.Term)
		}
		return false, err
	case core.CheckReplaced:
		return false, r.exitIfLeaseReplaced(a, current.Term)
	case core.Reject:
		return false, core.Rejection(from, a, current)
	}
	return false, nil
}

// verify returns whether the leader of an assignment was elected for its term, as far as this replica can find out (see
// [core.Follower.Verified]).
func (r *Replica) verify(a *wire.Assignment) (bool, error) {
	answer := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
	r.verifying.Lock()
	follow, later, err := r.follower.Verified(a, answer)
	r.verifying.Unlock()
	if later {
		r.logger.Info("Following a leader without having verified that it was elected", "leader", a.Leader.Name, "term", a.Term, "err", answer)
		go r.verifyLater(a)
	}
	return follow, err
}

// believe records that this replica knows who was elected for a term.
func (r *Replica) believe(term int64) {
	r.verifying.Lock()
	defer r.verifying.Unlock()
	r.follower.Believe(term)
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
			r.believe(a.Term)
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
	err := r.options.Election.Check(r.ctx, a.Leader.Name, a.Term)
	if err == nil {
		r.exit(fmt.Errorf("the leader election Lease was replaced: %s was elected for term %d, after term %d", a.Leader.Name, a.Term, current), "Starting again without a term")
	}
	return err
}
