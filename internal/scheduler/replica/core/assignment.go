package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// assign returns a new assignment of hash slots if the set of live or discovered replicas has changed; nil otherwise.
func (l *Leader) assign(now time.Time, discovered []membership.Member, view View, out *Output) *wire.Assignment {
	l.excludeUnreachable(now, view, out)
	l.excludeStalled(now, out)
	members := []membership.Member{l.config.Self}
	for _, member := range discovered {
		if member.Name != l.config.Self.Name && l.isAlive(member.Name, now, view) {
			members = append(members, member)
		}
	}
	same := func(a, b []membership.Member) bool { return sets.New(a...).Equal(sets.New(b...)) }
	if l.number > 0 && same(members, l.members) && same(discovered, l.discovered) {
		return nil
	}
	l.previous = view.Assignment()
	if l.table == nil && l.previous != nil {
		// Start from the table of the previous leader, so that few slots move.
		l.table = l.previous.Table()
	}
	var owners []string
	for _, member := range members {
		if !member.Relay {
			owners = append(owners, member.Name)
		}
	}
	before := l.table
	l.table, l.members, l.discovered = membership.Assign(before, owners), members, discovered
	l.inherit(before)
	l.tableOwners = nil
	l.number, l.assignedAt = l.number+1, now
	l.ready = sets.New[string]()
	maps.DeleteFunc(l.nominated, func(name string, _ map[types.UID]nomination) bool {
		return !slices.ContainsFunc(discovered, func(m membership.Member) bool { return m.Name == name })
	})
	out.note("Assigning hash slots", "term", l.term, "number", l.number, "replicas", owners)
	return l.assignment()
}

// assignment returns the current assignment as a message.
func (l *Leader) assignment() *wire.Assignment {
	a := &wire.Assignment{
		Term: l.term, Number: l.number, Leader: l.config.Self, Members: l.members, Known: l.discovered,
	}
	if last := l.previous; last != nil {
		a.AfterTerm, a.AfterNumber, a.AfterLeader = last.Term, last.Number, last.Leader.Name
	}
	a.SetTable(l.table)
	return a
}

// isAlive returns whether a replica can own slots. At the start of a term, replicas that have not
// reported yet count as alive for deadAfter: otherwise slots would move away from them and back.
func (l *Leader) isAlive(name string, now time.Time, view View) bool {
	young := now.Sub(l.termStart) < deadAfter
	if now.Sub(l.termStart) > deadAfter && view.Unreachable(name) || now.Before(l.excludedUntil[name]) || now.Before(l.stalledUntil[name]) {
		return false
	}
	s, reported := l.statuses[name]
	return reported && now.Sub(s.at) < deadAfter || !reported && young
}

// excludeUnreachable excludes one replica for exclusionTime if replicas cannot reach each other, and owners are therefore
// not ready in time, or this lasts for partitionTimeout.
func (l *Leader) excludeUnreachable(now time.Time, view View, out *Output) {
	l.extendExclusions(now)
	lasting := partitionTimeout
	if !l.ready.HasAll(l.owners()...) && now.Sub(l.assignedAt) >= assignmentTimeout {
		lasting = 0
	}
	failingPairs := l.failingPairs(now, lasting)
	var failing []string
	for _, member := range l.members {
		if member.Name != l.config.Self.Name && failingPairs[member.Name] > 0 {
			failing = append(failing, member.Name)
		}
	}
	// The same replica each time, so that a lasting cut does not move the hash slots of both.
	slices.Sort(failing)
	lastReport := func(name string) time.Time { return l.statuses[name].at }
	if worst := worstReplica(failing, failingPairs, lastReport, view.Unreachable, now); worst != "" {
		l.excludedUntil[worst] = now.Add(exclusionTime)
		out.note("Replica and other replicas cannot reach each other; assigning no hash slots to it", "replica", worst, "for", exclusionTime)
	}
}

// extendExclusions keeps the replicas without hash slots that would get some soon, but still do not reach an owner.
func (l *Leader) extendExclusions(now time.Time) {
	owners := l.owners()
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
func (l *Leader) failingPairs(now time.Time, lasting time.Duration) map[string]int {
	pairs, owners := map[string]int{}, sets.New(l.owners()...)
	for name := range owners {
		for other, since := range l.statuses[name].unreachableSince {
			if now.Sub(since) >= lasting && owners.Has(other) {
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

// An owner whose first lists never finish, for example because it reaches the replicas but not the API server,
// is never ready. It loses its hash slots to other owners, because pods with constraints on other pods, and a new
// leader, would wait for it for ever.

const (
	// defaultStallTimeout is the time without progress after which an owner loses its slots. Lists of a million
	// nodes take minutes, but objects arrive all the time. Before the first ones arrive, the API server may have
	// to fill its cache.
	defaultStallTimeout = 3 * time.Minute
	// stallExclusion is the time after which that replica gets hash slots again if it does not connect again.
	stallExclusion = 30 * time.Minute
)

// listProgress is the progress of a replica's first lists.
type listProgress struct {
	// listing is the last [wire.Status.Listing], and since is the time at which it changed.
	listing int64
	since   time.Time
}

// recordProgress records the progress of a replica's first lists.
func (l *Leader) recordProgress(from string, listing int64, now time.Time) {
	if listing == 0 {
		delete(l.listing, from)
	} else if l.listing[from].listing != listing {
		l.listing[from] = listProgress{listing, now}
	}
}

// excludeStalled excludes the owners whose first lists make no progress, except this replica. If no owner has
// complete lists, the API server is slow for all, and other owners could not list the objects either.
func (l *Leader) excludeStalled(now time.Time, out *Output) {
	owners := l.owners()
	if !slices.ContainsFunc(owners, l.hasListed) {
		return
	}
	timeout := l.config.StallTimeout
	if timeout == 0 {
		timeout = defaultStallTimeout
	}
	for _, name := range owners {
		progress, listing := l.listing[name]
		if !listing || name == l.config.Self.Name || now.Sub(progress.since) < timeout {
			continue
		}
		delete(l.listing, name)
		l.stalledUntil[name] = now.Add(stallExclusion)
		out.noteError("Replica does not finish its lists of nodes and pods, and they make no progress; assigning no hash slots to it until it is started again. Check its connection to the API server",
			"replica", name, "timeout", timeout, "atMostFor", stallExclusion)
	}
}

// hasListed returns whether all first lists of a replica are complete.
func (l *Leader) hasListed(name string) bool {
	_, reported := l.statuses[name]
	_, listing := l.listing[name]
	return reported && !listing
}

// forgetStall lets a replica that has connected again get hash slots.
func (l *Leader) forgetStall(name string) {
	delete(l.stalledUntil, name)
	delete(l.listing, name)
}
