package core

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// ErrNoAnswer means that no owner has answered a query.
var ErrNoAnswer = errors.New("no replica answered")

// ErrIncomplete means that a decision without the owners that have not answered could be wrong.
var ErrIncomplete = errors.New("not all replicas answered, and pods of the others may decide where this pod fits")

// lateReplica is a replica that did not answer the last queries in time.
type lateReplica struct {
	// times is the number of consecutive queries without an answer in time. The leader does not
	// query the replica before until.
	times int
	until time.Time
}

const (
	// placementReportedAfter is the time after which the status report of an owner includes a pod
	// that the leader has placed on one of its nodes.
	placementReportedAfter = 2 * time.Second
	// After n consecutive late answers, a replica is not queried for queryPauseBase * 2^n, but at
	// most for maxQueryPause.
	queryPauseBase, maxQueryPause = 100 * time.Millisecond, 10 * time.Second
)

// Question says whom the leader queries for a pod.
type Question struct {
	// Term and Number identify the assignment that the owners must follow.
	Term, Number int64
	// Reservations are the numbers of reservations that each replica must have received before it answers.
	Reservations map[string]uint64
	// Members are the other replicas that are queried. Own is true if this replica answers for its own nodes.
	Members []membership.Member
	Own     bool
	// Owners are all owners of nodes, and Absent those of them that are not queried.
	Owners, Absent []string
	// All is true if the answers of all owners are needed.
	All bool
}

// Ask returns whom to query for a pod. all means that the answers of all owners are needed. sent are the numbers of
// reservations that were sent to the replicas with a connection, read after all output of earlier calls was sent, and
// before the next call: otherwise an owner that becomes ready meanwhile would not wait for the reservations that it was
// sent before.
func (l *Leader) Ask(now time.Time, all bool, sent map[string]uint64) Question {
	q := Question{Term: l.term, Number: l.number, Reservations: map[string]uint64{}, Owners: l.owners(), All: all}
	for _, member := range l.members {
		paused := l.isPaused(member.Name, now)
		switch {
		case !member.Relay && !slices.Contains(q.Owners, member.Name):
		case member.Relay && (!hasKey(sent, member.Name) || paused):
			// Other replicas forward the query in place of this relay.
		case !member.Relay && !l.ready.Has(member.Name), !hasKey(sent, member.Name), !all && paused:
			q.Absent = append(q.Absent, member.Name)
		case member.Name == l.config.Self.Name:
			q.Own = !member.Relay
		default:
			q.Members = append(q.Members, member)
		}
		if l.config.Fault != AnswerBeforeReservations {
			q.Reservations[member.Name] = sent[member.Name]
		}
	}
	return q
}

// Unreached returns the owners that a query may not have reached, because the replica that should have forwarded it did
// not answer. absent are the replicas whose answers are missing. key and fanout are those of the tree of the query.
func (q *Question) Unreached(absent []string, fanout int, key []byte) []membership.Member {
	if len(absent) == 0 {
		return nil
	}
	var unreached []membership.Member
	for _, branch := range membership.Grow(q.Members, fanout, key) {
		if !slices.Contains(absent, branch.Member.Name) {
			continue
		}
		for _, member := range branch.Members()[1:] {
			if !member.Relay && slices.Contains(absent, member.Name) {
				unreached = append(unreached, member)
			}
		}
	}
	return unreached
}

// Late is a replica that did not answer a query in time.
type Late struct {
	Replica string
	// Times is the number of consecutive queries without an answer. No query is sent to it for Pause.
	Times int
	Pause time.Duration
}

// Answered records which of the queried replicas did not answer in time, and sets the time until
// which each of them is not queried.
func (l *Leader) Answered(now time.Time, q *Question, absent []string) (late []Late) {
	for _, member := range q.Members {
		if !slices.Contains(absent, member.Name) {
			delete(l.late, member.Name)
			continue
		}
		known := l.late[member.Name]
		if known == nil {
			known = &lateReplica{}
			l.late[member.Name] = known
		}
		known.times++
		pause := min(queryPauseBase<<min(known.times, 16), maxQueryPause)
		known.until = now.Add(pause)
		late = append(late, Late{member.Name, known.times, pause})
	}
	return late
}

// Decides returns nil if the answers to a query suffice for a decision. absent are the queried replicas whose answers are
// missing. It returns the owners whose nodes do not take part in the decision.
func (l *Leader) Decides(q *Question, absent []string) (missing []string, err error) {
	missing = slices.DeleteFunc(slices.Concat(absent, q.Absent), func(name string) bool { return !slices.Contains(q.Owners, name) })
	switch {
	case len(missing) == len(q.Owners):
		return missing, ErrNoAnswer
	case len(missing) > 0 && (q.All || l.mayHaveAntiAffinity(missing)) && l.config.Fault != DecideWithoutOwners:
		return missing, ErrIncomplete
	}
	return missing, nil
}

// forbidding says whether an owner may have pods with anti-affinity beyond their node, as far as its last complete report
// tells, and the hash slots that it has got since.
type forbidding struct {
	may bool
	// at is the time of the report.
	at time.Time
}

// recordForbidding records what a report says about pods with anti-affinity. An owner that is not ready does not know all
// pods on its nodes, for example because its process was started again. So its report may only add such pods.
func (l *Leader) recordForbidding(owner string, s *wire.Status, ready bool, now time.Time) {
	known, ok := l.forbidding[owner]
	switch {
	case ready || l.config.Fault == BelieveIncompleteReports:
		l.forbidding[owner] = forbidding{s.AntiAffinityBeyondNode, now}
	case ok && s.AntiAffinityBeyondNode:
		l.forbidding[owner] = forbidding{true, known.at}
	}
}

// inherit records that the owners of hash slots that have moved may have the pods of their former owners with
// anti-affinity. They will report them only after they have got them. before are the former owners of all hash slots.
func (l *Leader) inherit(before membership.Table) {
	former := map[string]sets.Set[string]{}
	for slot, owner := range l.table {
		giver := ""
		if before != nil {
			giver = before[slot]
		}
		if owner != "" && giver != owner {
			if former[owner] == nil {
				former[owner] = sets.New[string]()
			}
			former[owner].Insert(giver)
		}
	}
	inherited := map[string]forbidding{}
	for owner, givers := range former {
		known, ok := l.forbidding[owner]
		// An owner that has never been ready, and has owned no hash slots, has only the pods of the former owners.
		may := ok && known.may || !ok && before != nil && slices.Contains(before, owner)
		inherited[owner] = forbidding{may || l.mayHaveAntiAffinity(sets.List(givers)), known.at}
	}
	maps.Copy(l.forbidding, inherited)
}

// recordPlaced records that a reservation for a pod was requested from an owner.
func (l *Leader) recordPlaced(pod *v1.Pod, owner string, now time.Time) {
	if HasAntiAffinityBeyondNode(pod) {
		l.lastAntiAffinityPlaced[owner] = now
	}
}

// mayHaveAntiAffinity returns whether one of the replicas may have pods whose anti-affinity forbids
// nodes of other replicas.
func (l *Leader) mayHaveAntiAffinity(replicas []string) bool {
	return slices.ContainsFunc(replicas, func(name string) bool {
		known, ok := l.forbidding[name]
		placed, has := l.lastAntiAffinityPlaced[name]
		return !ok || known.may || has && known.at.Before(placed.Add(placementReportedAfter))
	})
}

// isPaused returns whether a replica is not queried, because its last answers were late.
func (l *Leader) isPaused(name string, now time.Time) bool {
	late := l.late[name]
	return late != nil && now.Before(late.until)
}

func hasKey(sent map[string]uint64, name string) bool {
	_, ok := sent[name]
	return ok
}
