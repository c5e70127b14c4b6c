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
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Leader is the part of a replica that leads.
type Leader struct {
	options member.Options
	logger  klog.Logger
	ctx     context.Context
	member  *member.Member
	sched   *kubescheduler.Scheduler
	client  kubernetes.Interface
	dial    *wire.Dialer
	// answer answers a query about the nodes of this replica.
	answer func(context.Context, *wire.Request) *wire.Answer

	search      *Search
	assumptions *Assumptions
	// podEvents and nodeEvents are the informers that other replicas feed.
	podEvents, nodeEvents *eventInformer

	// currentTerm is the term, readable without the lock.
	currentTerm atomic.Int64

	mu sync.Mutex
	// term is 0 while another replica leads; since is when it was set.
	term, number int64
	since        time.Time
	// assignedAt is when the last assignment was made.
	assignedAt time.Time
	// previous is the term and number of the assignment before.
	previous   [2]int64
	table      membership.Table
	members    []membership.Member
	discovered []membership.Member
	statuses   map[string]statusAt
	// ready are the owners that have all that they need to answer.
	ready   sets.Set[string]
	changed chan struct{}
	// forbidsSince is when a pod with anti-affinity beyond its node was last placed with a replica.
	forbidsSince map[string]time.Time
	// late are replicas that did not answer in time.
	late map[string]*lateness

	// nominated are the nominated nodes of pods, as sent to their owners.
	nominated map[types.UID]string

	// aloneSince is when the last replica that owns nodes disappeared; zero if there is one.
	aloneSince time.Time

	// barred are replicas that are left out until some time.
	barred map[string]time.Time

	// delayed are pods for which a replica did not answer.
	delayed map[types.UID]*v1.Pod

	// pendingMu guards pending: the pods without a node that other replicas have sent. tick counts
	// the lists that were started, and lists are those that are not complete.
	pendingMu sync.Mutex
	pending   map[types.UID]refresh.Object
	tick      int64
	lists     refresh.Lists
}

type statusAt struct {
	wire.Status
	at time.Time
}

// lateness is how often in a row a replica did not answer in time, and until when it is not asked.
type lateness struct {
	times int
	until time.Time
}

// Times and bounds of leading.
const (
	// A replica without a status report for so long owns nothing any more.
	deadAfter = 3 * time.Second
	// If an assignment is not complete after cutOffAfter, a replica that others do not reach is
	// left out for barredFor.
	cutOffAfter, barredFor = 2 * time.Second, 30 * time.Second

	checkInterval = 200 * time.Millisecond
	renewInterval = 5 * time.Second
	// Pods that are retried at once when all replicas answer. Further pods wait for their backoff.
	maxDelayed = 100_000
	// The report of a replica includes the pods that were placed with it so long before.
	settledAfter = 2 * time.Second
	// A replica that was late is not asked for a while, each time for longer.
	firstRest, longestRest = 100 * time.Millisecond, 10 * time.Second
)

var errNoAnswer = errors.New("no replica answered")

var errIncomplete = errors.New("not all replicas answered, and their pods may decide where this pod fits")

// Search returns the search among the nodes of all owners.
func (l *Leader) Search() *Search { return l.search }

// Assumptions returns the cache of the scheduler of this leader.
func (l *Leader) Assumptions() *Assumptions { return l.assumptions }

// leads returns whether this replica leads, as far as it knows.
func (l *Leader) leads() bool {
	a := l.member.Assignment()
	return a != nil && a.Leader.Name == l.member.Self() && a.Term == l.Term()
}

// Start leads for a term. It returns when all owners of nodes are ready.
func (l *Leader) Start(ctx context.Context, term int64) {
	if last := l.member.Assignment(); last != nil {
		// The lease that counts the terms may have been deleted.
		term = max(term, last.Term+1)
	}
	l.mu.Lock()
	l.term, l.since = term, time.Now()
	l.currentTerm.Store(term)
	l.mu.Unlock()
	go l.run(ctx)
	for ctx.Err() == nil && !l.complete() {
		time.Sleep(10 * time.Millisecond)
	}
}

func (l *Leader) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners := l.table.Owners()
	return len(owners) > 0 && l.ready.HasAll(owners...)
}

func (l *Leader) run(ctx context.Context) {
	look, remind := time.NewTicker(checkInterval), time.NewTicker(renewInterval)
	defer look.Stop()
	defer remind.Stop()
	for {
		l.assign()
		l.resignIfAlone()
		l.retryDelayed()
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-l.changed:
		case <-remind.C:
			l.renewReservations()
		}
	}
}

// Term returns the term that this replica leads for; 0 while another leads.
func (l *Leader) Term() int64 { return l.currentTerm.Load() }

// Nodes returns how many nodes the owners last reported.
func (l *Leader) Nodes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := 0
	for _, member := range l.members {
		nodes += l.statuses[member.Name].Nodes
	}
	return nodes
}

// maxKeptNodes is how many of the latest nodes chosen for pods with claims plugins can look up.
const maxKeptNodes = 4096

// KeepNode lets plugins look up a node that was chosen for a pod with claims.
func (l *Leader) KeepNode(node *v1.Node) {
	if keys := l.nodeEvents.indexer.ListKeys(); len(keys) >= maxKeptNodes {
		_ = l.nodeEvents.indexer.Replace(nil, "")
	}
	_ = l.nodeEvents.indexer.Add(node)
}

// Delay notes a pod that got no node because a replica did not answer.
func (l *Leader) Delay(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.delayed) < maxDelayed {
		l.delayed[pod.UID] = pod
	}
}

// retryDelayed retries delayed pods as soon as all replicas answer. Otherwise they would wait for
// their backoff, which grows with each attempt.
func (l *Leader) retryDelayed() {
	sent := l.member.Reservations()
	l.mu.Lock()
	owners := l.table.Owners()
	if len(owners) == 0 {
		l.mu.Unlock()
		return
	}
	for _, owner := range owners {
		c := l.late[owner]
		if !l.ready.Has(owner) || !hasKey(sent, owner) || c != nil && time.Now().Before(c.until) {
			l.mu.Unlock()
			return
		}
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range l.delayed {
		pods[klog.KObj(pod).String()] = pod
	}
	clear(l.delayed)
	l.mu.Unlock()
	if len(pods) > 0 {
		l.sched.SchedulingQueue.Activate(l.logger, pods)
	}
}

// retryUnschedulable retries all unschedulable pods.
func (l *Leader) retryUnschedulable() {
	l.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(l.logger, fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}, nil, nil, nil)
}
