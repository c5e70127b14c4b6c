package index

import (
	"math/rand/v2"
	"slices"
)

// Merged is a class over several indexes, built from a merged summary. Pods of the class
// are placed one after another until the summary lacks the information for a decision.
type Merged struct {
	view
	// own is what one pod of the class adds to each counter.
	own []int64
	// floors is the maximal static score of the nodes outside all tiers, for groups that have
	// such nodes.
	floors map[*group]int64
	nodes  int
	used   Used
}

// Used is how much of a summary was used.
type Used struct {
	// Offers is the number of offered nodes that got pods. Steps is the maximal number of pods
	// that one of them got.
	Offers, Steps int
	// StepsExhausted is true if a node had too few steps.
	StepsExhausted bool
}

// Outcome is the kind of result of [Merged.Choose].
type Outcome int

const (
	// Chosen means that a node was chosen. The pod counts as running there from now on.
	Chosen Outcome = iota
	// Unfit means that no node fits.
	Unfit
	// Exhausted means that the summary lacks the information for a decision.
	Exhausted
)

// Pick is a chosen node of one of the indexes.
type Pick struct {
	// Part is the number of the index (see [Offer.Part]), Node the node in that index.
	Part int
	Node NodeID
	// Fitting is the number of nodes that fit, Groups the number of their groups.
	Fitting, Groups int
}

// NewMerged returns a Merged for a summary that [Fold] returned. Values and image sets must be
// numbered as by the judge of the Spec. Own is what one pod of the class adds to counters.
func NewMerged(spec Spec, own []Amount, s *Summary) *Merged {
	m := &Merged{view: newView(spec), floors: map[*group]int64{}, nodes: s.Nodes}
	m.own = m.sums(own)
	for i := range s.Counters {
		m.counters[i].set(&s.Counters[i])
	}
	for i := range s.Groups {
		summary := &s.Groups[i]
		g := m.groupFor(summary.Raw, summary.ImageSet, &summary.Topology, summary.Host, summary.Extra)
		for _, tier := range summary.Tiers {
			b := m.bucketOf(g, tier.Static)
			b.offers = slices.Clone(tier.Offers)
			b.add(int32(tier.Count))
		}
		if rest := summary.Count - g.count; rest > 0 {
			g.count += rest
			m.floors[g] = summary.Floor
		}
	}
	return m
}

// set sets the counter from its summary.
func (c *counter) set(s *CounterSummary) {
	c.total, c.hosts = s.Total, s.Hosts
	for _, v := range s.Values {
		*c.at(v.Value) = tally{count: v.Count, nodes: v.Nodes}
	}
	for _, h := range s.Histogram {
		c.histogram[h.Count] = h.Nodes
	}
}

// Nodes returns the number of nodes in all indexes.
func (m *Merged) Nodes() int { return m.nodes }

// Used returns how much of the summary was used so far.
func (m *Merged) Used() Used { return m.used }

// hidden reports whether a group may have better nodes outside its tiers.
func (m *Merged) hidden(g *group, top *bucket) bool {
	floor, ok := m.floors[g]
	return ok && (top == nil || top.static < floor)
}

// Choose chooses the best node for the next pod of the class and counts the pod there.
func (m *Merged) Choose() (Pick, Outcome) {
	if m.used.StepsExhausted {
		return Pick{}, Exhausted
	}
	r := &m.scratch
	fitting := m.candidates(r)
	if fitting == 0 {
		return Pick{}, Unfit
	}
	for i := range r.candidates {
		if m.hidden(r.candidates[i].group, r.candidates[i].top) {
			return Pick{}, Exhausted
		}
	}
	m.total(r)
	best, _ := m.draw(r)
	pick, ok := m.take(best)
	if !ok {
		return Pick{}, Exhausted
	}
	pick.Fitting, pick.Groups = fitting, len(r.candidates)
	return pick, Chosen
}

// take places a pod on a random offered node of a bucket. It returns false if the bucket has
// no offers left.
func (m *Merged) take(b *bucket) (Pick, bool) {
	if len(b.offers) == 0 {
		return Pick{}, false
	}
	number, last := rand.IntN(len(b.offers)), len(b.offers)-1
	offer := b.offers[number]
	b.offers[number] = b.offers[last]
	b.offers = b.offers[:last]
	b.add(-1)
	m.place(b.group, offer)
	return Pick{Part: offer.Part, Node: offer.Node}, true
}

// place adds a pod to a node of a group and moves the node to its new group and bucket.
func (m *Merged) place(g *group, offer Offer) {
	host := m.recount(g)
	if offer.taken == 0 {
		m.used.Offers++
	}
	offer.taken++
	m.used.Steps = max(m.used.Steps, offer.taken)
	if len(offer.Steps) == 0 {
		m.used.StepsExhausted = true
		return
	}
	if step := offer.Steps[0]; step.Fits {
		b := m.bucketOf(m.groupFor(g.raw, g.imageSet, g.topology, host, g.extra), step.Static)
		offer.Steps = offer.Steps[1:]
		b.offers = append(b.offers, offer)
		b.add(1)
	}
}

// recount adds a pod on a node of a group to the counters. It returns the node's counts of
// counters with HostKey; nil if all are zero.
func (m *Merged) recount(g *group) []int64 {
	with := m.apart(g)
	m.add(with, m.own, 1)
	if !anyCount(with.host) {
		return nil
	}
	return with.host
}

// Refusal is the reason for which counters reject a node.
type Refusal int

const (
	// NoLabel: the node lacks the topology key of a hard constraint.
	NoLabel Refusal = iota
	// Skewed: a pod on the node would exceed MaxSkew of a hard constraint.
	Skewed
	// Unmet: required affinity is not satisfied.
	Unmet
	// Forbidden: anti-affinity forbids the node.
	Forbidden
)

// EachRefused calls each with the number of nodes of each group that counters reject, the reason
// and the counter. The order of the checks is that of upstream's plugins.
func (m *Merged) EachRefused(each func(why Refusal, counter, nodes int)) {
	least := m.leasts(nil)
	for _, g := range m.list {
		if g.count == 0 {
			continue
		}
		var why Refusal
		counter, refused := 0, false
		m.withExtra(g, func(with *group) {
			why, counter, refused = m.refusal(with, m.leasts(nil))
		})
		if !refused {
			why, counter, refused = m.refusal(g, least)
		}
		if refused {
			each(why, counter, g.count)
		}
	}
}

// NodeCounts is the topology and the counts of one node.
type NodeCounts struct {
	Topology Topology
	// Host has the counts of counters with HostKey; nil means all zero.
	Host []int64
	// Extra is what nominated pods add to the counters.
	Extra []int64
}

// RefusedWith reports whether counters reject a node after their counts there were changed
// by more (negative for removed pods). It returns the reason and the counter.
func (m *Merged) RefusedWith(s *NodeCounts, more []int64) (why Refusal, counter int, refused bool) {
	g := &group{topology: &s.Topology, host: s.Host, extra: s.Extra}
	// Which nominated pods count depends on the actual counts, not on the changed ones.
	extra := m.extra(g)
	m.with(g, more, func(g *group) {
		if anyCount(extra) {
			m.with(g, extra, func(with *group) { why, counter, refused = m.refusal(with, m.leasts(nil)) })
		}
		if !refused {
			why, counter, refused = m.refusal(g, m.leasts(nil))
		}
	})
	return why, counter, refused
}

// refusal returns the first reason for which counters reject the nodes of a group.
func (m *Merged) refusal(g *group, least []int64) (why Refusal, counter int, refused bool) {
	for i, spread := range m.spec.Hard {
		count, labelled := m.count(g, spread.Counter)
		switch {
		case !labelled:
			return NoLabel, spread.Counter, true
		case count+spread.Self-least[i] > spread.MaxSkew:
			return Skewed, spread.Counter, true
		}
	}
	if !m.requirementsMet(g) {
		return Unmet, m.spec.Require[0], true
	}
	for _, i := range m.spec.Forbid {
		if count, labelled := m.count(g, i); labelled && count > 0 {
			return Forbidden, i, true
		}
	}
	return 0, 0, false
}
