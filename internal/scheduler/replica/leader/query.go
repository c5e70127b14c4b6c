package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Query sends a query to all replicas that own nodes and merges their answers. If all is true, or the option
// WaitForAll is set, it waits for the answers of all owners, and returns errIncomplete if one is missing. With WaitForAll, an
// owner that cannot use a new node yet does not answer.
func (l *Leader) Query(ctx context.Context, query *wire.Query, all bool) (*wire.Answer, error) {
	q := &wire.Request{Query: query, From: l.member.Self(), Patience: l.options.Patience, AwaitNodes: l.options.WaitForAll, Reservations: map[string]uint64{}}
	all = all || l.options.WaitForAll
	if all {
		q.Patience.Quorum = 100
	}
	l.mu.Lock()
	// Under the lock, so that all reservations count that were sent to a replica before it became ready,
	// and so that a new connection counts only if the nominations were sent on it.
	l.sendNominations()
	sent := l.member.Reservations()
	q.Term, q.Number = l.term, l.number
	owners := l.table.Owners()
	var members []membership.Member
	var absent []string
	own := false
	for _, member := range l.members {
		late := l.late[member.Name]
		paused := late != nil && time.Now().Before(late.until)
		switch {
		case !member.Relay && !slices.Contains(owners, member.Name):
		case member.Relay && (!hasKey(sent, member.Name) || paused):
			// Other replicas forward the query in place of this relay.
		case !member.Relay && !l.ready.Has(member.Name), !hasKey(sent, member.Name), !all && paused:
			absent = append(absent, member.Name)
		case member.Name == l.member.Self():
			own = !member.Relay
		default:
			members = append(members, member)
		}
		q.Reservations[member.Name] = sent[member.Name]
	}
	l.mu.Unlock()
	var answerOwn func() *wire.Answer
	if own {
		answerOwn = func() *wire.Answer { return l.answer(ctx, q) }
	}
	started := time.Now()
	answer := l.dial.Scatter(ctx, answerOwn, members, l.options.Fanout, query.Pod, q)
	queryTimes.Observe(time.Since(started).Seconds())
	if unreached := l.unreachedBehindRelays(members, answer, query.Pod); len(unreached) > 0 && ctx.Err() == nil {
		// Query these replicas again, directly. They do not count as late because of a late relay.
		answer.Absent = slices.DeleteFunc(answer.Absent, func(name string) bool {
			return slices.ContainsFunc(unreached, func(m membership.Member) bool { return m.Name == name })
		})
		first := answer
		answer = l.dial.Scatter(ctx, func() *wire.Answer { return first }, unreached, max(len(unreached), 1), query.Pod, q)
	}
	l.recordLate(members, answer)
	if answer.Failed != "" {
		// Upstream places a pod on no node if the plugins fail for one node. Other pods are not affected.
		return nil, fmt.Errorf("evaluating the nodes of replica %s", answer.Failed)
	}
	answer.Absent = slices.DeleteFunc(append(answer.Absent, absent...), func(name string) bool { return !slices.Contains(owners, name) })
	if len(answer.Absent) == len(owners) {
		return nil, fmt.Errorf("%w: %v", errNoAnswer, answer.Errors)
	}
	if len(answer.Absent) > 0 && (all || l.mayHaveAntiAffinity(answer.Absent)) {
		return nil, errIncomplete
	}
	return answer, nil
}

// unreachedBehindRelays returns the owners that the query may not have reached, because the replica
// that should have forwarded it did not answer.
func (l *Leader) unreachedBehindRelays(queried []membership.Member, answer *wire.Answer, key []byte) []membership.Member {
	if len(answer.Absent) == 0 {
		return nil
	}
	var unreached []membership.Member
	for _, branch := range membership.Grow(queried, l.options.Fanout, key) {
		if !slices.Contains(answer.Absent, branch.Member.Name) {
			continue
		}
		for _, member := range branch.Members()[1:] {
			if !member.Relay && slices.Contains(answer.Absent, member.Name) {
				unreached = append(unreached, member)
			}
		}
	}
	return unreached
}

// mayHaveAntiAffinity returns whether one of the replicas may have pods whose anti-affinity forbids
// nodes of other replicas.
func (l *Leader) mayHaveAntiAffinity(replicas []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(replicas, func(name string) bool {
		s, reported := l.statuses[name]
		return !reported || s.AntiAffinityBeyondNode || s.at.Before(l.lastAntiAffinityPlaced[name].Add(placementReportedAfter))
	})
}

func hasKey(sent map[string]uint64, name string) bool {
	_, ok := sent[name]
	return ok
}

// recordLate records which of the queried replicas did not answer in time, and sets the time until
// which each of them is not queried.
func (l *Leader) recordLate(queried []membership.Member, answer *wire.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, member := range queried {
		if !slices.Contains(answer.Absent, member.Name) {
			delete(l.late, member.Name)
			continue
		}
		late := l.late[member.Name]
		if late == nil {
			late = &lateReplica{}
			l.late[member.Name] = late
		}
		late.times++
		pause := min(queryPauseBase<<min(late.times, 16), maxQueryPause)
		late.until = time.Now().Add(pause)
		lateAnswers.WithLabelValues(member.Name).Inc()
		l.logger.Info("Replica did not answer in time; pausing queries to it", "replica", member.Name, "times", late.times, "pause", pause, "errors", answer.Errors)
	}
}
