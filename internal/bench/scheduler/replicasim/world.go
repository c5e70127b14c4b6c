// Package replicasim simulates the scheduling rounds of dist-scheduler with many more
// replicas than there are machines (`k1m bench replica-simulation`). It uses measured costs of the
// real code (costs.json), the query tree of package wire, and the rules of the real replicas for
// waiting for answers. It does not simulate which node a pod gets, only when a pod gets a node
// and at what cost.
//
// Invariants: each pod is bound once; work occupies a core for its whole cost; a query is
// answered after all reservations that were sent before it.
//
// Limits of the model: nodes do not fill up, replicas are not added or removed, binds do not
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
	// Maximum age of an answer, and the time for which a late replica is left out, as in package
	// scheduler.
	runLife                = time.Second
	firstRest, longestRest = 100 * time.Millisecond, 10 * time.Second
	// Maximum number of pods that wait for the reservation on their node, or for their bind. It
	// bounds the memory of the simulation; the real scheduler has no such limit.
	mostBinding = 1 << 16
	// Simulated time limit, longer than any case takes.
	longest = time.Hour
)

// world is the state of the simulation of one case.
type world struct {
	Case
	clock   *clock
	network *network
	all     []*replica
	byName  map[string]*replica
	leader  *replica

	classes []int
	next    int
	bound   []int
	binds   int
	rounds  int
	cutOff  int
	cuts    map[*replica]*cut
	// wanted is the number of offers to request, by class. used is the number of pods that the
	// last answer placed.
	wanted  []wire.AnswerSize
	used    []index.Used
	latency *hdrhistogram.Histogram // of rounds, in microseconds
	ended   time.Duration
}

type cut struct {
	times int
	until time.Duration
}

func newWorld(c Case) *world {
	w := &world{
		Case: c, clock: newClock(c.Seed), byName: map[string]*replica{}, cuts: map[*replica]*cut{},
		classes: make([]int, c.Pods), bound: make([]int, c.Pods),
		wanted: make([]wire.AnswerSize, c.Classes), used: make([]index.Used, c.Classes),
		latency: hdrhistogram.New(1, int64(longest/time.Microsecond), 3),
	}
	w.network = &network{clock: w.clock, Network: c.Network}
	var machine *cores
	if c.SharedCores {
		machine = newCores(w.clock, c.Cores)
	}
	for i := range c.Replicas + c.Relays {
		r := &replica{w: w, links: map[*replica]*link{}, cores: machine}
		if r.cores == nil {
			r.cores = newCores(w.clock, c.Cores)
		}
		r.member = membership.Member{Name: fmt.Sprintf("replica-%04d", i), Relay: i >= c.Replicas}
		w.all = append(w.all, r)
		w.byName[r.member.Name] = r
	}
	w.leader = w.all[0]
	// Stragglers are distributed evenly. The leader is not a straggler, because it would be
	// replaced.
	slow := int(float64(c.Replicas-1)*c.Stragglers + 0.5)
	for _, i := range w.clock.rand.Perm(c.Replicas - 1)[:slow] {
		w.all[1+i].slow = true
	}
	for i := range w.classes {
		w.classes[i] = w.clock.rand.IntN(c.Classes)
	}
	return w
}

// delayOf returns the delay of the answer of a replica, if it is late.
func (w *world) delayOf(r *replica) time.Duration {
	if r.slow && w.clock.rand.Float64() < w.StragglerChance {
		return w.StragglerDelay
	}
	return 0
}

// run schedules all pods.
func (w *world) run() {
	w.clock.after(0, w.round)
	w.clock.run(func() bool { return w.binds == w.Pods || w.clock.now > longest })
	w.ended = w.clock.now
}

// round queries the replicas for the next pod, and places the batch of identical pods that starts
// with it.
func (w *world) round() {
	if w.next == w.Pods {
		return
	}
	now := w.clock.now
	var members []membership.Member
	seen := map[*replica]int{w.leader: w.leader.sent}
	for _, r := range w.all[1:] {
		if c := w.cuts[r]; c != nil && now < c.until {
			continue
		}
		members = append(members, r.member)
		seen[r] = r.sent
	}
	w.rounds++
	class := w.classes[w.next]
	w.wanted[class], w.used[class] = w.wanted[class].Next(w.used[class]), index.Used{}
	branches := membership.Grow(members, w.Fanout, binary.BigEndian.AppendUint64(nil, uint64(w.rounds)))
	w.gather(w.leader, true, branches, w.Patience, seen, func(a *answer) {
		_ = w.latency.RecordValue(max(1, (w.clock.now - now).Microseconds()))
		w.note(members, a)
		w.leader.work(w.Costs.merge(w.Groups, w.Groups*a.offers), func() { w.place(a, 0, w.clock.now+runLife) })
	})
}

// note records which replicas were late, as the leader does.
func (w *world) note(queried []membership.Member, a *answer) {
	absent := map[*replica]bool{}
	for _, r := range a.absent {
		absent[r] = true
	}
	for _, member := range queried {
		r := w.byName[member.Name]
		if !absent[r] {
			delete(w.cuts, r)
			continue
		}
		c := w.cuts[r]
		if c == nil {
			c = &cut{}
			w.cuts[r] = c
		}
		w.cutOff++
		c.times++
		c.until = w.clock.now + min(firstRest<<min(c.times, 16), longestRest)
	}
}

// place assigns the next pod to an offered node, if the pod has the class of the round.
func (w *world) place(a *answer, placed int, until time.Duration) {
	same := placed == 0 || w.next < w.Pods && w.classes[w.next] == w.classes[w.next-1]
	if w.next == w.Pods || placed == a.offers || !same || w.clock.now > until || w.next-w.binds > mostBinding {
		w.clock.after(0, w.round)
		return
	}
	pod := w.next
	w.next++
	w.used[w.classes[pod]].Offers++
	w.leader.work(w.Costs.choose(w.Groups)+w.Costs.Cycle, func() {
		if w.RoundsOnly {
			w.finish(pod)
		} else {
			w.reserve(pod, a.answered[w.clock.rand.IntN(len(a.answered))])
		}
		w.place(a, placed+1, until)
	})
}

func (w *world) anyReplica() *replica { return w.all[w.clock.rand.IntN(w.Replicas)] }

// reserve requests a reservation from the owner of a node, and binds the pod after the answer.
func (w *world) reserve(pod int, owner *replica) {
	c := &w.Costs
	owner.sent++
	if w.Replicas == 1 {
		// A scheduler without replicas assumes pods in its cache instead.
		owner.take()
		w.bind(pod, owner)
		return
	}
	w.leader.work(c.PodEncode, func() {
		w.leader.tell(owner, c.PodBytes+c.ReservationBytes, func() {
			owner.work(c.PodDecode+c.Reserve, func() {
				owner.take()
				owner.tell(w.leader, c.AckBytes, func() { w.bind(pod, owner) })
			})
		})
	})
}

// bind sends the bind. Watch events for the pod cost CPU at the replicas that watch it, and at
// those to which they forward the event.
func (w *world) bind(pod int, owner *replica) {
	c := &w.Costs
	w.leader.work(c.Bind, func() {
		w.clock.after(w.APILatency, func() { w.finish(pod) })
		watcher := w.anyReplica()
		if w.Replicas == 1 {
			w.leader.work(c.Watch, func() {})
			return
		}
		watcher.work(c.Watch+2*c.PodEncode, func() {
			watcher.tell(w.leader, c.PodBytes, func() { w.leader.work(c.PodDecode, func() {}) })
			watcher.tell(owner, c.PodBytes, func() { owner.work(c.PodDecode, func() {}) })
		})
	})
}

func (w *world) finish(pod int) {
	w.bound[pod]++
	w.binds++
}
