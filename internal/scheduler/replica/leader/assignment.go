package leader

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// assign makes a new assignment of hash slots if the set of live or discovered replicas has changed.
func (l *Leader) assign() {
	discovered := l.options.Discovery.Members()
	l.mu.Lock()
	l.excludeUnreachable()
	l.excludeStalled()
	members := []membership.Member{l.options.Self}
	for _, member := range discovered {
		if member.Name != l.member.Self() && l.isAlive(member.Name) {
			members = append(members, member)
		}
	}
	same := func(a, b []membership.Member) bool { return sets.New(a...).Equal(sets.New(b...)) }
	if l.number > 0 && same(members, l.members) && same(discovered, l.discovered) {
		l.mu.Unlock()
		return
	}
	if l.table == nil {
		// Start from the table of the previous leader, so that few slots move.
		l.table = l.member.Table()
	}
	var owners []string
	for _, member := range members {
		if !member.Relay {
			owners = append(owners, member.Name)
		}
	}
	l.previous = l.member.Assignment()
	l.table, l.members, l.discovered = membership.Assign(l.table, owners), members, discovered
	l.number, l.assignedAt = l.number+1, time.Now()
	l.ready = sets.New[string]()
	maps.DeleteFunc(l.nominated, func(name string, _ map[types.UID]nomination) bool {
		return !slices.ContainsFunc(discovered, func(m membership.Member) bool { return m.Name == name })
	})
	a := l.assignment()
	l.mu.Unlock()
	l.logger.Info("Assigning hash slots", "term", a.Term, "number", a.Number, "replicas", owners)
	assignments.Inc()
	replicaCount.Set(float64(len(members)))
	l.member.Adopt(a)
	l.member.SendToAll(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
	l.resendReservations("", false)
	l.SettleNodes()
}

// isAlive returns whether a replica can own slots. At the start of a term, replicas that have not
// reported yet count as alive for deadAfter: otherwise slots would move away from them and back.
func (l *Leader) isAlive(name string) bool {
	if time.Since(l.termStart) > deadAfter && l.member.Unreachable(name) || time.Now().Before(l.excludedUntil[name]) || time.Now().Before(l.stalledUntil[name]) {
		return false
	}
	s, reported := l.statuses[name]
	return reported && time.Since(s.at) < deadAfter || !reported && time.Since(l.termStart) < deadAfter
}

// excludeUnreachable excludes one replica for exclusionTime if replicas cannot reach each other, and owners are therefore
// not ready in time, or this lasts for partitionTimeout.
func (l *Leader) excludeUnreachable() {
	l.extendExclusions(time.Now())
	lasting := partitionTimeout
	if !l.ready.HasAll(l.table.Owners()...) && time.Since(l.assignedAt) >= assignmentTimeout {
		lasting = 0
	}
	failingPairs := l.failingPairs(lasting)
	var failing []string
	for _, member := range l.members {
		if member.Name != l.member.Self() && failingPairs[member.Name] > 0 {
			failing = append(failing, member.Name)
		}
	}
	// The same replica each time, so that a lasting cut does not move the hash slots of both.
	slices.Sort(failing)
	lastReport := func(name string) time.Time { return l.statuses[name].at }
	if worst := worstReplica(failing, failingPairs, lastReport, l.member.Unreachable, time.Now()); worst != "" {
		l.excludedUntil[worst] = time.Now().Add(exclusionTime)
		l.logger.Info("Replica and other replicas cannot reach each other; assigning no hash slots to it", "replica", worst, "for", exclusionTime)
	}
}

// extendExclusions keeps the replicas without hash slots that would get some soon, but still do not reach an owner.
func (l *Leader) extendExclusions(now time.Time) {
	owners := l.table.Owners()
	for name, until := range l.excludedUntil {
		status := l.statuses[name]
		cut := slices.ContainsFunc(status.Unreachable, func(other string) bool { return slices.Contains(owners, other) })
		if left := until.Sub(now); cut && left > 0 && left < recentReport && now.Sub(status.at) < recentReport {
			l.excludedUntil[name] = now.Add(exclusionTime)
		}
	}
}

// failingPairs returns of how many pairs of owners each replica is a part whose one replica has not reached the other one
// for some time, according to its reports. Relays send nothing that an owner needs.
func (l *Leader) failingPairs(lasting time.Duration) map[string]int {
	pairs, owners := map[string]int{}, sets.New(l.table.Owners()...)
	for name := range owners {
		for other, since := range l.statuses[name].unreachableSince {
			if time.Since(since) >= lasting && owners.Has(other) {
				pairs[name]++
				pairs[other]++
			}
		}
	}
	return pairs
}

// worstReplica chooses one of the replicas that are part of failing pairs; "" if it cannot tell which one fails.
// lastReport returns the time of a replica's last status report in this term, and zero if there was none.
//
// Replicas without a report come first. Of the others, or of several such replicas, it chooses the one that is part
// of the most failing pairs. Of several such replicas, it chooses the one that the leader does not reach. If this does
// not decide either, it chooses the first one, but only if all of them have reported recently. Otherwise one of them
// may have been suspended: either it soon reports again, or it loses its hash slots after deadAfter.
func worstReplica(failing []string, failingPairs map[string]int, lastReport func(string) time.Time, unreachable func(string) bool, now time.Time) string {
	prefer := func(is func(string) bool) {
		if preferred := slices.DeleteFunc(slices.Clone(failing), func(name string) bool { return !is(name) }); len(preferred) > 0 {
			failing = preferred
		}
	}
	prefer(func(name string) bool { return lastReport(name).IsZero() })
	most := 0
	for _, name := range failing {
		most = max(most, failingPairs[name])
	}
	prefer(func(name string) bool { return failingPairs[name] == most })
	prefer(unreachable)
	silent := func(name string) bool { return now.Sub(lastReport(name)) > recentReport }
	if len(failing) == 0 || len(failing) > 1 && slices.ContainsFunc(failing, silent) {
		return ""
	}
	return failing[0]
}

// assignment returns the current assignment as a message.
func (l *Leader) assignment() *wire.Assignment {
	a := &wire.Assignment{
		Term: l.term, Number: l.number, Leader: l.options.Self, Members: l.members, Known: l.discovered,
	}
	if last := l.previous; last != nil {
		a.AfterTerm, a.AfterNumber, a.AfterLeader = last.Term, last.Number, last.Leader.Name
	}
	a.SetTable(l.table)
	return a
}

// Greet sends the leader's state to a replica to which this replica has just connected: the assignment,
// and the reservations on that replica's nodes.
func (l *Leader) Greet(link *wire.Link) {
	l.mu.Lock()
	leads, ready := l.number > 0, l.ready.Has(link.To().Name)
	if leads {
		a := l.assignment()
		link.Send(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
		// The receiver has dropped the nominations of the previous connection.
		delete(l.nominated, link.To().Name)
	}
	l.mu.Unlock()
	if leads {
		l.resendReservations(link.To().Name, ready)
	}
}

// HandleStatus processes the status report of a replica.
func (l *Leader) HandleStatus(from string, s *wire.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return
	}
	if s.Config != l.options.Config {
		l.logger.Error(nil, "Replica has a different configuration or version; ignoring it", "replica", from)
		return
	}
	last, reported := l.statuses[from]
	l.statuses[from] = last.next(s, time.Now())
	l.recordProgress(from, s.Listing)
	complete := l.ready.HasAll(l.table.Owners()...)
	switch ready := s.Term == l.term && s.Number == l.number; {
	case !ready:
		l.ready.Delete(from)
	case !l.ready.Has(from):
		delete(l.late, from)
		l.mu.Unlock()
		l.resendReservations(from, true)
		l.mu.Lock()
		// The assignment may have changed while the lock was released.
		if s.Term == l.term && s.Number == l.number {
			if added := l.addEarlier(s.Earlier, func(node string) bool { return l.member.NodeOwner(node) == from }); len(added) > 0 {
				// The queue is locked before the leader.
				go l.moveToFront(added)
			}
			l.ready.Insert(from)
		}
	}
	if !complete && l.ready.HasAll(l.table.Owners()...) || reported && s.Expired > last.Expired {
		// All owners have become ready, or reservations have expired. No event reports that, but
		// pods may fit now.
		l.search.invalidate()
		go l.retryUnschedulable()
	}
	if !reported {
		l.wake()
	}
}
