package core

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// simScheduler is the scheduler of a leader: it places one pod after the other on the node with the most room, and binds
// them at the same time.
type simScheduler struct {
	r       *simReplica
	queue   map[types.UID]*simQueued
	started bool
	busy    bool
}

// simQueued is a pod in the queue.
type simQueued struct {
	pod *v1.Pod
	// active is true if the pod can be scheduled now. Otherwise it waits for its backoff, or for an event if parked is true.
	active, parked bool
	attempts       int
	order          int64
	// placed is true while the pod is assumed. decided is what the leader knew when it chose the node.
	placed  bool
	decided *simDecision
}

// run schedules pods as soon as all owners are ready.
func (s *simScheduler) run() {
	s.started = s.started || s.r.leader.Complete()
	if s.started {
		s.next()
	}
	s.r.soon(s.r.sim.pace(100*time.Millisecond), s.run)
}

func (s *simScheduler) add(pod *v1.Pod) {
	if q := s.queue[pod.UID]; q != nil {
		q.pod = pod
		return
	}
	s.r.sim.count++
	s.queue[pod.UID] = &simQueued{pod: pod, active: true, order: s.r.sim.count}
}

func (s *simScheduler) remove(uid types.UID) { delete(s.queue, uid) }

func (s *simScheduler) activate(uid types.UID) {
	if q := s.queue[uid]; q != nil {
		q.active, q.parked = true, false
	}
}

// retryAll retries the pods that did not fit.
func (s *simScheduler) retryAll() {
	for _, q := range s.queue {
		if q.parked {
			q.active, q.parked = true, false
		}
	}
}

// next schedules the next pod: those with an earlier reservation first.
func (s *simScheduler) next() {
	if s.busy {
		return
	}
	var best *simQueued
	first := func(q *simQueued) int {
		if s.r.leader.Earlier(q.pod.UID) != "" {
			return 0
		}
		return 1
	}
	for _, q := range s.queue {
		if q.active && !q.placed && (best == nil || cmp.Or(cmp.Compare(first(q), first(best)), cmp.Compare(q.order, best.order)) < 0) {
			best = q
		}
	}
	if best != nil {
		best.active = false
		s.busy = true
		s.schedule(best)
	}
}

// schedule places a pod, first on the node on which an earlier leader has reserved capacity for it.
func (s *simScheduler) schedule(q *simQueued) {
	if node := s.r.leader.Earlier(q.pod.UID); node != "" {
		s.query(q, simQuery{pod: q.pod, node: node, reserved: q.pod.UID}, func(choice string, err error) {
			switch {
			case err != nil:
				s.failed(q, err)
			case choice != "":
				s.r.sim.stats.Completed++
				s.place(q, choice)
			default:
				s.r.carryLeader(s.r.leader.ReleaseEarlier(q.pod.UID))
				s.scheduleAnywhere(q)
			}
		})
		return
	}
	s.scheduleAnywhere(q)
}

func (s *simScheduler) scheduleAnywhere(q *simQueued) {
	s.query(q, simQuery{pod: q.pod}, func(choice string, err error) {
		switch {
		case err != nil:
			s.failed(q, err)
		case choice == "":
			s.park(q)
		default:
			s.place(q, choice)
		}
	})
}

// failed retries a pod after its backoff, or as soon as all owners answer.
func (s *simScheduler) failed(q *simQueued, err error) {
	s.r.sim.record("%s: scheduling %s has failed: %v", s.r.self.Name, q.pod.Name, err)
	if errors.Is(err, ErrIncomplete) || errors.Is(err, ErrNoAnswer) {
		s.r.sim.stats.Incomplete++
		s.r.leader.RetryWhenAllAnswer(q.pod)
	}
	s.backoff(q)
	s.busy = false
	s.next()
}

func (s *simScheduler) backoff(q *simQueued) {
	q.attempts++
	wait := min(time.Second<<min(q.attempts, 4), 10*time.Second)
	s.r.soon(wait, func() { s.activate(q.pod.UID) })
}

// park makes a pod that fits nowhere wait for an event. Like kube-scheduler's queue, it is retried after some time anyway.
func (s *simScheduler) park(q *simQueued) {
	s.r.sim.record("%s: %s fits nowhere", s.r.self.Name, q.pod.Name)
	q.parked = true
	s.r.soon(30*time.Second, func() { s.activate(q.pod.UID) })
	s.busy = false
	s.next()
}

// simQuery is a query for a pod. node restricts it to one node.
type simQuery struct {
	pod      *v1.Pod
	node     string
	reserved types.UID
	from     string
	ask      Question
	deadline time.Time
}

// simAnswer is the answer of an owner: the room of its nodes, and the pods on them that exclude others.
type simAnswer struct {
	from string
	// free has the room of each node, and uids their UIDs.
	free map[string]int
	uids map[string]types.UID
	// group are the pods of the group, and exclusive those of them that tolerate no other one.
	group, exclusive int
}

// simPatience is the time for which the leader waits for answers.
const simPatience = 600 * time.Millisecond

// query asks the owners, and then chooses a node: "" if the pod fits on none.
func (s *simScheduler) query(q *simQueued, query simQuery, then func(choice string, err error)) {
	r, sim := s.r, s.r.sim
	query.from = r.self.Name
	query.ask = r.leader.Ask(r.clock(), HasAntiAffinityBeyondNode(q.pod), r.sentReservations())
	query.deadline = sim.now.Add(simPatience)
	q.decided = sim.api.decision()
	var answers []*simAnswer
	// Relays have no nodes, and here they forward no queries. If the leader awaited their answers, each query would last as
	// long as its patience, and pods that fit nowhere would take all the time of the later ones.
	owners := slices.DeleteFunc(slices.Clone(query.ask.Members), func(m membership.Member) bool { return m.Relay })
	expected, done := len(owners), false
	if query.ask.Own {
		expected++
	}
	finish := func() {
		if !done {
			done = true
			s.decide(q, &query, answers, then)
		}
	}
	collect := func(a *simAnswer) {
		answered := slices.ContainsFunc(answers, func(other *simAnswer) bool { return a != nil && other.from == a.from })
		if a == nil || done || answered {
			return
		}
		if answers = append(answers, a); len(answers) == expected {
			finish()
		}
	}
	if query.ask.Own {
		r.soon(0, func() { r.answer(&query, collect) })
	}
	for _, member := range owners {
		for range 1 + sim.repeats() {
			s.call(member.Name, &query, collect)
		}
	}
	r.soon(simPatience, finish)
	if expected == 0 {
		r.soon(0, finish)
	}
}

// repeats returns how often a message that may be doubled or lost arrives beside the first time; -1 if it is lost.
func (s *simulation) repeats() int {
	switch {
	case s.faulty && s.chance(0.02):
		return -1
	case s.faulty && s.chance(0.05):
		return 1
	}
	return 0
}

// call sends a query to a replica. The query and the answer may be lost, doubled and reordered.
func (s *simScheduler) call(to string, query *simQuery, collect func(*simAnswer)) {
	r, sim := s.r, s.r.sim
	target := sim.replica(to)
	instance, own := target.instance, r.instance
	sim.after(sim.delay(), func() {
		if !sim.connected(r.self.Name, to) {
			return
		}
		target.deliver(instance, func() {
			target.answer(query, func(a *simAnswer) {
				for range 1 + sim.repeats() {
					sim.after(sim.delay(), func() {
						if sim.connected(r.self.Name, to) {
							r.deliver(own, func() { collect(a) })
						}
					})
				}
			})
		})
	})
}

// answer is Replica.Answer and Holder.Answer.
func (r *simReplica) answer(q *simQuery, reply func(*simAnswer)) {
	a := r.member.Assignment()
	switch {
	case a == nil || a.Leader.Name != q.from || !r.member.Ready(q.ask.Term, q.ask.Number):
		return
	case r.ledger.Seen(q.from) < q.ask.Reservations[r.self.Name]:
		if r.sim.now.Before(q.deadline) {
			r.soon(5*time.Millisecond, func() { r.answer(q, reply) })
		}
		return
	}
	restore := r.ledger.Without(q.reserved)
	answer := &simAnswer{from: r.self.Name, free: map[string]int{}, uids: map[string]types.UID{}}
	for name, node := range r.nodes.nodes {
		if q.node == "" || q.node == name {
			answer.free[name], answer.uids[name] = r.nodes.free(name), node.UID
		}
	}
	for _, pod := range r.nodes.pods {
		if inGroup(pod) {
			answer.group++
			if HasAntiAffinityBeyondNode(pod) {
				answer.exclusive++
			}
		}
	}
	restore()
	reply(answer)
}

// decide chooses a node from the answers.
func (s *simScheduler) decide(q *simQueued, query *simQuery, answers []*simAnswer, then func(string, error)) {
	r := s.r
	var absent []string
	for _, member := range query.ask.Members {
		if !member.Relay && !slices.ContainsFunc(answers, func(a *simAnswer) bool { return a.from == member.Name }) {
			absent = append(absent, member.Name)
		}
	}
	if own := r.self.Name; query.ask.Own && !slices.ContainsFunc(answers, func(a *simAnswer) bool { return a.from == own }) {
		absent = append(absent, own)
	}
	r.sim.stats.Late += len(r.leader.Answered(r.clock(), &query.ask, absent))
	missing, err := r.leader.Decides(&query.ask, absent)
	if err != nil {
		then("", err)
		return
	}
	if query.reserved != "" && len(missing) > 0 {
		// The node of the reservation may be one of the missing ones.
		if len(answers) == 0 || !slices.ContainsFunc(answers, func(a *simAnswer) bool { return len(a.free) > 0 }) {
			then("", ErrIncomplete)
			return
		}
	}
	free := s.merge(answers)
	choice := choose(q.pod, free, answers)
	if len(missing) == 0 && query.node == "" {
		s.compare(q.pod, choice)
	}
	if _, still := s.queue[q.pod.UID]; !still {
		// It was deleted or bound meanwhile.
		s.busy = false
		s.next()
		return
	}
	then(choice, nil)
}

// merge returns the room of all nodes. No two owners may have one node.
func (s *simScheduler) merge(answers []*simAnswer) map[string]int {
	free, owner := map[string]int{}, map[types.UID]string{}
	for _, a := range answers {
		for name, room := range a.free {
			if other, twice := owner[a.uids[name]]; twice {
				s.r.sim.fail("%s and %s answer for %s in one assignment", other, a.from, name)
			}
			owner[a.uids[name]] = a.from
			free[name] = room
		}
	}
	return free
}

// choose returns the node with the most room; "" if the pod fits on none.
func choose(pod *v1.Pod, free map[string]int, answers []*simAnswer) string {
	group, exclusive := 0, 0
	for _, a := range answers {
		group, exclusive = group+a.group, exclusive+a.exclusive
	}
	if inGroup(pod) && (exclusive > 0 || HasAntiAffinityBeyondNode(pod) && group > 0) {
		return ""
	}
	best := ""
	for _, name := range slices.Sorted(maps.Keys(free)) {
		if free[name] > 0 && (best == "" || free[name] > free[best]) {
			best = name
		}
	}
	return best
}

// compare checks, while nothing else happens, that a decision is that of a scheduler that knows all nodes and pods.
func (s *simScheduler) compare(pod *v1.Pod, choice string) {
	sim := s.r.sim
	if !sim.exam {
		return
	}
	reference := &simAnswer{free: map[string]int{}}
	for name := range sim.api.nodes {
		reference.free[name] = sim.api.room[name] - sim.api.used(name)
	}
	count := func(other *v1.Pod) {
		if inGroup(other) && other.UID != pod.UID {
			reference.group++
			if HasAntiAffinityBeyondNode(other) {
				reference.exclusive++
			}
		}
	}
	for _, other := range sim.api.pods {
		if other.Spec.NodeName != "" {
			count(other)
		}
	}
	for uid, assumed := range s.r.leader.assumed {
		if current := sim.api.pods[uid]; current != nil && current.Spec.NodeName == "" {
			reference.free[assumed.pod.Spec.NodeName]--
			count(assumed.pod)
		}
	}
	sim.stats.Compared++
	if want := choose(pod, reference.free, []*simAnswer{reference}); choice != want {
		sim.fail("%s is placed on %q, and the reference says %q", pod.Name, choice, want)
	}
}

// place assumes a pod on a node, and binds it.
func (s *simScheduler) place(q *simQueued, node string) {
	r := s.r
	assumed := q.pod.DeepCopy()
	assumed.Spec.NodeName = node
	out, err := r.leader.Assume(r.clock(), assumed, wire.TermKeys{}, r)
	s.busy = false
	if err != nil {
		s.backoff(q)
		return
	}
	q.placed = true
	r.sim.note("%s places %s on %s", r.self.Name, q.pod.Name, node)
	r.carryLeader(out)
	placed, _ := r.leader.Placement(q.pod.UID)
	s.confirm(q, assumed, placed.Attempt, r.sim.now.Add(10*time.Second), q.decided)
	s.next()
}

// confirm waits for the answer of the owner, and then sends the bind.
func (s *simScheduler) confirm(q *simQueued, assumed *v1.Pod, attempt uint64, deadline time.Time, decided *simDecision) {
	r := s.r
	now, current := r.leader.Placement(assumed.UID)
	switch {
	case !current || now.Attempt != attempt:
		s.unplace(q, assumed)
	case !now.Answered && r.sim.now.Before(deadline) && r.sim.fault != BindBeforeAck:
		r.soon(10*time.Millisecond, func() { s.confirm(q, assumed, attempt, deadline, decided) })
	case r.leader.Valid(r.clock(), assumed.UID, attempt, r.tenure(), r) != nil:
		r.leader.RetryWhenAllAnswer(q.pod)
		s.unplace(q, assumed)
	default:
		wait := r.sim.upTo(30 * time.Millisecond)
		if r.sim.faulty && r.sim.chance(0.05) {
			wait = r.sim.upTo(20 * time.Second)
		}
		r.soon(wait, func() { s.bind(q, assumed, decided) })
	}
}

// bind sends a bind to the API server, if the guard lets it pass. The answer may be lost, and the bind doubled or late.
func (s *simScheduler) bind(q *simQueued, assumed *v1.Pod, decided *simDecision) {
	r, sim := s.r, s.r.sim
	if r.leader.MayBind(r.clock(), toolscache.MetaObjectToName(assumed), r.tenure(), r) != nil {
		s.bindFailed(q, assumed, func(sent bool) bool { return sent })
		return
	}
	unknown := func(bool) bool { return true }
	if !r.reachesAPI() {
		r.soon(time.Second, func() { s.bindFailed(q, assumed, unknown) })
		return
	}
	instance, answered := r.instance, false
	lost := sim.faulty && sim.chance(0.1)
	for range 1 + max(sim.repeats(), 0) {
		sim.after(s.bindDelay(), func() {
			bound, conflict := sim.api.bind(assumed.UID, assumed.Spec.NodeName, r.self.Name, decided)
			if answered || lost {
				return
			}
			answered = true
			sim.after(sim.delay(), func() {
				r.deliver(instance, func() {
					if !bound {
						s.bindFailed(q, assumed, func(bool) bool { return conflict })
					}
				})
			})
		})
	}
	if lost {
		sim.stats.Unanswered++
		r.soon(time.Second, func() { s.bindFailed(q, assumed, unknown) })
	}
}

// bindDelay returns how long a bind is on its way. The kernel discards it before another replica may lead, unless the API
// server itself is slow.
func (s *simScheduler) bindDelay() time.Duration {
	sim := s.r.sim
	switch {
	case sim.faulty && sim.slowBinds && sim.chance(0.15):
		return sim.upTo(60 * time.Second)
	case sim.faulty && sim.chance(0.1):
		return sim.upTo(simLease - simDeadline)
	}
	return sim.delay()
}

func (s *simScheduler) bindFailed(q *simQueued, assumed *v1.Pod, unanswered func(sent bool) bool) {
	s.r.sim.record("%s: the bind of %s has failed, unanswered %t", s.r.self.Name, assumed.Name, unanswered(true))
	s.r.leader.BindFailed(assumed.UID, unanswered)
	s.unplace(q, assumed)
}

// unplace forgets that a pod is assumed, and retries it if it is still pending.
func (s *simScheduler) unplace(q *simQueued, assumed *v1.Pod) {
	s.r.carryLeader(s.r.leader.Forget(s.r.clock(), assumed.UID))
	q.placed = false
	if s.queue[q.pod.UID] == q {
		s.backoff(q)
	}
}

// checkSettled checks what must hold when nothing has happened for a long time: one leader, all owners ready, each node
// with exactly its pods, no reservation left, and each pod bound, or pending because it does not fit.
func (s *simulation) checkSettled() {
	var leader *simReplica
	for _, r := range s.replicas {
		switch {
		case !r.alive:
			s.fail("%s does not run", r.self.Name)
			return
		case r.leads() && leader != nil:
			s.fail("%s and %s lead", leader.self.Name, r.self.Name)
			return
		case r.leads():
			leader = r
		}
	}
	if leader == nil || !leader.leader.Complete() {
		s.fail("no leader has ready owners\n%s", s.describe())
		return
	}
	for uid, assumed := range leader.leader.assumed {
		s.fail("%s is still assumed on %s: %+v; bound %t", uid, assumed.pod.Spec.NodeName, assumed.unanswered, s.api.pods[uid] != nil && s.api.pods[uid].Spec.NodeName != "")
	}
	for uid, earlier := range leader.leader.earlier {
		s.fail("%s is still reserved on %s by an earlier leader", uid, earlier.node)
	}
	s.checkNodes()
	s.checkPending(leader)
}

// describe returns the state of all members.
func (s *simulation) describe() string {
	var out strings.Builder
	for _, r := range s.replicas {
		m := r.member
		nodes, pods := r.Listed()
		fmt.Fprintf(&out, "%s: at %d, applied %d, checked %d, listed %t %t, refreshed by %v, settling %v, held %v\n", r.self.Name,
			m.currentStamp()&0xffff, m.appliedStamp&0xffff, m.checkedStamp&0xffff, nodes, pods, sets.List(m.refreshed), m.settling, m.held.nodes)
		for _, name := range senders(m.waiting) {
			fmt.Fprintf(&out, "  announcements of %s wait: %v\n", name, m.waiting[name].byName)
		}
		for _, name := range senders(m.peers) {
			p := m.peers[name]
			request, l := int64(0), r.links[name]
			if p.request != nil {
				request = stamp(p.request.Term, p.request.Number) & 0xffff
			}
			fmt.Fprintf(&out, "  to %s: connection %d (%d, discarding %t), sent nodes %t, listed for %d, list %d, request %d, answered %t, sending %t, announced %d, confirmed %d\n",
				name, p.connection, l.connection, l.discarding, p.sentNodes, p.sentListed&0xffff, p.listedID, request,
				p.request != nil && p.answeredID == p.request.ID, p.sending, m.announced[name], p.confirmed)
		}
		for _, node := range s.api.sortedNodes() {
			if known, ok := m.slots[HashOf(node.Name)]; ok {
				fmt.Fprintf(&out, "  node %s is in slot %d (%s), known in %d of %s, gone %t\n", node.Name, membership.SlotOf(node.UID), m.table[membership.SlotOf(node.UID)], known.slot, known.from, m.isGone(HashOf(node.Name)))
			}
		}
	}
	return out.String()
}

// checkNodes checks that each node has one owner, which knows its pods.
func (s *simulation) checkNodes() {
	owners := map[types.UID]string{}
	for _, r := range s.replicas {
		for name, node := range r.nodes.nodes {
			if s.api.nodes[name] == nil || s.api.nodes[name].UID != node.UID {
				s.fail("%s has node %s (%s), which does not exist", r.self.Name, name, node.UID)
			}
			if other, twice := owners[node.UID]; twice {
				s.fail("%s and %s own node %s", other, r.self.Name, name)
			}
			owners[node.UID] = r.self.Name
			if used := s.api.room[name] - r.nodes.free(name); used != s.api.used(name) {
				s.fail("%s counts %d pods on node %s, want %d: %s", r.self.Name, used, name, s.api.used(name), r.nodes.describe(name))
			}
		}
		if n := len(r.ledger.reservations); n > 0 {
			s.fail("%s has %d reservations left", r.self.Name, n)
		}
	}
	if len(owners) != len(s.api.nodes) {
		s.fail("%d of %d nodes have an owner\n%s", len(owners), len(s.api.nodes), s.describe())
	}
}

// checkPending checks that each pod that is not bound is in the queue, and fits on no node.
func (s *simulation) checkPending(leader *simReplica) {
	all := &simAnswer{free: map[string]int{}}
	for name := range s.api.nodes {
		all.free[name] = s.api.room[name] - s.api.used(name)
	}
	for _, pod := range s.api.pods {
		if pod.Spec.NodeName != "" && inGroup(pod) {
			all.group++
			if HasAntiAffinityBeyondNode(pod) {
				all.exclusive++
			}
		}
	}
	for _, pod := range s.api.sortedPods() {
		if pod.Spec.NodeName != "" {
			continue
		}
		if leader.scheduler.queue[pod.UID] == nil {
			s.fail("pod %s is neither bound nor in the queue", pod.Name)
		}
		if node := choose(pod, all.free, []*simAnswer{all}); node != "" {
			s.fail("pod %s is pending, and fits on %s", pod.Name, node)
		}
	}
}
