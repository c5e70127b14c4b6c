// Package replicasim simulates the scheduling rounds of dist-scheduler with many more replicas than
// there are machines (`k1m bench replica-simulation`). It uses measured costs of the real code
// (costs.json), the relay tree of package membership, and the rules by which real replicas wait for
// answers. It simulates when a pod gets a node and at what cost, but not which node.
//
// Invariants: each pod is bound once. Work occupies one core for its whole cost. A replica answers a
// query only after it has executed all reservations that the leader sent before the query.
//
// Limits of the model: nodes do not fill up, replicas are not added or removed, and binds do not
// fail.
package replicasim

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

const (
	// answerLife is the maximum age of an answer from which pods are placed, as in package leader.
	answerLife = time.Second
	// After n consecutive absences of its answer, a replica is not queried for exclusionBase × 2ⁿ, at most
	// longestExclusion. The values are those of package leader.
	exclusionBase, longestExclusion = 100 * time.Millisecond, 10 * time.Second
	// maxBinding is the maximum number of pods that have been placed but not yet bound. It bounds the
	// memory of the simulation; the real scheduler has no such limit.
	maxBinding = 1 << 16
	// timeLimit ends a simulation. In simulated time it is longer than any case takes.
	timeLimit = time.Hour
)

// simulation is the state of the simulation of one case.
type simulation struct {
	Case
	clock   *clock
	network *network
	// all are the replicas that own nodes, of which the first is the leader, and then the relays.
	all    []*replica
	byName map[string]*replica
	leader *replica

	classes []int // class of each pod
	next    int   // index of the next pod to place
	bound   []int // number of binds of each pod
	binds   int
	rounds  int
	// absentAnswers counts the queried replicas whose answer did not reach the leader in time.
	absentAnswers int
	excluded      map[*replica]*exclusion
	// answerSizes are the sizes of answer that the next queries request, by class. used is how much of
	// the last answer was used, by class.
	answerSizes []wire.AnswerSize
	used        []index.Used
	latency     *hdrhistogram.Histogram // of rounds, in microseconds
	ended       time.Duration
}

// exclusion is the time for which a replica is not queried, because its answers were absent.
type exclusion struct {
	absences int // consecutive absences
	until    time.Duration
}

func newSimulation(c Case) *simulation {
	s := &simulation{
		Case: c, clock: newClock(c.Seed), byName: map[string]*replica{}, excluded: map[*replica]*exclusion{},
		classes: make([]int, c.Pods), bound: make([]int, c.Pods),
		answerSizes: make([]wire.AnswerSize, c.Classes), used: make([]index.Used, c.Classes),
		latency: hdrhistogram.New(1, int64(timeLimit/time.Microsecond), 3),
	}
	s.network = &network{clock: s.clock, Network: c.Network}
	var shared *cores
	if c.SharedCores {
		shared = newCores(s.clock, c.Cores)
	}
	for i := range c.Replicas + c.Relays {
		r := &replica{sim: s, links: map[*replica]*link{}, cores: shared}
		if r.cores == nil {
			r.cores = newCores(s.clock, c.Cores)
		}
		r.member = membership.Member{Name: fmt.Sprintf("replica-%04d", i), Relay: i >= c.Replicas}
		s.all = append(s.all, r)
		s.byName[r.member.Name] = r
	}
	s.leader = s.all[0]
	// Stragglers are chosen at random. The leader is never a straggler: in a real cluster another
	// replica would replace it.
	stragglers := int(float64(c.Replicas-1)*c.Stragglers + 0.5)
	for _, i := range s.clock.rand.Perm(c.Replicas - 1)[:stragglers] {
		s.all[1+i].straggler = true
	}
	for i := range s.classes {
		s.classes[i] = s.clock.rand.IntN(c.Classes)
	}
	return s
}

// delayOf returns by how much a replica delays a query: at random StragglerDelay if the replica is a
// straggler, otherwise 0.
func (s *simulation) delayOf(r *replica) time.Duration {
	if r.straggler && s.clock.rand.Float64() < s.StragglerChance {
		return s.StragglerDelay
	}
	return 0
}

// run executes the simulation until all pods are bound.
func (s *simulation) run() {
	s.clock.after(0, s.round)
	s.clock.run(func() bool { return s.binds == s.Pods || s.clock.now > timeLimit })
	s.ended = s.clock.now
}

// round queries the replicas for the next pod, and places the batch of identical pods that starts
// with it.
func (s *simulation) round() {
	if s.next == s.Pods {
		return
	}
	now := s.clock.now
	var members []membership.Member
	reservations := map[*replica]int{s.leader: s.leader.reservationsSent}
	for _, r := range s.all[1:] {
		if e := s.excluded[r]; e != nil && now < e.until {
			continue
		}
		members = append(members, r.member)
		reservations[r] = r.reservationsSent
	}
	s.rounds++
	class := s.classes[s.next]
	s.answerSizes[class], s.used[class] = s.answerSizes[class].Next(s.used[class]), index.Used{}
	branches := membership.Grow(members, s.Fanout, binary.BigEndian.AppendUint64(nil, uint64(s.rounds)))
	s.gather(s.leader, true, branches, s.Patience, reservations, func(a *answer) {
		_ = s.latency.RecordValue(max(1, (s.clock.now - now).Microseconds()))
		s.recordAbsent(members, a)
		s.leader.work(s.Costs.merge(s.Groups, s.Groups*a.offers), func() { s.place(a, 0, s.clock.now+answerLife) })
	})
}

// recordAbsent excludes from the next queries the replicas whose answers are absent, as the leader does. A
// replica that has answered is no longer excluded.
func (s *simulation) recordAbsent(queried []membership.Member, a *answer) {
	absent := map[*replica]bool{}
	for _, r := range a.absent {
		absent[r] = true
	}
	for _, member := range queried {
		r := s.byName[member.Name]
		if !absent[r] {
			delete(s.excluded, r)
			continue
		}
		e := s.excluded[r]
		if e == nil {
			e = &exclusion{}
			s.excluded[r] = e
		}
		s.absentAnswers++
		e.absences++
		e.until = s.clock.now + min(exclusionBase<<min(e.absences, 16), longestExclusion)
	}
}

// place assigns the next pod to an offered node. It starts the next round instead if that pod has
// another class than the previous pod, or if the answer is used up or older than answerLife.
func (s *simulation) place(a *answer, placed int, until time.Duration) {
	same := placed == 0 || s.next < s.Pods && s.classes[s.next] == s.classes[s.next-1]
	if s.next == s.Pods || placed == a.offers || !same || s.clock.now > until || s.next-s.binds > maxBinding {
		s.clock.after(0, s.round)
		return
	}
	pod := s.next
	s.next++
	s.used[s.classes[pod]].Offers++
	s.leader.work(s.Costs.choose(s.Groups)+s.Costs.Cycle, func() {
		if s.RoundsOnly {
			s.recordBind(pod)
		} else {
			s.reserve(pod, a.answered[s.clock.rand.IntN(len(a.answered))])
		}
		s.place(a, placed+1, until)
	})
}

// randomReplica returns a random replica that owns nodes.
func (s *simulation) randomReplica() *replica { return s.all[s.clock.rand.IntN(s.Replicas)] }

// reserve requests a reservation from the owner of a node, and binds the pod after the owner has
// confirmed it.
func (s *simulation) reserve(pod int, owner *replica) {
	c := &s.Costs
	owner.reservationsSent++
	if s.Replicas == 1 {
		// A scheduler without other replicas assumes the pod in its cache instead.
		owner.executeReservation()
		s.bind(pod, owner)
		return
	}
	s.leader.work(c.PodEncode, func() {
		s.leader.sendOnLink(owner, c.PodBytes+c.ReservationBytes, func() {
			owner.work(c.PodDecode+c.Reserve, func() {
				owner.executeReservation()
				owner.sendOnLink(s.leader, c.AckBytes, func() { s.bind(pod, owner) })
			})
		})
	})
}

// bind binds a pod. The watch event of the bind costs CPU at a random replica that watches the pod, and
// at the leader and the owner of the node, to which that replica forwards the event.
func (s *simulation) bind(pod int, owner *replica) {
	c := &s.Costs
	s.leader.work(c.Bind, func() {
		s.clock.after(s.APILatency, func() { s.recordBind(pod) })
		watcher := s.randomReplica()
		if s.Replicas == 1 {
			s.leader.work(c.Watch, func() {})
			return
		}
		watcher.work(c.Watch+2*c.PodEncode, func() {
			watcher.sendOnLink(s.leader, c.PodBytes, func() { s.leader.work(c.PodDecode, func() {}) })
			watcher.sendOnLink(owner, c.PodBytes, func() { owner.work(c.PodDecode, func() {}) })
		})
	})
}

// recordBind counts the bind of a pod.
func (s *simulation) recordBind(pod int) {
	s.bound[pod]++
	s.binds++
}
