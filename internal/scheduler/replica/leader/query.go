package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Query sends a query to all replicas that own nodes and merges their answers. With all set it waits
// for each of them.
func (l *Leader) Query(ctx context.Context, query *wire.Query, all bool) (*wire.Answer, error) {
	l.nominate()
	q := &wire.Request{Query: query, From: l.member.Self(), Patience: l.options.Patience, Reservations: map[string]uint64{}}
	if all {
		q.Patience.Quorum = 100
	}
	sent := l.member.Reservations()
	l.mu.Lock()
	q.Term, q.Number = l.term, l.number
	owners := l.table.Owners()
	var members []membership.Member
	var absent []string
	own := false
	for _, member := range l.members {
		switch c := l.late[member.Name]; {
		case !member.Relay && !slices.Contains(owners, member.Name):
		case member.Relay && (!hasKey(sent, member.Name) || c != nil && time.Now().Before(c.until)):
			// Other replicas relay in its place.
		case !member.Relay && !l.ready.Has(member.Name), !hasKey(sent, member.Name), !all && c != nil && time.Now().Before(c.until):
			absent = append(absent, member.Name)
		case member.Name == l.member.Self():
			own = !member.Relay
		default:
			members = append(members, member)
		}
		q.Reservations[member.Name] = sent[member.Name]
	}
	l.mu.Unlock()
	var here func() *wire.Answer
	if own {
		here = func() *wire.Answer { return l.answer(ctx, q) }
	}
	started := time.Now()
	answer := l.dial.Scatter(ctx, here, members, l.options.Fanout, query.Pod, q)
	roundTimes.Observe(time.Since(started).Seconds())
	if late := l.unreachedBehindRelays(members, answer, query.Pod); len(late) > 0 && ctx.Err() == nil {
		answer.Absent = slices.DeleteFunc(answer.Absent, func(name string) bool {
			return slices.ContainsFunc(late, func(m membership.Member) bool { return m.Name == name })
		})
		// They do not count as late because the relay before them was.
		own := answer
		answer = l.dial.Scatter(ctx, func() *wire.Answer { return own }, late, max(len(late), 1), query.Pod, q)
	}
	l.noteLate(members, answer)
	answer.Absent = slices.DeleteFunc(append(answer.Absent, absent...), func(name string) bool { return !slices.Contains(owners, name) })
	if len(answer.Absent) == len(owners) {
		return nil, fmt.Errorf("%w: %v", errNoAnswer, answer.Errors)
	}
	if len(answer.Absent) > 0 && (all || l.mayForbid(answer.Absent)) {
		return nil, errIncomplete
	}
	return answer, nil
}

// unreachedBehindRelays returns the replicas that are absent only because the replica that should
// have relayed the query to them is.
func (l *Leader) unreachedBehindRelays(queried []membership.Member, answer *wire.Answer, key []byte) []membership.Member {
	if len(answer.Absent) == 0 {
		return nil
	}
	var late []membership.Member
	for _, branch := range membership.Grow(queried, l.options.Fanout, key) {
		if !slices.Contains(answer.Absent, branch.Member.Name) {
			continue
		}
		for _, member := range branch.Members()[1:] {
			if !member.Relay {
				late = append(late, member)
			}
		}
	}
	return late
}

// mayForbid returns whether absent replicas may have pods whose anti-affinity forbids nodes of
// other replicas.
func (l *Leader) mayForbid(replicas []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(replicas, func(name string) bool {
		s, heard := l.statuses[name]
		return !heard || s.Forbids || s.at.Before(l.forbidsSince[name].Add(settledAfter))
	})
}

func hasKey(sent map[string]uint64, name string) bool {
	_, is := sent[name]
	return is
}

// noteLate notes which replicas were late, so that they are asked less often.
func (l *Leader) noteLate(queried []membership.Member, answer *wire.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, member := range queried {
		if !slices.Contains(answer.Absent, member.Name) {
			delete(l.late, member.Name)
			continue
		}
		c := l.late[member.Name]
		if c == nil {
			c = &lateness{}
			l.late[member.Name] = c
		}
		c.times++
		rest := min(firstRest<<min(c.times, 16), longestRest)
		c.until = time.Now().Add(rest)
		cutOff.WithLabelValues(member.Name).Inc()
		l.logger.Info("Replica did not answer in time; not querying it for a while", "replica", member.Name, "times", c.times, "rest", rest, "errors", answer.Errors)
	}
}
