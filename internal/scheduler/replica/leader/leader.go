package leader

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Leader is the part of a replica that schedules pods while this replica leads.
type Leader struct {
	options member.Options
	logger  klog.Logger
	ctx     context.Context
	member  *member.Member
	sched   *kubescheduler.Scheduler
	client  kubernetes.Interface
	dial    *wire.Dialer
	// answer answers a query for the nodes that this replica owns.
	answer func(context.Context, *wire.Request) *wire.Answer

	search      *Search
	assumptions *Assumptions
	// podEvents and nodeEvents are the informers that other replicas feed.
	podEvents, nodeEvents *eventInformer
	// keptNodes is the number of nodes at which [Leader.KeepNode] next discards some.
	keptNodes int

	// retrying is true while a retry because of unverified events waits.
	retrying atomic.Bool

	// currentTerm is a copy of term that can be read without mu.
	currentTerm atomic.Int64

	mu sync.Mutex
	// term is the term for which this replica leads; 0 while another replica leads. termStart is
	// the time at which term was set. number counts the assignments of the term.
	term, number int64
	termStart    time.Time
	// contested is the last term that another process claimed too (see [Leader.StartAgain]).
	contested int64
	// assignedAt is the time of the last assignment.
	assignedAt time.Time
	// previous is the assignment that preceded the last one; nil if there was none.
	previous   *wire.Assignment
	table      membership.Table
	members    []membership.Member
	discovered []membership.Member
	statuses   map[string]statusAt
	// ready are the owners that reported that they have loaded all nodes and pods of the current
	// assignment.
	ready sets.Set[string]
	// changed wakes run when a replica has reported its status for the first time.
	changed chan struct{}
	// lastAntiAffinityPlaced is the time, by owner, at which the leader last placed a pod with
	// anti-affinity beyond its node on a node of that owner.
	lastAntiAffinityPlaced map[string]time.Time
	// late are the replicas that did not answer their last query in time.
	late map[string]*lateReplica

	// earlier are the reservations of pods whose binds may still arrive although this leader does not assume them. first
	// are the same pods.
	earlier map[types.UID]earlierReservation
	first   firstPods
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

	// pendingMu guards pending, tick and lists.
	pendingMu sync.Mutex
	// pending are the unscheduled pods that other replicas have sent.
	pending map[types.UID]refresh.Object
	// tick is the number of lists that have started. lists are those that have not ended.
	tick  int64
	lists refresh.Lists
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

// lateReplica is a replica that did not answer the last queries in time.
type lateReplica struct {
	// times is the number of consecutive queries without an answer in time. The leader does not
	// query the replica before until.
	times int
	until time.Time
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

	checkInterval = 200 * time.Millisecond
	renewInterval = 5 * time.Second
	// maxUnanswered is the number of pods that are retried as soon as all owners answer. Further
	// pods wait for their backoff.
	maxUnanswered = 100_000
	// placementReportedAfter is the time after which the status report of an owner includes a pod
	// that the leader has placed on one of its nodes.
	placementReportedAfter = 2 * time.Second
	// After n consecutive late answers, a replica is not queried for queryPauseBase * 2^n, but at
	// most for maxQueryPause.
	queryPauseBase, maxQueryPause = 100 * time.Millisecond, 10 * time.Second
)

var errNoAnswer = errors.New("no replica answered")

var errIncomplete = errors.New("not all replicas answered, and pods of the others may decide where this pod fits")

// Search returns the search among the nodes of all owners.
func (l *Leader) Search() *Search { return l.search }

// Assumptions returns the cache of assumed pods, which is the cache of this leader's scheduler.
func (l *Leader) Assumptions() *Assumptions { return l.assumptions }

// leads returns whether this replica leads, according to the last assignment that it has received.
func (l *Leader) leads() bool {
	a := l.member.Assignment()
	return a != nil && a.Leader.Name == l.member.Self() && a.Term == l.Term()
}

// Start starts to lead for a term. It returns when all owners of nodes are ready.
func (l *Leader) Start(ctx context.Context, term int64) {
	if last := l.member.Assignment(); last != nil {
		// If the Lease that counts the terms was deleted, the given term is too low.
		term = max(term, last.Term+1)
	}
	l.mu.Lock()
	l.begin(term)
	l.mu.Unlock()
	go l.run(ctx)
	for ctx.Err() == nil && !l.complete() {
		time.Sleep(10 * time.Millisecond)
	}
}

// complete returns whether nodes have owners and all owners are ready.
func (l *Leader) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners := l.table.Owners()
	return len(owners) > 0 && l.ready.HasAll(owners...)
}

func (l *Leader) run(ctx context.Context) {
	check, renew := time.NewTicker(checkInterval), time.NewTicker(renewInterval)
	defer check.Stop()
	defer renew.Stop()
	for {
		l.assign()
		l.resignIfIsolated()
		l.retryUnanswered()
		l.expireEarlier(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-check.C:
		case <-l.changed:
		case <-renew.C:
			l.renewReservations()
		}
	}
}

// Term returns the term for which this replica leads; 0 while another replica leads.
func (l *Leader) Term() int64 { return l.currentTerm.Load() }

// Nodes returns the total number of nodes in the last status reports of the owners.
func (l *Leader) Nodes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := 0
	for _, member := range l.members {
		nodes += l.statuses[member.Name].Nodes
	}
	return nodes
}

// RetryWhenAllAnswer schedules the retry of a pod that got no node, or could not preempt, because an owner did
// not answer: as soon as all owners answer.
func (l *Leader) RetryWhenAllAnswer(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unanswered) < maxUnanswered {
		l.unanswered[pod.UID] = pod
	}
}

// retryUnanswered retries the unanswered pods if all owners answer now. Otherwise these pods would wait
// for their backoff, which grows with each attempt.
func (l *Leader) retryUnanswered() {
	sent := l.member.Reservations()
	l.mu.Lock()
	owners := l.table.Owners()
	if len(owners) == 0 {
		l.mu.Unlock()
		return
	}
	for _, owner := range owners {
		late := l.late[owner]
		if !l.ready.Has(owner) || !hasKey(sent, owner) || late != nil && time.Now().Before(late.until) {
			l.mu.Unlock()
			return
		}
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range l.unanswered {
		pods[klog.KObj(pod).String()] = pod
	}
	clear(l.unanswered)
	l.mu.Unlock()
	if len(pods) > 0 {
		l.sched.SchedulingQueue.Activate(l.logger, pods)
	}
}

// retryUnschedulable retries all unschedulable pods.
func (l *Leader) retryUnschedulable() {
	retryAll(l.logger, l.sched.SchedulingQueue)
}
