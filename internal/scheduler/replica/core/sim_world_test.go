package core

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// The simulator runs replicas, an API server and the network between them in one goroutine and in simulated time. A seed
// decides the size of the cluster, what users do, how long each message takes, and which faults happen: connections that
// break and lose what is in flight, networks that are cut, processes that are killed or suspended, binds that are sent
// twice, are slow or lose their answer, answers that are late, and clocks that are apart. The state machines are those of
// production. What is simulated is what the packages member, holder and leader do around them, and a scheduler that
// chooses the node with the most room.

// simulation is one run.
type simulation struct {
	random *rand.Rand
	now    time.Time
	events eventQueue
	count  int64
	fault  Fault

	api      *simAPI
	replicas []*simReplica
	members  []membership.Member
	// cut are the pairs of replicas whose network is cut, in one direction.
	cut map[[2]string]bool
	// slowBinds is true if binds may arrive after a minute. Then owners do not fail: a reservation ends with its owner.
	slowBinds bool
	// faulty is true while faults happen.
	faulty bool
	// exam is true while decisions must be those of the reference.
	exam bool

	created int
	// broken is the first violation of an invariant.
	broken error
	stats  simStats
	trace  uint64
	// record, if set, gets a line for each message and decision.
	record func(format string, args ...any)
}

// simStats counts what has happened, so that a test can check that the seeds have tested something.
type simStats struct {
	Binds, Terms, Assignments, Kills, Pauses, Cuts, Resets, Refused, Unanswered, Late, Incomplete, Completed, Recreated, Compared, Lists int
}

// simEvent is something that happens at a time.
type simEvent struct {
	at    time.Time
	order int64
	do    func()
}

type eventQueue []simEvent

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(e any)   { *q = append(*q, e.(simEvent)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = simEvent{}
	*q = (*q)[:last]
	return e
}

// newSimulation returns the start of a run.
func newSimulation(seed uint64, fault Fault) *simulation {
	s := &simulation{
		random: rand.New(rand.NewPCG(seed, 23)), now: time.Unix(1_700_000_000, 0), fault: fault, cut: map[[2]string]bool{}, faulty: true,
		record: func(string, ...any) {},
	}
	s.slowBinds = s.chance(0.3)
	s.api = newSimAPI(s)
	owners, relays := 2+s.random.IntN(3), 0
	if s.slowBinds {
		relays = 2
	}
	for i := range owners + relays {
		name := fmt.Sprintf("owner-%d", i)
		if i >= owners {
			name = fmt.Sprintf("relay-%d", i-owners)
		}
		s.members = append(s.members, membership.Member{Name: name, Address: name, Relay: i >= owners})
	}
	for i := range 2 + s.random.IntN(4) {
		s.api.createNode(fmt.Sprintf("node-%d", i), 2+s.random.IntN(3))
	}
	for i := range s.members {
		r := &simReplica{sim: s, self: s.members[i], skew: time.Duration(s.random.IntN(2000)-1000) * time.Millisecond}
		s.replicas = append(s.replicas, r)
		s.after(s.upTo(time.Second), r.start)
	}
	return s
}

// after makes something happen after some time.
func (s *simulation) after(d time.Duration, do func()) {
	s.count++
	heap.Push(&s.events, simEvent{s.now.Add(d), s.count, do})
}

// each makes something happen again and again.
func (s *simulation) each(interval func() time.Duration, do func() bool) {
	s.after(interval(), func() {
		if do() {
			s.each(interval, do)
		}
	})
}

// runUntil runs until a time, or until an invariant is violated.
func (s *simulation) runUntil(end time.Time) {
	for s.broken == nil && len(s.events) > 0 && !s.events[0].at.After(end) {
		e := heap.Pop(&s.events).(simEvent)
		s.now = e.at
		e.do()
	}
	if s.broken == nil {
		s.now = end
	}
}

// fail records a violation of an invariant.
func (s *simulation) fail(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf("at %v: %s", s.now.Sub(time.Unix(1_700_000_000, 0)), fmt.Sprintf(format, args...))
	}
}

// note adds a line to the trace.
func (s *simulation) note(format string, args ...any) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %v ", s.trace, s.now.UnixNano())
	fmt.Fprintf(h, format, args...)
	s.trace = h.Sum64()
	s.record(format, args...)
}

func (s *simulation) chance(p float64) bool { return s.random.Float64() < p }

// upTo returns a random time up to a limit.
func (s *simulation) upTo(limit time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(limit)))
}

// delay returns the time that a message takes: usually little, sometimes long.
func (s *simulation) delay() time.Duration {
	if s.faulty && s.chance(0.03) {
		return s.upTo(700 * time.Millisecond)
	}
	return time.Millisecond + s.upTo(10*time.Millisecond)
}

// pace returns the interval of work that is done again and again. It is longer when nothing happens, to simulate less.
func (s *simulation) pace(interval time.Duration) time.Duration {
	if s.faulty || s.exam {
		return interval
	}
	return 3 * interval
}

// connected returns whether the network carries messages from one replica to another one.
func (s *simulation) connected(from, to string) bool {
	return from == to || !s.cut[[2]string{from, to}] && !s.cut[[2]string{to, from}]
}

func (s *simulation) replica(name string) *simReplica {
	for _, r := range s.replicas {
		if r.self.Name == name {
			return r
		}
	}
	return nil
}

// Phases of a run.
const (
	simStartup = 8 * time.Second
	simFaults  = 35 * time.Second
	simCalm    = 40 * time.Second
	// simSettle is longer than any late bind is awaited, also one that ends a minute after the faults.
	simSettle = LateBindLife + 100*time.Second
	simExam   = 20 * time.Second
)

// run runs all phases.
func (s *simulation) run() error {
	start := s.now
	s.users(start.Add(simStartup + simFaults + simCalm/2))
	s.runUntil(start.Add(simStartup))
	s.faults(start.Add(simStartup + simFaults))
	s.runUntil(start.Add(simStartup + simFaults))
	s.heal()
	s.runUntil(start.Add(simStartup + simFaults + simCalm))
	s.runUntil(start.Add(simStartup + simFaults + simCalm + simSettle))
	if s.broken == nil {
		s.checkSettled()
	}
	s.exam = true
	for range 4 {
		s.api.createPod(s.newPod(false))
	}
	s.runUntil(start.Add(simStartup + simFaults + simCalm + simSettle + simExam))
	if s.broken == nil {
		s.checkSettled()
	}
	return s.broken
}

// users create and delete pods, and delete and create nodes, until a time.
func (s *simulation) users(end time.Time) {
	s.each(func() time.Duration { return s.upTo(900 * time.Millisecond) }, func() bool {
		switch {
		case s.chance(0.6):
			s.api.createPod(s.newPod(s.chance(0.2)))
		case s.chance(0.85):
			if pods := s.api.sortedPods(); len(pods) > 0 {
				s.api.deletePod(pods[s.random.IntN(len(pods))].UID)
			}
		case !s.slowBinds:
			// A reservation ends with its node, so a bind that is late for longer than a leader's tenure would not be awaited.
			s.recreateNode()
		}
		return s.now.Before(end)
	})
}

// recreateNode deletes a node, and creates it again with another UID. The pods on it remain.
func (s *simulation) recreateNode() {
	nodes := s.api.sortedNodes()
	if len(nodes) == 0 {
		return
	}
	node := nodes[s.random.IntN(len(nodes))]
	room := s.api.room[node.Name]
	s.api.deleteNode(node.Name)
	s.stats.Recreated++
	s.after(s.upTo(3*time.Second), func() { s.api.createNode(node.Name, room) })
}

// newPod returns a pod. A pod of group "x" with anti-affinity tolerates no other pod of its group in the cluster.
func (s *simulation) newPod(exclusive bool) *v1.Pod {
	s.created++
	pod := &v1.Pod{}
	pod.Name, pod.Namespace = fmt.Sprintf("pod-%d", s.created), "default"
	pod.UID = types.UID(fmt.Sprintf("%s-%x", pod.Name, s.random.Uint64()))
	switch {
	case exclusive:
		pod.Labels = map[string]string{"group": "x"}
		pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{TopologyKey: "cluster"}},
		}}
	case s.chance(0.2):
		pod.Labels = map[string]string{"group": "x"}
	}
	return pod
}

// faults makes faults happen until a time.
func (s *simulation) faults(end time.Time) {
	s.each(func() time.Duration { return s.upTo(4 * time.Second) }, func() bool {
		r := s.replicas[s.random.IntN(len(s.replicas))]
		other := s.replicas[s.random.IntN(len(s.replicas))]
		mayFail := !s.slowBinds || r.self.Relay
		switch s.random.IntN(6) {
		case 0:
			if mayFail {
				r.kill("killed")
			}
		case 1:
			if mayFail {
				r.pause(s.upTo(14 * time.Second))
			}
		case 2:
			s.cutLink(r, other)
		case 3:
			if l := r.links[other.self.Name]; l != nil && !s.slowBinds {
				s.stats.Resets++
				l.disconnect()
			}
		case 4:
			if mayFail {
				r.cutFromAPI(s.upTo(12 * time.Second))
			}
		case 5:
			if mayFail && r.running() && r.leads() {
				r.cutFromAPI(s.upTo(14 * time.Second))
				r.pause(s.upTo(11 * time.Second))
			}
		}
		return s.now.Before(end)
	})
}

// cutLink cuts the network between two replicas for some time.
func (s *simulation) cutLink(a, b *simReplica) {
	if a == b || s.slowBinds && !(a.self.Relay && b.self.Relay) {
		return
	}
	pair := [2]string{a.self.Name, b.self.Name}
	s.cut[pair] = true
	s.stats.Cuts++
	s.after(s.upTo(6*time.Second), func() { delete(s.cut, pair) })
}

// heal ends all faults.
func (s *simulation) heal() {
	s.faulty = false
	clear(s.cut)
	for _, r := range s.replicas {
		r.apiCutUntil = s.now
		r.resume()
	}
	s.api.deliverAll()
}
