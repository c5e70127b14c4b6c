package core

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// LeaderConfig configures a leader.
type LeaderConfig struct {
	// Self is this replica.
	Self membership.Member
	// Config is a digest of the configuration. Status reports of replicas with another one are ignored.
	Config string
	// StallTimeout is the time after which the hash slots of a replica move whose first lists make no progress; 0 means
	// the default.
	StallTimeout time.Duration
	// MayResign is true if another replica would become the leader if this process exits.
	MayResign bool
	// FirstAttempt is the number before that of the first placement. No earlier process with this name has used a
	// higher one: the answer to a request of that process may arrive.
	FirstAttempt uint64
	// Fault is a deliberate fault; [NoFault] outside tests.
	Fault Fault
}

// Leader is the state of a leader: which replicas are alive and which hash slots they own, where it has placed pods that
// are not known to be bound, which binds of earlier leaders may still arrive, and whom it queries. It does nothing while
// its term is 0, because another replica leads.
//
// Invariants:
//   - A pod is assumed on at most one node.
//   - While a bind of an earlier leader, or one without a definite answer, may arrive, earlier has its node: the pod is
//     placed on this node, or its reservation there is released first.
//   - An owner is ready only for the current assignment, and after it was sent all reservations on its nodes.
type Leader struct {
	config LeaderConfig

	// term is the term for which this replica leads; 0 while another replica leads. termStart is
	// the time at which term was set. number counts the assignments of the term.
	term, number int64
	termStart    time.Time
	// contested is the last term that another process claimed too (see [Leader.StartAgain]).
	contested int64
	// assignedAt is the time of the last assignment.
	assignedAt time.Time
	// previous is the assignment that preceded the last one; nil if there was none.
	previous *wire.Assignment
	table    membership.Table
	// tableOwners are the owners in table; nil if they were not computed yet.
	tableOwners []string
	members     []membership.Member
	discovered  []membership.Member
	statuses    map[string]statusAt
	// ready are the owners that reported that they have loaded all nodes and pods of the current
	// assignment.
	ready sets.Set[string]
	// lastAntiAffinityPlaced is the time, by owner, at which the leader last requested a reservation for a pod with
	// anti-affinity beyond its node from that owner. forbidding says which owners may have other such pods.
	lastAntiAffinityPlaced map[string]time.Time
	forbidding             map[string]forbidding
	// late are the replicas that did not answer their last query in time.
	late map[string]*lateReplica

	// assumed are the pods that the leader has placed and that no watch has shown as bound.
	assumed map[types.UID]*assumption
	// lastAttempt is the number of the last assumption.
	lastAttempt uint64
	// uids are the UIDs of the assumed pods, by namespace and name.
	uids map[toolscache.ObjectName]types.UID

	// earlier are the reservations of pods whose binds may still arrive although this leader does not assume them.
	earlier map[types.UID]earlierReservation
	// settled are the pods that were bound or deleted in this term. An owner may not know that yet when it reports its
	// reservations of earlier terms. It is nil when earlier has expired, because it would grow with each pod.
	settled sets.Set[types.UID]

	// nominated are the nominations that each owner has, as sent on the current connection to it.
	nominated map[string]map[types.UID]nomination

	// isolatedSince is the time since which no live replica owns nodes; zero if one does.
	isolatedSince time.Time

	// excludedUntil is the time, by replica, until which the replica gets no hash slots, because other replicas
	// cannot reach it. stalledUntil is that of replicas whose lists make no progress.
	excludedUntil, stalledUntil map[string]time.Time
	// listing is the progress of the replicas whose first lists are incomplete.
	listing map[string]listProgress

	// unanswered are the pods that got no node, or could not preempt, because an owner did not answer.
	unanswered map[types.UID]*v1.Pod
}

// NewLeader returns a leader without a term.
func NewLeader(config LeaderConfig) *Leader {
	return &Leader{
		config: config, statuses: map[string]statusAt{}, ready: sets.New[string](), late: map[string]*lateReplica{},
		lastAntiAffinityPlaced: map[string]time.Time{}, forbidding: map[string]forbidding{}, unanswered: map[types.UID]*v1.Pod{},
		assumed: map[types.UID]*assumption{}, uids: map[toolscache.ObjectName]types.UID{}, lastAttempt: config.FirstAttempt,
		earlier: map[types.UID]earlierReservation{}, nominated: map[string]map[types.UID]nomination{},
		excludedUntil: map[string]time.Time{}, stalledUntil: map[string]time.Time{}, listing: map[string]listProgress{},
	}
}

// statusAt is the last status of a replica and the time at which it arrived.
type statusAt struct {
	wire.Status
	at time.Time
	// unreachableSince tells since when all reports of the replica have said that it does not reach another one, by the name
	// of that one.
	unreachableSince map[string]time.Time
}

// next returns the status after another report.
func (s statusAt) next(report *wire.Status, now time.Time) statusAt {
	next := statusAt{*report, now, map[string]time.Time{}}
	for _, other := range report.Unreachable {
		next.unreachableSince[other] = now
		if since, already := s.unreachableSince[other]; already {
			next.unreachableSince[other] = since
		}
	}
	return next
}

// Times and bounds of a leader.
const (
	// A replica whose last status report is older than deadAfter loses its hash slots.
	deadAfter = 3 * time.Second
	// If some owners are not ready assignmentTimeout after an assignment, a replica that other
	// replicas cannot reach loses its hash slots for exclusionTime.
	assignmentTimeout, exclusionTime = 2 * time.Second, 30 * time.Second
	// The same happens if all owners are ready, but one replica has not reached another one for partitionTimeout: it cannot
	// send its pods to the other one. It is much longer than the time in which a connection is opened on a busy machine.
	partitionTimeout = 10 * time.Second
	// recentReport is the maximal age of the last status report of a replica that certainly runs. It is longer than
	// the interval between reports, and shorter than the time after which others report a replica as unreachable.
	recentReport = time.Second
	// maxUnanswered is the number of pods that are retried as soon as all owners answer. Further
	// pods wait for their backoff.
	maxUnanswered = 100_000
	// ResignAfter is the time for which a relay leads without an owner of nodes. A short
	// interruption is tolerated, because all replicas send their state again to a new leader.
	ResignAfter = time.Second
)

// Begin starts a term without an assignment: no pod is among the first of the queue any more. followed is the last
// assignment that this replica has followed, which may be nil: if the Lease that counts the terms was deleted, the given
// term is too low.
func (l *Leader) Begin(term int64, now time.Time, followed *wire.Assignment) {
	if followed != nil && l.config.Fault != ReuseTerm {
		term = max(term, followed.Term+1)
	}
	l.term, l.number, l.termStart = term, 0, now
	l.earlier, l.statuses = map[types.UID]earlierReservation{}, map[string]statusAt{}
	l.settled = sets.New[types.UID]()
	l.ready.Clear()
	clear(l.nominated)
	clear(l.listing)
	clear(l.forbidding)
}

// Term returns the term for which this replica leads; 0 while another replica leads.
func (l *Leader) Term() int64 { return l.term }

// owners returns the names of the replicas that own hash slots, sorted.
func (l *Leader) owners() []string {
	if l.tableOwners == nil {
		l.tableOwners = l.table.Owners()
	}
	return l.tableOwners
}

// Complete returns whether nodes have owners and all owners are ready.
func (l *Leader) Complete() bool {
	owners := l.owners()
	return len(owners) > 0 && l.ready.HasAll(owners...)
}

// Nodes returns the total number of nodes in the last status reports of the owners.
func (l *Leader) Nodes() int {
	nodes := 0
	for _, member := range l.members {
		nodes += l.statuses[member.Name].Nodes
	}
	return nodes
}

// Tick does what is due at a time: a new assignment if the set of live or discovered replicas has changed, or otherwise
// the retry of pods, the end of earlier reservations, and the resignation. sent are the numbers of reservations that were
// sent to the replicas with a connection.
func (l *Leader) Tick(now time.Time, discovered []membership.Member, sent map[string]uint64, view View) (out Output) {
	if out.Assignment = l.assign(now, discovered, view, &out); out.Assignment != nil {
		return out
	}
	l.resignIfIsolated(now, &out)
	l.retryUnanswered(now, sent, &out)
	l.expireEarlier(now, &out)
	return out
}

// Adopted sends the reservations to the owners of an assignment that this replica follows now.
func (l *Leader) Adopted(now time.Time, view View) (out Output) {
	l.resend(now, "", false, view, &out)
	return out
}

// Greeting returns the assignment that a new connection to a replica starts with; nil if this replica does not lead.
// The output has the reservations on the replica's nodes.
func (l *Leader) Greeting(now time.Time, to string, view View) (a *wire.Assignment, out Output) {
	if l.number == 0 {
		return nil, out
	}
	// The receiver has dropped the nominations of the previous connection.
	delete(l.nominated, to)
	l.resend(now, to, l.ready.Has(to), view, &out)
	return l.assignment(), out
}

// NodesMoved sends the reservations to a replica that owns nodes which were created again. The owners of the earlier nodes
// had them.
func (l *Leader) NodesMoved(now time.Time, owner string, view View) (out Output) {
	if l.number > 0 {
		l.resend(now, owner, l.ready.Has(owner), view, &out)
		// Its next reports may be older than the pods that it gets from the earlier owners, some of which may have
		// anti-affinity.
		l.lastAntiAffinityPlaced[owner] = now
	}
	return out
}

// Status processes the status report of a replica.
func (l *Leader) Status(now time.Time, from string, s *wire.Status, view View) (out Output) {
	if l.term == 0 {
		return out
	}
	if s.Config != l.config.Config {
		out.noteError("Replica has a different configuration or version; ignoring it", "replica", from)
		return out
	}
	last, reported := l.statuses[from]
	l.statuses[from] = last.next(s, now)
	l.recordProgress(from, s.Listing, now)
	complete := l.ready.HasAll(l.owners()...)
	ready := s.Term == l.term && (s.Number == l.number || l.config.Fault == ReadyForAnyAssignment)
	l.recordForbidding(from, s, ready, now)
	switch {
	case !ready:
		l.ready.Delete(from)
	case !l.ready.Has(from):
		delete(l.late, from)
		l.resend(now, from, true, view, &out)
		out.Moved = l.addEarlier(s.Earlier, func(node string) bool { return view.NodeOwner(node) == from })
		out.First = out.Moved
		l.ready.Insert(from)
	}
	if !complete && l.ready.HasAll(l.owners()...) || reported && s.Expired > last.Expired {
		// All owners have become ready, or reservations have expired. No event reports that, but
		// pods may fit now.
		out.Invalidate, out.RetryAll = true, true
	}
	out.Wake = !reported
	return out
}

// Connected handles a new connection from another replica. Events that the replica sent on the previous one may
// be lost, so all unschedulable pods are retried.
func (l *Leader) Connected(from string) (out Output) {
	l.forgetStall(from)
	if l.term > 0 {
		out.Invalidate, out.RetryAll = true, true
	}
	return out
}

// RetryWhenAllAnswer schedules the retry of a pod that got no node, or could not preempt, because an owner did
// not answer: as soon as all owners answer.
func (l *Leader) RetryWhenAllAnswer(pod *v1.Pod) {
	if len(l.unanswered) < maxUnanswered {
		l.unanswered[pod.UID] = pod
	}
}

// retryUnanswered retries the unanswered pods if all owners answer now. Otherwise these pods would wait
// for their backoff, which grows with each attempt.
func (l *Leader) retryUnanswered(now time.Time, sent map[string]uint64, out *Output) {
	owners := l.owners()
	if len(owners) == 0 || len(l.unanswered) == 0 {
		return
	}
	for _, owner := range owners {
		if !l.ready.Has(owner) || !hasKey(sent, owner) || l.isPaused(owner, now) {
			return
		}
	}
	for _, pod := range l.unanswered {
		out.Activate = append(out.Activate, pod)
	}
	slices.SortFunc(out.Activate, byUID)
	clear(l.unanswered)
}

// resignIfIsolated makes this process exit if it is a relay that leads, and no owner of nodes has been
// alive for ResignAfter although owners are discovered.
func (l *Leader) resignIfIsolated(now time.Time, out *Output) {
	owns := func(m membership.Member) bool { return !m.Relay }
	if !l.config.Self.Relay || !l.config.MayResign || slices.ContainsFunc(l.members, owns) || !slices.ContainsFunc(l.discovered, owns) {
		l.isolatedSince = time.Time{}
		return
	}
	if l.isolatedSince.IsZero() {
		l.isolatedSince = now
	}
	out.Resign = now.Sub(l.isolatedSince) > ResignAfter
}

// Contested returns whether an assignment of another process shows that no replica that follows it will follow
// this leader: it is for the term of this leader, or it is of an earlier process with the name of this replica.
//
// Without leader election, the clock decides who leads: terms are the times at which leaders started. So two
// replicas may claim the same term. Each of them then starts again with a later one, after a random time. The
// first that does so is followed by all others.
func (l *Leader) Contested(a *wire.Assignment) bool {
	switch {
	case l.term == 0:
		return false
	case a.Leader.Name == l.config.Self.Name:
		return a.Term > l.term || a.Term == l.term && a.Number > l.number
	}
	return a.Term == l.term
}

// StartAgain returns whether this replica has to start again, after a random time, with a later term than the given one,
// which another process claims too. The caller then calls [Leader.StartAfter]. It returns true once for each term.
func (l *Leader) StartAgain(after int64) bool {
	again := after > l.contested
	l.contested = max(l.contested, after)
	return again
}

// StartAfter starts the term after the given one, unless this replica follows a later leader by then.
func (l *Leader) StartAfter(term int64, now time.Time, followed *wire.Assignment) bool {
	if followed != nil && followed.Term > term {
		return false
	}
	l.Begin(term+1, now, nil)
	return true
}

func byUID(a, b *v1.Pod) int {
	switch {
	case a.UID < b.UID:
		return -1
	case a.UID > b.UID:
		return 1
	}
	return 0
}
