package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// answer is the answer of one replica, or the combined answer of several.
type answer struct {
	// answered are the replicas that have answered. absent are the replicas that have not.
	answered, absent []*replica
	// offers is the number of offers of each group.
	offers int
}

func (w *world) size(a *answer) int {
	if len(a.answered) == 0 {
		return w.Costs.AnswerBytes
	}
	return w.Costs.AnswerBytes + w.Groups*(w.Costs.GroupBytes+a.offers*w.Costs.OfferBytes)
}

// offers returns the number of offers of each group that the round requests.
func (w *world) offers() int {
	if w.FixedOffers > 0 {
		return w.FixedOffers
	}
	return w.wanted[w.classes[min(w.next, w.Pods-1)]].Offers
}

// answerOne computes the answer of a replica for its own nodes.
func (r *replica) answerOne(then func(*answer)) {
	if r.member.Relay {
		r.w.clock.after(0, func() { then(&answer{}) })
		return
	}
	a := &answer{answered: []*replica{r}, offers: min(r.w.offers(), max(1, r.w.Nodes/r.w.Replicas/r.w.Groups))}
	r.work(r.w.Costs.summarize(r.w.Groups, a.offers), func() { then(a) })
}

// gathering is one query to a subtree and the collection of its answers, as in package wire.
type gathering struct {
	w        *world
	at       *replica
	branches []membership.Branch
	patience wire.Patience
	started  time.Duration
	answers  []*answer
	waiting  []bool
	left     int
	// ownDone reports that the replica has computed its own answer. Answers of others are processed
	// only after that.
	ownDone, over bool
	early         []func()
	// cut is the number of the current timer. Timers with lower numbers are ignored.
	cut  int
	then func(*answer)
}

func (w *world) gather(at *replica, own bool, branches []membership.Branch, p wire.Patience, seen map[*replica]int, then func(*answer)) {
	g := &gathering{
		w: w, at: at, branches: branches, patience: p, started: w.clock.now, left: len(branches), then: then,
		waiting: make([]bool, len(branches)),
	}
	for i := range branches {
		g.waiting[i] = true
		g.ask(i, seen)
	}
	g.cutAt(p.Deadline)
	if own {
		at.when(seen[at], func() { at.answerOne(g.begin) })
	} else {
		g.begin(nil)
	}
}

// ask sends the query to a branch, which forwards it.
func (g *gathering) ask(i int, seen map[*replica]int) {
	b := &g.branches[i]
	child := g.w.byName[b.Member.Name]
	members := len(b.Members())
	size := g.w.Costs.QuestionBytes + g.w.Costs.PodBytes + members*g.w.Costs.MemberBytes
	patience := g.patience
	patience.Deadline -= patience.Deadline / 8
	reply := func(a *answer) {
		child.send(g.at, g.w.size(a), func() { g.look(func() { g.arrived(i, a) }) })
	}
	g.at.send(child, size, func() {
		g.w.clock.after(g.w.delayOf(child), func() {
			g.w.gather(child, true, b.Branches, patience, seen, reply)
		})
	})
}

func (g *gathering) begin(own *answer) {
	if own != nil {
		g.answers = append(g.answers, own)
	}
	g.ownDone = true
	early := g.early
	g.early = nil
	for _, call := range early {
		call()
	}
	if g.left == 0 {
		g.finish()
	}
}

// look calls a function as soon as the replica can process answers of other replicas.
func (g *gathering) look(call func()) {
	if g.ownDone {
		call()
	} else {
		g.early = append(g.early, call)
	}
}

func (g *gathering) arrived(i int, a *answer) {
	if g.over || !g.waiting[i] {
		return
	}
	g.left--
	g.waiting[i] = false
	g.answers = append(g.answers, a)
	elapsed := g.w.clock.now - g.started
	if done := len(g.branches) - g.left; g.patience.Quorum < 100 && done*100 >= g.patience.Quorum*len(g.branches) {
		g.cutAt(min(max(g.patience.Grace, elapsed), g.patience.Deadline-elapsed))
	}
	if g.left == 0 {
		g.finish()
	}
}

func (g *gathering) cutAt(wait time.Duration) {
	g.cut++
	number := g.cut
	g.w.clock.after(wait, func() {
		g.look(func() {
			if number == g.cut {
				g.finish()
			}
		})
	})
}

// finish combines the answers; replicas without an answer are absent.
func (g *gathering) finish() {
	if g.over {
		return
	}
	g.over = true
	all := &answer{}
	parts := 0
	for _, a := range g.answers {
		all.answered = append(all.answered, a.answered...)
		all.absent = append(all.absent, a.absent...)
		parts += a.offers
	}
	for i, waiting := range g.waiting {
		if waiting {
			for _, member := range g.branches[i].Members() {
				all.absent = append(all.absent, g.w.byName[member.Name])
			}
		}
	}
	all.offers = min(g.w.offers(), parts)
	var cost time.Duration
	if len(g.answers) > 1 {
		cost = g.w.Costs.fold(g.w.Groups*len(g.answers), g.w.Groups*parts)
	}
	g.at.work(cost, func() { g.then(all) })
}
