package index

import (
	"math/rand/v2"
	"slices"
)

// Merged is what the classes of several indexes know together. Pods of the class can
// be placed by it, one after the other, for as long as what was summarized says
// enough of the nodes.
type Merged struct {
	view
	// own is what a pod of the class adds to each counter.
	own []int64
	// floors are scores that nodes in no tier stay below, for groups that have such.
	floors map[*group]int64
	nodes  int
	used   Used
}

// Used is what was made use of: offered nodes, and of one of them so many steps at the
// most. Short says that there should have been more steps.
type Used struct {
	Offers, Steps int
	Short         bool
}

// Outcome is what came of [Merged.Choose].
type Outcome int

const (
	// Chosen is a node, for which the pod is taken to be there from now on.
	Chosen Outcome = iota
	// Unfit is every node.
	Unfit
	// Spent is what was summarized: nodes would have to be compared of which nothing
	// is known any more.
	Spent
)

// Pick is a node of one of the indexes.
type Pick struct {
	// Part is the number of the index among those that were merged.
	Part int
	Slot Slot
	// Fitting nodes there were, and groups of them that were compared.
	Fitting, Groups int
}

// NewMerged is what summaries say that were folded into one. Values and profiles are
// to be numbered as those of the judge of the spec are; own is what a pod of the class
// adds to counters.
func NewMerged(spec Spec, own []Amount, s *Summary) *Merged {
	m := &Merged{view: newView(spec), floors: map[*group]int64{}, nodes: s.Nodes}
	m.own = m.sums(own)
	for i := range s.Counters {
		m.counters[i].set(&s.Counters[i])
	}
	for i := range s.Groups {
		summary := &s.Groups[i]
		g := m.groupFor(summary.Raw, summary.Profile, &summary.Facts, summary.Host, summary.Extra)
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

func (c *counter) set(s *CounterSummary) {
	c.total, c.hosts = s.Total, s.Hosts
	for _, v := range s.Values {
		*c.at(v.Value) = tally{count: v.Count, nodes: v.Nodes}
	}
	for _, h := range s.Histogram {
		c.histogram[h.Count] = h.Nodes
	}
}

// Nodes there are in all indexes.
func (m *Merged) Nodes() int { return m.nodes }

// Used is how much of what was summarized pods were placed by.
func (m *Merged) Used() Used { return m.used }

// hidden says whether there may be better nodes in a group than those known.
func (m *Merged) hidden(g *group, top *bucket) bool {
	floor, is := m.floors[g]
	return is && (top == nil || top.static < floor)
}

// Choose finds the best node for the next pod of the class, and takes it to be there.
func (m *Merged) Choose() (Pick, Outcome) {
	if m.used.Short {
		return Pick{}, Spent
	}
	r := &m.scratch
	fitting := m.candidates(r)
	if fitting == 0 {
		return Pick{}, Unfit
	}
	for i := range r.candidates {
		if m.hidden(r.candidates[i].group, r.candidates[i].top) {
			return Pick{}, Spent
		}
	}
	m.total(r)
	best, _ := m.draw(r)
	pick, left := m.take(best)
	if !left {
		return Pick{}, Spent
	}
	pick.Fitting, pick.Groups = fitting, len(r.candidates)
	return pick, Chosen
}

// take places a pod on one of the nodes of a bucket; false if none of them is offered.
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
	return Pick{Part: offer.Part, Slot: offer.Slot}, true
}

// place puts a pod on a node of a group, and the node where it then belongs.
func (m *Merged) place(g *group, offer Offer) {
	host := m.recount(g)
	if offer.taken == 0 {
		m.used.Offers++
	}
	offer.taken++
	m.used.Steps = max(m.used.Steps, offer.taken)
	if len(offer.Steps) == 0 {
		m.used.Short = true
		return
	}
	if step := offer.Steps[0]; step.Fits {
		b := m.bucketOf(m.groupFor(g.raw, g.profile, g.facts, host, g.extra), step.Static)
		offer.Steps = offer.Steps[1:]
		b.offers = append(b.offers, offer)
		b.add(1)
	}
}

// recount adds a pod on a node of a group to the counters, and returns the counts of
// counters of hosts on the node.
func (m *Merged) recount(g *group) []int64 {
	with := m.apart(g)
	m.add(with, m.own, 1)
	if !anyCount(with.host) {
		return nil
	}
	return with.host
}

// Refusal is why counters keep pods of the class off a node.
type Refusal int

const (
	// NoLabel is that the node lacks the key of a hard constraint.
	NoLabel Refusal = iota
	// Skewed is that the value of the node for such a key is ahead of others.
	Skewed
	// Unmet is that pods are not there that have to be.
	Unmet
	// Forbidden is that pods are there that must not be.
	Forbidden
)

// Refused hands on the nodes that counters keep pods away from, group by group, with
// why, and with the counter that says so, in the order of upstream's plugins.
func (m *Merged) Refused(each func(why Refusal, counter, nodes int)) {
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

// Standing is how counters see one node.
type Standing struct {
	Facts Facts
	// Host are the counts of counters of hosts there; nil means that all are zero.
	Host []int64
	// Extra is what pods would add that are to come.
	Extra []int64
}

// RefusedWith says whether counters keep pods of the class off a node where they count
// so much more, or less, than they do.
func (m *Merged) RefusedWith(s *Standing, more []int64) (why Refusal, counter int, refused bool) {
	g := &group{facts: &s.Facts, host: s.Host, extra: s.Extra}
	// What counts of what is extra follows from what there is, not from what would be.
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
