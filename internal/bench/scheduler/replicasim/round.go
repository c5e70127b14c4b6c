package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// answer is the answer of one replica, or the combined answer of several.
type answer struct {
	// answered are the replicas whose answers it contains. absent are the replicas that were queried
	// whose answers did not arrive in time.
	answered, absent []*replica
	// offers is the number of offers of each group.
	offers int
}

// size returns the size of an answer in bytes.
func (s *simulation) size(a *answer) int {
	if len(a.answered) == 0 {
		return s.Costs.AnswerBytes
	}
	return s.Costs.AnswerBytes + s.Groups*(s.Costs.GroupBytes+a.offers*s.Costs.OfferBytes)
}

// offers returns the number of offers per node group that the round requests.
func (s *simulation) offers() int {
	if s.FixedOffers > 0 {
		return s.FixedOffers
	}
	return s.answerSizes[s.classes[min(s.next, s.Pods-1)]].Offers
}

// answerOwn computes the replica's answer for its own nodes. The answer of a relay is empty.
func (r *replica) answerOwn(then func(*answer)) {
	if r.member.Relay {
		r.sim.clock.after(0, func() { then(&answer{}) })
		return
	}
	a := &answer{answered: []*replica{r}, offers: min(r.sim.offers(), max(1, r.sim.Nodes/r.sim.Replicas/r.sim.Groups))}
	r.work(r.sim.Costs.summarize(r.sim.Groups, a.offers), func() { then(a) })
}

// gathering is one query to a subtree and the collection of its answers, as in package wire.
type gathering struct {
	sim *simulation
	// at is the replica that sends the queries and combines the answers.
	at       *replica
	branches []membership.Branch
	patience wire.Patience
	started  time.Duration
	answers  []*answer
	// waiting reports by branch that its answer is missing. unanswered is the number of these branches.
	waiting    []bool
	unanswered int
	// ownDone reports that the replica has computed its own answer. The replica processes answers of
	// others and timeouts only after that; early are the functions that do so.
	ownDone, finished bool
	early             []func()
	// timer is the number of the current timer. Timers with lower numbers are ignored.
	timer int
	then  func(*answer)
}

// gather queries the branches and calls then with the combined answer. If own is true, the answer
// includes that of the replica itself. reservations is the number of reservations that each replica must
// execute before it answers.
func (s *simulation) gather(at *replica, own bool, branches []membership.Branch, p wire.Patience, reservations map[*replica]int, then func(*answer)) {
	g := &gathering{
		sim: s, at: at, branches: branches, patience: p, started: s.clock.now, unanswered: len(branches), then: then,
		waiting: make([]bool, len(branches)),
	}
	for i := range branches {
		g.waiting[i] = true
		g.query(i, reservations)
	}
	g.finishAfter(p.Deadline)
	if own {
		at.afterReservations(reservations[at], func() { at.answerOwn(g.ownAnswered) })
	} else {
		g.ownAnswered(nil)
	}
}

// query sends the query to the head of a branch, which forwards it to the rest of the branch.
func (g *gathering) query(i int, reservations map[*replica]int) {
	b := &g.branches[i]
	head := g.sim.byName[b.Member.Name]
	members := len(b.Members())
	size := g.sim.Costs.QueryBytes + g.sim.Costs.PodBytes + members*g.sim.Costs.MemberBytes
	// Package wire also gives a branch a shorter deadline.
	patience := g.patience
	patience.Deadline -= patience.Deadline / 8
	reply := func(a *answer) {
		head.send(g.at, g.sim.size(a), func() { g.afterOwn(func() { g.branchAnswered(i, a) }) })
	}
	g.at.send(head, size, func() {
		g.sim.clock.after(g.sim.delayOf(head), func() {
			g.sim.gather(head, true, b.Branches, patience, reservations, reply)
		})
	})
}

// ownAnswered adds the replica's own answer, if there is one, and runs the functions that waited for it.
func (g *gathering) ownAnswered(own *answer) {
	if own != nil {
		g.answers = append(g.answers, own)
	}
	g.ownDone = true
	early := g.early
	g.early = nil
	for _, call := range early {
		call()
	}
	if g.unanswered == 0 {
		g.finish()
	}
}

// afterOwn calls a function as soon as the replica has computed its own answer.
func (g *gathering) afterOwn(call func()) {
	if g.ownDone {
		call()
	} else {
		g.early = append(g.early, call)
	}
}

// branchAnswered adds the answer of a branch. When a quorum of branches has answered, the others get a
// grace period.
func (g *gathering) branchAnswered(i int, a *answer) {
	if g.finished || !g.waiting[i] {
		return
	}
	g.unanswered--
	g.waiting[i] = false
	g.answers = append(g.answers, a)
	elapsed := g.sim.clock.now - g.started
	done := len(g.branches) - g.unanswered
	if g.patience.Quorum < 100 && done*100 >= g.patience.Quorum*len(g.branches) {
		g.finishAfter(min(max(g.patience.Grace, elapsed), g.patience.Deadline-elapsed))
	}
	if g.unanswered == 0 {
		g.finish()
	}
}

// finishAfter starts a timer that ends the gathering. It replaces the previous timer.
func (g *gathering) finishAfter(wait time.Duration) {
	g.timer++
	number := g.timer
	g.sim.clock.after(wait, func() {
		g.afterOwn(func() {
			if number == g.timer {
				g.finish()
			}
		})
	})
}

// finish combines the answers. All replicas of a branch that has not answered are absent.
func (g *gathering) finish() {
	if g.finished {
		return
	}
	g.finished = true
	all := &answer{}
	offers := 0
	for _, a := range g.answers {
		all.answered = append(all.answered, a.answered...)
		all.absent = append(all.absent, a.absent...)
		offers += a.offers
	}
	for i, waiting := range g.waiting {
		if waiting {
			for _, member := range g.branches[i].Members() {
				all.absent = append(all.absent, g.sim.byName[member.Name])
			}
		}
	}
	all.offers = min(g.sim.offers(), offers)
	var cost time.Duration
	if len(g.answers) > 1 {
		cost = g.sim.Costs.fold(g.sim.Groups*len(g.answers), g.sim.Groups*offers)
	}
	g.at.work(cost, func() { g.then(all) })
}
