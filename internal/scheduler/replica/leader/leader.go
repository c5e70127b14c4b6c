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
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// lead is what a replica does that leads: it says who owns which slots, has the pods
// that wait, and asks. In others it does nothing.
type Leader struct {
	options member.Options
	logger  klog.Logger
	ctx     context.Context
	member  *member.Member
	sched   *kubescheduler.Scheduler
	client  kubernetes.Interface
	dial    *wire.Dialer
	// answer answers a query for the nodes of this replica.
	answer func(context.Context, *wire.Question) *wire.Answer

	search      *Search
	assumptions *Assumptions
	// pods and nodes are informers that others feed.
	podEvents, nodeEvents *eventInformer

	// leadsSince is the term, to be read without the lock.
	currentTerm atomic.Int64

	mu sync.Mutex
	// term is 0 while another replica leads; since is when that changed.
	term, number int64
	since        time.Time
	// assigned is when the last assignment was made.
	assignedAt time.Time
	// after is the assignment before.
	previous   [2]int64
	table      wire.Table
	members    []wire.Member
	discovered []wire.Member
	statuses   map[string]statusAt
	// ready are the owners that have all that they need to answer.
	ready   sets.Set[string]
	changed chan struct{}
	// forbids is when a pod was last placed at a replica that forbids others on more than
	// its own node.
	forbidsSince map[string]time.Time
	// cuts are replicas that were too late lately.
	late map[string]*lateness

	// nominated are the nodes of pods that replicas were told to leave room for.
	nominated map[types.UID]string

	// alone is since when nobody is there who owns nodes; zero if somebody is.
	aloneSince time.Time

	// barred are replicas that are left out until then.
	barred map[string]time.Time

	// heldUp are pods for which a replica did not answer.
	delayed map[types.UID]*v1.Pod

	// pending are the pods that wait, as others have told of them.
	pendingMu sync.Mutex
	pending   map[types.UID]refresh.Object
	tick      int64
	lists     refresh.Lists
}

type statusAt struct {
	wire.Status
	at time.Time
}

// cut is a replica that did not answer in time, so often, and is not asked until then.
type lateness struct {
	times int
	until time.Time
}

const (
	// A replica that does not say for so long that it lives owns nothing any more.
	deadAfter = 3 * time.Second
	// Who is not reached by another that long after an assignment is left out for a while.
	cutOffAfter, barredFor = 2 * time.Second, 30 * time.Second

	checkInterval = 200 * time.Millisecond
	renewInterval = 5 * time.Second
	// Pods that are tried again at once when all replicas answer; others wait.
	maxDelayed = 100_000
	// What a replica says of the pods that it has includes those that were placed there
	// so long before.
	settledAfter = 2 * time.Second
	// A replica that was late is left out for a while, each time for longer.
	firstRest, longestRest = 100 * time.Millisecond, 10 * time.Second
)

var errNoAnswer = errors.New("no replica has answered")

var errIncomplete = errors.New("not all replicas answer, and where this pod may go depends on pods that they have")

// Search returns the search for nodes among all owners.
func (l *Leader) Search() *Search { return l.search }

// Assumptions returns the cache of the scheduler of this leader.
func (l *Leader) Assumptions() *Assumptions { return l.assumptions }

// Leads returns whether this replica leads, as far as it knows.
func (l *Leader) leads() bool {
	a := l.member.Assignment()
	return a != nil && a.Leader.Name == l.member.Self() && a.Term == l.Term()
}

// start takes the lead for a term, and returns when all replicas are ready, or those
// that are not are known to be gone.
func (l *Leader) Start(ctx context.Context, term int64) {
	if known := l.member.Assignment(); known != nil {
		// The lease that counts the terms may have been deleted.
		term = max(term, known.Term+1)
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

func (l *Leader) Term() int64 { return l.currentTerm.Load() }

// Nodes is how many nodes replicas last said that they have.
func (l *Leader) Nodes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := 0
	for _, member := range l.members {
		nodes += l.statuses[member.Name].Nodes
	}
	return nodes
}

// Nodes that plugins may look up, the latest that were chosen for pods with claims.
const maxKeptNodes = 4096

// KeepNode lets plugins look up a node that was chosen.
func (l *Leader) KeepNode(node *v1.Node) {
	if keys := l.nodeEvents.indexer.ListKeys(); len(keys) >= maxKeptNodes {
		_ = l.nodeEvents.indexer.Replace(nil, "")
	}
	_ = l.nodeEvents.indexer.Add(node)
}

// Delay notes a pod that has no node because a replica did not answer.
func (l *Leader) Delay(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.delayed) < maxDelayed {
		l.delayed[pod.UID] = pod
	}
}

// retryHeldUp tries the pods again at once for which a replica did not answer, as soon as
// all do. Otherwise they would wait for as long as they had been tried in vain.
func (l *Leader) retryDelayed() {
	told := l.member.Reservations()
	l.mu.Lock()
	owners := l.table.Owners()
	if len(owners) == 0 {
		l.mu.Unlock()
		return
	}
	for _, owner := range owners {
		c := l.late[owner]
		if !l.ready.Has(owner) || !hasKey(told, owner) || c != nil && time.Now().Before(c.until) {
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

// retryAll tries all pods again that fitted nowhere.
func (l *Leader) retryUnschedulable() {
	l.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(l.logger, fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}, nil, nil, nil)
}
