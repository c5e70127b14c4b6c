package leader

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Leader is the part of a replica that schedules pods while this replica leads. [core.Leader] decides; this type brings
// it the time, the messages of other replicas and the calls of the scheduler, and carries its output out.
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
	// changed wakes run when there may be something to do before its next check.
	changed chan struct{}
	// first are the pods for which core knows a reservation that a late bind may use.
	first firstPods

	// currentTerm is a copy of the term that can be read without mu.
	currentTerm atomic.Int64

	mu   sync.Mutex
	core *core.Leader
	// answered are closed when the owner of a node answers for the first time, by the number of the placement. Only
	// placements have one for which somebody waits.
	answered map[uint64]chan struct{}

	// pendingMu guards pending, and keeps its changes in order on their way to the scheduler. It is locked before mu.
	pendingMu sync.Mutex
	pending   *core.Pending
}

const (
	checkInterval = 200 * time.Millisecond
	renewInterval = 5 * time.Second
	// maxContestWait is the longest time after which a leader starts again whose term another one claims. It is longer
	// than a message between replicas takes.
	maxContestWait = time.Second
)

// Search returns the search among the nodes of all owners.
func (l *Leader) Search() *Search { return l.search }

// Assumptions returns the cache of assumed pods, which is the cache of this leader's scheduler.
func (l *Leader) Assumptions() *Assumptions { return l.assumptions }

// do makes a call of the protocol at the current time, and carries its output out.
func (l *Leader) do(call func(c *core.Leader, now time.Time) core.Output) {
	l.mu.Lock()
	out := call(l.core, time.Now())
	l.send(&out)
	l.mu.Unlock()
	l.finish(&out)
}

// send carries out the part of an output that must not be delayed: until it returns, no other call is made. It sends
// messages, which does not block. The caller holds the lock.
func (l *Leader) send(out *core.Output) {
	for i := range out.Reservations {
		r := &out.Reservations[i]
		if !l.member.SendToOwner(r.Node, func(b *wire.Batch) { b.Reservations = append(b.Reservations, *r) }) {
			refused := l.core.NoOwner(time.Now(), r)
			out.Answered = append(out.Answered, refused.Answered...)
		}
	}
	for _, n := range out.Nominations {
		l.member.SendTo(n.Owner, func(b *wire.Batch) { b.Reservations = append(b.Reservations, n.Reservation) })
	}
	for _, r := range out.Renewals {
		l.member.SendToOwner(r.Node, func(b *wire.Batch) { b.Kept = append(b.Kept, r.Renewal) })
	}
	for _, attempt := range out.Answered {
		if waiting := l.answered[attempt]; waiting != nil {
			close(waiting)
			delete(l.answered, attempt)
		}
	}
	if out.Invalidate {
		l.search.invalidate()
	}
	for _, uid := range out.First {
		l.first.insert(uid)
	}
	for _, uid := range out.NotFirst {
		l.first.remove(uid)
	}
}

// finish carries out the rest of an output. The queue is locked before the leader, and the caller may hold its lock.
func (l *Leader) finish(out *core.Output) {
	for _, note := range out.Notes {
		if note.Error {
			l.logger.Error(nil, note.Message, note.KeysAndValues...)
		} else {
			l.logger.Info(note.Message, note.KeysAndValues...)
		}
	}
	if len(out.Moved) > 0 {
		go l.moveToFront(out.Moved)
	}
	if out.RetryAll {
		go l.retryUnschedulable()
	}
	if len(out.Activate) > 0 {
		pods := map[string]*v1.Pod{}
		for _, pod := range out.Activate {
			pods[klog.KObj(pod).String()] = pod
		}
		l.sched.SchedulingQueue.Activate(l.logger, pods)
	}
	if out.Wake {
		l.wake()
	}
	if out.Resign {
		l.logger.Error(ErrIsolated, "Resigning as leader and exiting")
		l.options.Resign()
	}
}

// Start starts to lead for a term. It returns when all owners of nodes are ready.
func (l *Leader) Start(ctx context.Context, term int64) {
	l.begin(func(now time.Time) bool {
		l.core.Begin(term, now, l.member.Assignment())
		return true
	})
	go l.run(ctx)
	for ctx.Err() == nil && !l.complete() {
		time.Sleep(10 * time.Millisecond)
	}
}

// begin calls a function that starts a term, and returns whether it has.
func (l *Leader) begin(start func(now time.Time) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !start(time.Now()) {
		return false
	}
	l.first.clear()
	l.currentTerm.Store(l.core.Term())
	return true
}

// complete returns whether nodes have owners and all owners are ready.
func (l *Leader) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Complete()
}

func (l *Leader) run(ctx context.Context) {
	check, renew := time.NewTicker(checkInterval), time.NewTicker(renewInterval)
	defer check.Stop()
	defer renew.Stop()
	for {
		l.tick()
		select {
		case <-ctx.Done():
			return
		case <-check.C:
		case <-l.changed:
		case <-renew.C:
			l.do(func(c *core.Leader, _ time.Time) core.Output { return c.Renew() })
		}
	}
}

// tick does what is due. It first follows and sends a new assignment, if there is one.
func (l *Leader) tick() {
	for {
		discovered, sent := l.options.Discovery.Members(), l.member.Reservations()
		var a *wire.Assignment
		l.do(func(c *core.Leader, now time.Time) core.Output {
			out := c.Tick(now, discovered, sent, l.member)
			a = out.Assignment
			return out
		})
		if a == nil {
			return
		}
		assignments.Inc()
		replicaCount.Set(float64(len(a.Members)))
		l.member.Adopt(a)
		l.member.SendToAll(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
		l.do(func(c *core.Leader, now time.Time) core.Output { return c.Adopted(now, l.member) })
		l.SettleNodes()
	}
}

// wake makes run check the assignment now.
func (l *Leader) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Term returns the term for which this replica leads; 0 while another replica leads.
func (l *Leader) Term() int64 { return l.currentTerm.Load() }

// Nodes returns the total number of nodes in the last status reports of the owners.
func (l *Leader) Nodes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Nodes()
}

// Contested returns whether another process leads for the term of this leader (see [core.Leader.Contested]).
func (l *Leader) Contested(a *wire.Assignment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Contested(a)
}

// StartAgain makes this replica start again with a later term than the given one, which another process claims
// too, unless it has followed a later leader by then.
func (l *Leader) StartAgain(after int64) {
	l.mu.Lock()
	again := l.core.StartAgain(after)
	l.mu.Unlock()
	if !again {
		return
	}
	wait := rand.N(maxContestWait)
	l.logger.Info("Another process leads for the term of this replica; starting again with a later term", "term", after, "in", wait)
	time.AfterFunc(wait, func() { l.startAfter(after) })
}

// startAfter starts the term after the given one, unless this replica follows a later leader.
func (l *Leader) startAfter(term int64) {
	if l.ctx.Err() != nil {
		return
	}
	if l.begin(func(now time.Time) bool { return l.core.StartAfter(term, now, l.member.Assignment()) }) {
		l.wake()
	}
}

// HandleStatus processes the status report of a replica.
func (l *Leader) HandleStatus(from string, s *wire.Status) {
	l.do(func(c *core.Leader, now time.Time) core.Output { return c.Status(now, from, s, l.member) })
}

// Greet sends the leader's state to a replica to which this replica has just connected: the assignment,
// and the reservations on that replica's nodes.
func (l *Leader) Greet(link *wire.Link) {
	l.do(func(c *core.Leader, now time.Time) core.Output {
		a, out := c.Greeting(now, link.To().Name, l.member)
		if a != nil {
			link.Send(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
		}
		return out
	})
}

// NodesMoved sends the reservations to a replica that owns nodes which were created again. The owners of the earlier nodes
// had them.
func (l *Leader) NodesMoved(owner string) {
	l.do(func(c *core.Leader, now time.Time) core.Output { return c.NodesMoved(now, owner, l.member) })
}

// SettleNodes sends the reservations on nodes whose announcements have waited, and then confirms the announcements.
func (l *Leader) SettleNodes() {
	for _, owner := range l.member.TakeSettled() {
		l.NodesMoved(owner)
		l.member.ConfirmSettled(owner)
	}
}

// HandleAck records a replica's answer to a reservation. It ignores the answer if the replica does not
// own the node according to the current assignment.
func (l *Leader) HandleAck(from string, ack wire.Ack) {
	l.do(func(c *core.Leader, now time.Time) core.Output { return c.Ack(now, from, ack, l.member) })
}

// RetryWhenAllAnswer schedules the retry of a pod that got no node, or could not preempt, because an owner did
// not answer: as soon as all owners answer.
func (l *Leader) RetryWhenAllAnswer(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.RetryWhenAllAnswer(pod)
}

// Earlier returns the node on which capacity is reserved for a pod whose bind may still arrive; "" if there is none.
func (l *Leader) Earlier(uid types.UID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Earlier(uid)
}

// IsUnsettled returns whether a bind of a pod may still arrive that is not known to be bound or deleted. This leader may
// have placed the pod already: it takes such pods first, so another pod may want to evict it while it is being bound.
func (l *Leader) IsUnsettled(uid types.UID) bool { return l.Earlier(uid) != "" }

// ReleaseEarlier releases the reservation that a leader of an earlier term requested for a pod (see
// [core.Leader.ReleaseEarlier]).
func (l *Leader) ReleaseEarlier(uid types.UID) {
	l.do(func(c *core.Leader, _ time.Time) core.Output { return c.ReleaseEarlier(uid) })
}

// retryUnschedulable retries all unschedulable pods.
func (l *Leader) retryUnschedulable() {
	retryAll(l.logger, l.sched.SchedulingQueue)
}
