package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// answer is what one replica says, or several together.
type answer struct {
	// shards have answered, absent ones have not.
	shards, absent []*replica
	// offers of each group.
	offers int
}

func (w *world) size(a *answer) int {
	if len(a.shards) == 0 {
		return w.Costs.AnswerBytes
	}
	return w.Costs.AnswerBytes + w.Groups*(w.Costs.GroupBytes+a.offers*w.Costs.OfferBytes)
}

// offers of each group that the round asks for.
func (w *world) offers() int {
	if w.FixedOffers > 0 {
		return w.FixedOffers
	}
	return w.wanted[w.classes[min(w.next, w.Pods-1)]].Offers
}

// answerOne is what a replica says of its own nodes.
func (r *replica) answerOne(then func(*answer)) {
	if r.member.Relay {
		r.w.clock.after(0, func() { then(&answer{}) })
		return
	}
	a := &answer{shards: []*replica{r}, offers: min(r.w.offers(), max(1, r.w.Nodes/r.w.Shards/r.w.Groups))}
	r.work(r.w.Costs.summarize(r.w.Groups, a.offers), func() { then(a) })
}

// gathering is one call of [shard.Gather].
type gathering struct {
	w        *world
	at       *replica
	branches []membership.Branch
	patience wire.Patience
	started  time.Duration
	answers  []*answer
	waiting  []bool
	left     int
	// ownDone says that the replica's own answer is there: others are looked at then.
	ownDone, over bool
	early         []func()
	// cut is the number of the timer that counts.
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

// ask sends the question to a branch, which hands it on.
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

// look calls a function when answers of others are looked at.
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

// finish folds what has come; those that have not are absent.
func (g *gathering) finish() {
	if g.over {
		return
	}
	g.over = true
	all := &answer{}
	parts := 0
	for _, a := range g.answers {
		all.shards = append(all.shards, a.shards...)
		all.absent = append(all.absent, a.absent...)
		parts += a.offers
	}
	for i, is := range g.waiting {
		if is {
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
