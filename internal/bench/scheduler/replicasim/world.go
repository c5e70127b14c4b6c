// Package replicasim simulates the rounds of a sharded scheduler: many more replicas than
// there are machines, with the costs of the real code as they were measured, the tree
// that package shard grows, and the rules by which it waits for answers. Which node a
// pod gets is not simulated; that it gets one, when, and at what cost, is.
//
// Invariants: each pod is bound once; what is worked on takes a core for as long as its
// cost; a question is answered after the reservations that came before it.
//
// Missing: nodes do not fill up, replicas do not come and go, binds do not fail.
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
	// An answer is used no longer, and a replica that was late is left out for a while:
	// as in package scheduler.
	runLife                = time.Second
	firstRest, longestRest = 100 * time.Millisecond, 10 * time.Second
	// Pods that wait for an answer of their node's owner, or are being bound; with more
	// the leader goes slower. It bounds what is under way, not what the real one does.
	mostBinding = 1 << 16
	// A time that no case needs.
	longest = time.Hour
)

// world is one case as it goes on.
type world struct {
	Case
	clock    *clock
	network  *network
	replicas []*replica
	byName   map[string]*replica
	leader   *replica

	classes []int
	next    int
	bound   []int
	binds   int
	rounds  int
	cutOff  int
	cuts    map[*replica]*cut
	// wanted is for how many offers is asked, by class, and used how many the last answer
	// had pods placed by.
	wanted  []wire.Wanted
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
		wanted: make([]wire.Wanted, c.Classes), used: make([]index.Used, c.Classes),
		latency: hdrhistogram.New(1, int64(longest/time.Microsecond), 3),
	}
	w.network = &network{clock: w.clock, Network: c.Network}
	var machine *cores
	if c.SharedCores {
		machine = newCores(w.clock, c.Cores)
	}
	for i := range c.Shards + c.Relays {
		r := &replica{w: w, links: map[*replica]*link{}, cores: machine}
		if r.cores == nil {
			r.cores = newCores(w.clock, c.Cores)
		}
		r.member = membership.Member{Name: fmt.Sprintf("shard-%04d", i), Relay: i >= c.Shards}
		w.replicas = append(w.replicas, r)
		w.byName[r.member.Name] = r
	}
	w.leader = w.replicas[0]
	// Stragglers are spread, and the leader is none: it would be replaced.
	slow := int(float64(c.Shards-1)*c.Stragglers + 0.5)
	for _, i := range w.clock.rand.Perm(c.Shards - 1)[:slow] {
		w.replicas[1+i].slow = true
	}
	for i := range w.classes {
		w.classes[i] = w.clock.rand.IntN(c.Classes)
	}
	return w
}

// delayOf a replica's answer, if it is late.
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

// round asks about the next pod, and places the run that it begins.
func (w *world) round() {
	if w.next == w.Pods {
		return
	}
	now := w.clock.now
	var members []membership.Member
	seen := map[*replica]int{w.leader: w.leader.told}
	for _, r := range w.replicas[1:] {
		if c := w.cuts[r]; c != nil && now < c.until {
			continue
		}
		members = append(members, r.member)
		seen[r] = r.told
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

// note notes who was late, as the leader does.
func (w *world) note(asked []membership.Member, a *answer) {
	absent := map[*replica]bool{}
	for _, r := range a.absent {
		absent[r] = true
	}
	for _, member := range asked {
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

// place puts the next pod on a node of those offered, if it is of the same class.
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
			w.reserve(pod, a.shards[w.clock.rand.IntN(len(a.shards))])
		}
		w.place(a, placed+1, until)
	})
}

func (w *world) anyReplica() *replica { return w.replicas[w.clock.rand.IntN(w.Shards)] }

// reserve asks the owner of a node for a place, and binds when it has answered.
func (w *world) reserve(pod int, owner *replica) {
	c := &w.Costs
	owner.told++
	if w.Shards == 1 {
		// One scheduler alone assumes pods in its cache.
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

// bind sends the bind; what watches say of the pod before and after costs those who
// watch it, and those whom they tell.
func (w *world) bind(pod int, owner *replica) {
	c := &w.Costs
	w.leader.work(c.Bind, func() {
		w.clock.after(w.APILatency, func() { w.finish(pod) })
		watcher := w.anyReplica()
		if w.Shards == 1 {
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
