package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// lead is what a replica does that leads: it says who owns which slots, has the pods
// that wait, and asks. In others it does nothing.
type lead struct {
	r           *Replica
	leader      *Leader
	assumptions *assumptions
	// pods and nodes are informers that others feed.
	pods, nodes *fedInformer

	// leadsSince is the term, to be read without the lock.
	leadsSince atomic.Int64

	mu sync.Mutex
	// term is 0 while another replica leads; since is when that changed.
	term, number int64
	since        time.Time
	// assigned is when the last assignment was made.
	assigned time.Time
	// after is the assignment before.
	after    [2]int64
	table    wire.Table
	members  []wire.Member
	known    []wire.Member
	statuses map[string]statusAt
	// ready are the owners that have all that they need to answer.
	ready   sets.Set[string]
	changed chan struct{}
	// forbids is when a pod was last placed at a replica that forbids others on more than
	// its own node.
	forbids map[string]time.Time
	// cuts are replicas that were too late lately.
	cuts map[string]*cut

	// nominated are the nodes of pods that replicas were told to leave room for.
	nominated map[types.UID]string

	// alone is since when nobody is there who owns nodes; zero if somebody is.
	alone time.Time

	// barred are replicas that are left out until then.
	barred map[string]time.Time

	// heldUp are pods for which a replica did not answer.
	heldUp map[types.UID]*v1.Pod

	// pending are the pods that wait, as others have told of them.
	feeding sync.Mutex
	pending map[types.UID]held
	tick    int64
	begun   begun
}

type statusAt struct {
	wire.Status
	at time.Time
}

// cut is a replica that did not answer in time, so often, and is not asked until then.
type cut struct {
	times int
	until time.Time
}

const (
	// A replica that does not say for so long that it lives owns nothing any more.
	deadAfter = 3 * time.Second
	// Nor does one that cannot be told anything for so long, whatever it says.
	unreachableAfter = 1500 * time.Millisecond
	// Who is not reached by another that long after an assignment is left out for a while.
	cutOffAfter, barredFor = 2 * time.Second, 30 * time.Second

	lookEvery   = 200 * time.Millisecond
	remindEvery = 5 * time.Second
	// Pods that are tried again at once when all replicas answer; others wait.
	mostHeldUp = 100_000
	// What a replica says of the pods that it has includes those that were placed there
	// so long before.
	settledAfter = 2 * time.Second
	// A replica that was late is left out for a while, each time for longer.
	firstRest, longestRest = 100 * time.Millisecond, 10 * time.Second
)

var errNobody = errors.New("no replica has answered")

var errIncomplete = errors.New("not all replicas answer, and where this pod may go depends on pods that they have")

func newLead(r *Replica, l *Leader, pods, nodes *fedInformer) *lead {
	return &lead{
		r: r, leader: l, pods: pods, nodes: nodes, statuses: map[string]statusAt{}, ready: sets.New[string](),
		changed: make(chan struct{}, 1), cuts: map[string]*cut{}, forbids: map[string]time.Time{}, heldUp: map[types.UID]*v1.Pod{}, barred: map[string]time.Time{}, pending: map[types.UID]held{}, begun: begun{},
	}
}

// start takes the lead for a term, and returns when all replicas are ready, or those
// that are not are known to be gone.
func (l *lead) start(ctx context.Context, term int64) {
	l.r.mu.Lock()
	if known := l.r.assignment; known != nil {
		// Somebody may have deleted the lease that counts the terms.
		term = max(term, known.Term+1)
	}
	l.r.mu.Unlock()
	l.mu.Lock()
	l.term, l.since = term, time.Now()
	l.leadsSince.Store(term)
	l.mu.Unlock()
	go l.run(ctx)
	for ctx.Err() == nil && !l.complete() {
		time.Sleep(10 * time.Millisecond)
	}
}

func (l *lead) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners := l.table.Owners()
	return len(owners) > 0 && l.ready.HasAll(owners...)
}

func (l *lead) run(ctx context.Context) {
	look, remind := time.NewTicker(lookEvery), time.NewTicker(remindEvery)
	defer look.Stop()
	defer remind.Stop()
	for {
		l.assign()
		l.resignIfAlone()
		l.retryHeldUp()
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-l.changed:
		case <-remind.C:
			l.remind()
		}
	}
}

// assign makes a new assignment if other replicas are there than before.
func (l *lead) assign() {
	known := l.r.options.Discovery.Members()
	l.mu.Lock()
	l.bar()
	members := []wire.Member{l.r.options.Self}
	for _, member := range known {
		if member.Name != l.r.self() && l.lives(member.Name) {
			members = append(members, member)
		}
	}
	same := func(a, b []wire.Member) bool { return sets.New(a...).Equal(sets.New(b...)) }
	if l.number > 0 && same(members, l.members) && same(known, l.known) {
		l.mu.Unlock()
		return
	}
	if l.table == nil {
		// What the last leader has said is kept.
		l.r.mu.Lock()
		l.table = slices.Clone(l.r.table)
		l.r.mu.Unlock()
	}
	var owners []string
	for _, member := range members {
		if !member.Relay {
			owners = append(owners, member.Name)
		}
	}
	l.r.mu.Lock()
	if last := l.r.assignment; last != nil {
		l.after = [2]int64{last.Term, last.Number}
	}
	l.r.mu.Unlock()
	l.table, l.members, l.known = wire.Assign(l.table, owners), members, known
	l.number, l.assigned = l.number+1, time.Now()
	l.ready, l.nominated = sets.New[string](), map[types.UID]string{}
	a := l.assignment()
	l.mu.Unlock()
	klog.FromContext(l.r.ctx).Info("Assigning slots", "term", a.Term, "number", a.Number, "replicas", owners)
	assignments.Inc()
	membership.Set(float64(len(members)))
	l.r.adopt(a)
	l.r.mu.Lock()
	for _, p := range l.r.peers {
		p.link.Tell(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
	}
	l.r.mu.Unlock()
	l.reserveAgain("", false)
}

// lives says whether a replica is there. Who leads newly gives all that are known the time
// to say so; what moved away from them meanwhile would only come back.
func (l *lead) lives(name string) bool {
	l.r.mu.Lock()
	p := l.r.peers[name]
	l.r.mu.Unlock()
	if p != nil && time.Since(l.since) > deadAfter && p.cutOff() || time.Now().Before(l.barred[name]) {
		return false
	}
	s, heard := l.statuses[name]
	return heard && time.Since(s.at) < deadAfter || !heard && time.Since(l.since) < deadAfter
}

// bar leaves out a replica for a while, if there are two that do not reach each other, and
// that keeps any from knowing all that it has to.
func (l *lead) bar() {
	if l.ready.HasAll(l.table.Owners()...) || time.Since(l.assigned) < cutOffAfter {
		return
	}
	times := map[string]int{}
	for _, member := range l.members {
		for _, other := range l.statuses[member.Name].Cut {
			if slices.ContainsFunc(l.members, func(m wire.Member) bool { return m.Name == other }) {
				times[member.Name]++
				times[other]++
			}
		}
	}
	worst := ""
	for _, member := range l.members {
		if name := member.Name; name != l.r.self() && times[name] > times[worst] {
			worst = name
		}
	}
	if worst != "" {
		l.barred[worst] = time.Now().Add(barredFor)
		klog.FromContext(l.r.ctx).Info("A replica and others do not reach each other, and it is left out for a while", "replica", worst, "for", barredFor)
	}
}

// reserveAgain tells the owners of nodes again, or one of them, which pods have places
// there, and if that knows its nodes which pods are to have.
func (l *lead) reserveAgain(owner string, ready bool) {
	l.assumptions.each(func(a *assumption) {
		if !a.held() && !ready {
			return
		}
		l.r.mu.Lock()
		its := owner == "" || l.r.owner(a.pod.Spec.NodeName) == owner
		l.r.mu.Unlock()
		if its {
			reservation := reservationOf(a.pod, a.demands)
			reservation.Held = a.held()
			l.tellOwner(a.pod, reservation)
		}
	})
}

// acked notes what a replica has said of a pod, if that owns the node now.
func (l *lead) acked(from string, ack wire.Ack) {
	node := l.assumptions.nodeOf(ack.UID)
	l.r.mu.Lock()
	its := node != "" && l.r.owner(node) == from
	l.r.mu.Unlock()
	if its {
		l.assumptions.ack(ack.UID, ack.Refused)
	}
}

func (l *lead) termNow() int64 { return l.leadsSince.Load() }

func (l *lead) assignment() *wire.Assignment {
	a := &wire.Assignment{
		Term: l.term, Number: l.number, AfterTerm: l.after[0], AfterNumber: l.after[1],
		Leader: l.r.options.Self, Members: l.members, Known: l.known,
	}
	a.SetTable(l.table)
	return a
}

// greet tells a replica that knows nothing who owns what, and which pods have places on
// its nodes.
func (l *lead) greet(link *wire.Link) {
	l.mu.Lock()
	leads, ready := l.number > 0, l.ready.Has(link.To().Name)
	if leads {
		a := l.assignment()
		link.Tell(func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) })
		l.nominated = map[types.UID]string{}
	}
	l.mu.Unlock()
	if leads {
		l.reserveAgain(link.To().Name, ready)
	}
}

// noteStatus notes that a replica lives, and how far it is.
func (l *lead) noteStatus(from string, s *wire.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return
	}
	if s.Config != l.r.options.Config {
		klog.FromContext(l.r.ctx).Error(nil, "A replica has another configuration, and is left out", "replica", from)
		return
	}
	last, known := l.statuses[from]
	l.statuses[from] = statusAt{*s, time.Now()}
	complete := l.ready.HasAll(l.table.Owners()...)
	switch ready := s.Term == l.term && s.Number == l.number; {
	case !ready:
		l.ready.Delete(from)
	case !l.ready.Has(from):
		delete(l.cuts, from)
		l.mu.Unlock()
		l.reserveAgain(from, true)
		l.mu.Lock()
		// There may be another assignment by now.
		if s.Term == l.term && s.Number == l.number {
			l.ready.Insert(from)
		}
	}
	if !complete && l.ready.HasAll(l.table.Owners()...) || known && s.Freed > last.Freed {
		// Something may fit now of which nobody has told.
		l.leader.disturb()
		go l.retryAll()
	}
	if !known {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// countNodes is how many nodes replicas last said that they have.
func (l *lead) countNodes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := 0
	for _, member := range l.members {
		nodes += l.statuses[member.Name].Nodes
	}
	return nodes
}

// Nodes that plugins may look up, the latest that were chosen for pods with claims.
const mostChosen = 4096

// keepNode lets plugins look up a node that was chosen.
func (l *lead) keepNode(node *v1.Node) {
	if keys := l.nodes.indexer.ListKeys(); len(keys) >= mostChosen {
		_ = l.nodes.indexer.Replace(nil, "")
	}
	_ = l.nodes.indexer.Add(node)
}

// holdUp notes a pod that has no node because a replica did not answer.
func (l *lead) holdUp(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.heldUp) < mostHeldUp {
		l.heldUp[pod.UID] = pod
	}
}

// retryHeldUp tries the pods again at once for which a replica did not answer, as soon as
// all do. Otherwise they would wait for as long as they had been tried in vain.
func (l *lead) retryHeldUp() {
	told := l.told()
	l.mu.Lock()
	owners := l.table.Owners()
	if len(owners) == 0 {
		l.mu.Unlock()
		return
	}
	for _, owner := range owners {
		c := l.cuts[owner]
		if !l.ready.Has(owner) || !known(told, owner) || c != nil && time.Now().Before(c.until) {
			l.mu.Unlock()
			return
		}
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range l.heldUp {
		pods[klog.KObj(pod).String()] = pod
	}
	clear(l.heldUp)
	l.mu.Unlock()
	if len(pods) > 0 {
		l.r.sched.SchedulingQueue.Activate(l.r.logger, pods)
	}
}

// retryAll tries all pods again that fitted nowhere.
func (l *lead) retryAll() {
	l.r.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(l.r.logger, fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}, nil, nil, nil)
}

// reserve tells the owner of a node that a pod is to be there.
func (l *lead) reserve(pod *v1.Pod, demands wire.Demands) {
	l.tellOwner(pod, reservationOf(pod, demands))
	if forbidsAround(pod) {
		l.r.mu.Lock()
		owner := l.r.owner(pod.Spec.NodeName)
		l.r.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forbids[owner] = time.Now()
	}
}

func reservationOf(pod *v1.Pod, demands wire.Demands) wire.Reservation {
	return wire.Reservation{
		Pod: wire.MarshalObject(pod), UID: pod.UID, Node: pod.Spec.NodeName, Profile: pod.Spec.SchedulerName, Demands: demands,
	}
}

// release tells it that it is not.
func (l *lead) release(pod *v1.Pod) {
	l.leader.disturb()
	l.tellOwner(pod, wire.Reservation{UID: pod.UID, Node: pod.Spec.NodeName})
}

func (l *lead) tellOwner(pod *v1.Pod, reservation wire.Reservation) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	p := l.r.peers[l.r.owner(pod.Spec.NodeName)]
	if p == nil {
		go l.assumptions.ack(pod.UID, "no replica owns the node")
		return
	}
	p.link.Tell(func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) })
}

// nominate tells the owners of nodes which pods wait for them, if that has changed. It
// is part of the scheduling cycle.
func (l *lead) nominate() {
	now := map[types.UID]string{}
	queue := l.leader.Nominations
	for node, nominees := range queue.ByNode() {
		for i := range nominees {
			now[nominees[i].UID] = node
		}
	}
	l.mu.Lock()
	told := l.nominated
	l.nominated = now
	l.mu.Unlock()
	for uid, node := range told {
		if now[uid] != node {
			l.tellWaiting(node, wire.Reservation{Nominated: true, UID: uid})
		}
	}
	for uid, node := range now {
		if told[uid] == node {
			continue
		}
		for _, info := range queue.NominatedPodsForNode(node) {
			if pod := info.GetPod(); pod.UID == uid {
				l.tellWaiting(node, wire.Reservation{Nominated: true, UID: uid, Node: node, Pod: wire.MarshalObject(pod)})
			}
		}
	}
}

// tellWaiting tells the owner of a node of a pod that waits for it. This replica has
// them in its queue.
func (l *lead) tellWaiting(node string, reservation wire.Reservation) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	owner := l.r.owner(node)
	if p := l.r.peers[owner]; p != nil && owner != l.r.self() {
		p.link.Tell(func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) })
	}
}

// remind tells the owners of nodes which places are still of use.
func (l *lead) remind() {
	l.assumptions.each(func(a *assumption) {
		if !a.held() {
			return
		}
		uid := a.pod.UID
		l.r.mu.Lock()
		defer l.r.mu.Unlock()
		l.r.tell(l.r.owner(a.pod.Spec.NodeName), func(b *wire.Batch) { b.Kept = append(b.Kept, uid) })
	})
}
