package replica

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// ask asks all replicas that own nodes; with all set it waits for each of them.
func (l *lead) ask(ctx context.Context, ask *wire.Ask, all bool) (*wire.Answer, error) {
	l.nominate()
	q := &wire.Question{Ask: ask, From: l.r.self(), Patience: l.r.options.Patience, Seen: map[string]uint64{}}
	if all {
		q.Patience.Quorum = 100
	}
	told := l.told()
	l.mu.Lock()
	q.Term, q.Number = l.term, l.number
	owners := l.table.Owners()
	var members []wire.Member
	var absent []string
	own := false
	for _, member := range l.members {
		switch c := l.cuts[member.Name]; {
		case !member.Relay && !slices.Contains(owners, member.Name):
		case member.Relay && (!known(told, member.Name) || c != nil && time.Now().Before(c.until)):
			// Others hand on what it would.
		case !member.Relay && !l.ready.Has(member.Name), !known(told, member.Name), !all && c != nil && time.Now().Before(c.until):
			absent = append(absent, member.Name)
		case member.Name == l.r.self():
			own = !member.Relay
		default:
			members = append(members, member)
		}
		q.Seen[member.Name] = told[member.Name]
	}
	l.mu.Unlock()
	var here func() *wire.Answer
	if own {
		here = func() *wire.Answer { return l.r.Answer(ctx, q) }
	}
	started := time.Now()
	answer := l.r.dial.Scatter(ctx, here, members, l.r.options.Fanout, ask.Pod, q)
	roundTimes.Observe(time.Since(started).Seconds())
	if late := l.behindOthers(members, answer, ask.Pod); len(late) > 0 && ctx.Err() == nil {
		answer.Absent = slices.DeleteFunc(answer.Absent, func(name string) bool {
			return slices.ContainsFunc(late, func(m wire.Member) bool { return m.Name == name })
		})
		// They do not suffer for the absence of who should have handed on to them.
		own := answer
		answer = l.r.dial.Scatter(ctx, func() *wire.Answer { return own }, late, max(len(late), 1), ask.Pod, q)
	}
	l.note(members, answer)
	answer.Absent = slices.DeleteFunc(append(answer.Absent, absent...), func(name string) bool { return !slices.Contains(owners, name) })
	if len(answer.Absent) == len(owners) {
		return nil, fmt.Errorf("%w: %v", errNobody, answer.Errors)
	}
	if len(answer.Absent) > 0 && (all || l.mayForbid(answer.Absent)) {
		return nil, errIncomplete
	}
	return answer, nil
}

// behindOthers are the replicas that are absent only because one is that should have handed
// the question on to them.
func (l *lead) behindOthers(asked []wire.Member, answer *wire.Answer, key []byte) []wire.Member {
	if len(answer.Absent) == 0 {
		return nil
	}
	var late []wire.Member
	for _, branch := range wire.Grow(asked, l.r.options.Fanout, key) {
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

// mayForbid says whether replicas may have pods that forbid others on nodes of others. It
// is asked of those that do not say so themselves.
func (l *lead) mayForbid(replicas []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(replicas, func(name string) bool {
		s, heard := l.statuses[name]
		return !heard || s.Forbids || s.at.Before(l.forbids[name].Add(settledAfter))
	})
}

// told are how many reservations the replicas were told of that know of all that there are.
// They hear of them at once, since they answer only then.
func (l *lead) told() map[string]uint64 {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	told := map[string]uint64{}
	for name, p := range l.r.peers {
		if count, connection := p.link.Reservations(); connection != 0 && connection == p.greeted {
			told[name] = count
			p.link.Flush()
		}
	}
	return told
}

func known(told map[string]uint64, name string) bool {
	_, is := told[name]
	return is
}

// note notes who was late, who is asked less then, and who was not.
func (l *lead) note(asked []wire.Member, answer *wire.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, member := range asked {
		if !slices.Contains(answer.Absent, member.Name) {
			delete(l.cuts, member.Name)
			continue
		}
		c := l.cuts[member.Name]
		if c == nil {
			c = &cut{}
			l.cuts[member.Name] = c
		}
		c.times++
		rest := min(firstRest<<min(c.times, 16), longestRest)
		c.until = time.Now().Add(rest)
		cutOff.WithLabelValues(member.Name).Inc()
		klog.FromContext(l.r.ctx).Info("A replica did not answer in time, and is not asked for a while", "replica", member.Name, "times", c.times, "rest", rest, "errors", answer.Errors)
	}
}
