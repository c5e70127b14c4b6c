package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Merged is a class over several indexes, built from a merged summary. It places pods of the class one
// after another, until the summary lacks the information for the next decision.
type Merged struct {
	view
	// own has the number that one pod of the class adds to each counter.
	own []int64
	// floors has, for each group with nodes outside all tiers, the maximal static score of these
	// nodes.
	floors map[*group]int64
	nodes  int
	used   Used
}

// Used tells how much of a summary was used.
type Used struct {
	// Offers is the number of offered nodes on which pods were placed. Steps is the largest number
	// of pods that were placed on one of them.
	Offers, Steps int
	// StepsExhausted is true if a pod was placed on a node that had no step left. Then the verdict
	// on that node is unknown.
	StepsExhausted bool
}

// Outcome is the kind of result of [Merged.Choose].
type Outcome int

const (
	// Chosen means that a node was chosen. The pod counts as running on this node in later calls.
	Chosen Outcome = iota
	// Unfit means that no node fits.
	Unfit
	// Exhausted means that the summary lacks the information for a decision.
	Exhausted
)

// Pick is a chosen node of one of the indexes.
type Pick struct {
	// Part is the number of the index (see [Offer.Part]). Node is the node in that index.
	Part int
	Node NodeID
	// Fitting is the number of nodes that fit. Groups is the number of their groups.
	Fitting, Groups int
}

// NewMerged returns a Merged for a summary that [Fold] returned. The numbers of values and image sets must
// be those of the Spec's judge. own are the amounts that one pod of the class adds to the counters.
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

// Used returns how much of the summary has been used.
func (m *Merged) Used() Used { return m.used }

// mayHaveBetterNodes reports whether a group may have nodes outside its tiers that are better than those of
// its top bucket.
func (m *Merged) mayHaveBetterNodes(g *group, top *bucket) bool {
	floor, ok := m.floors[g]
	return ok && (top == nil || top.static < floor)
}

// Choose chooses the best node for the next pod of the class and counts the pod on this node.
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
		if m.mayHaveBetterNodes(r.candidates[i].group, r.candidates[i].top) {
			return Pick{}, Exhausted
		}
	}
	m.total(r)
	best, _ := m.draw(r)
	pick, ok := m.placeOnOffer(best)
	if !ok {
		return Pick{}, Exhausted
	}
	pick.Fitting, pick.Groups = fitting, len(r.candidates)
	return pick, Chosen
}

// placeOnOffer places a pod on a random offered node of a bucket. It returns false if the bucket has
// no offers left.
func (m *Merged) placeOnOffer(b *bucket) (Pick, bool) {
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
	changed := m.copyForNode(g)
	m.addCounts(changed, m.own, 1)
	if !anyCount(changed.host) {
		return nil
	}
	return changed.host
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

// EachRefused calls each for each group that counters reject, with the reason, the counter and the number
// of nodes. If there are several reasons, it passes the one that upstream's plugins check first.
func (m *Merged) EachRefused(each func(reason Refusal, counter, nodes int)) {
	minCounts := m.minCounts(nil)
	for _, g := range m.list {
		if g.count == 0 {
			continue
		}
		var reason Refusal
		counter, refused := 0, false
		m.withExtra(g, func(changed *group) {
			reason, counter, refused = m.refusal(changed, m.minCounts(nil))
		})
		if !refused {
			reason, counter, refused = m.refusal(g, minCounts)
		}
		if refused {
			each(reason, counter, g.count)
		}
	}
}

// NodeCounts is the topology and the counts of one node.
type NodeCounts struct {
	Topology Topology
	// Host has the counts of counters with HostKey; nil means all zero.
	Host []int64
	// Extra has the numbers that nominated pods add to the counters.
	Extra []int64
}

// AppendKey appends a key that two nodes of one class share if they have the same topology and counts.
func (s *NodeCounts) AppendKey(key []byte) []byte {
	return appendGroup(key, nil, 0, &s.Topology, s.Host, s.Extra)
}

// Renumber returns a copy with other numbers of values.
func (s *NodeCounts) Renumber(value func(int32) int32) *NodeCounts {
	renumbered := *s
	renumbered.Topology.Values = make([]int32, len(s.Topology.Values))
	for i, v := range s.Topology.Values {
		renumbered.Topology.Values[i] = value(v)
	}
	return &renumbered
}

// CheckSpec returns an error if the counts cannot belong to a class with this Spec.
func (s *NodeCounts) CheckSpec(spec *Spec) error {
	counters := len(spec.Counters)
	if len(s.Topology.Values) != len(spec.Keys) || len(s.Host) != 0 && len(s.Host) != counters || len(s.Extra) != 0 && len(s.Extra) != counters {
		return fmt.Errorf("%w: it belongs to another pod class", errMalformed)
	}
	return nil
}

// RefusedWith reports whether counters reject a node after more was added to the counts of the node; a
// number in more is negative for removed pods. It returns the reason and the counter.
func (m *Merged) RefusedWith(s *NodeCounts, more []int64) (reason Refusal, counter int, refused bool) {
	g := s.group()
	// Whether nominated pods count (see Spec.ForbidIfAny) depends on the counts before the change.
	extra := m.extra(g)
	m.withCounts(g, more, func(g *group) {
		if anyCount(extra) {
			reason, counter, refused = m.refusedBeside(g, extra)
		}
		if !refused {
			reason, counter, refused = m.refusal(g, m.minCounts(nil))
		}
	})
	return reason, counter, refused
}

// RefusedWithNominated is [Merged.RefusedWith] while the nominated pods of the node count, without a second look at
// the node without them.
func (m *Merged) RefusedWithNominated(s *NodeCounts, more []int64) (reason Refusal, counter int, refused bool) {
	g := s.group()
	extra := m.extra(g)
	m.withCounts(g, more, func(g *group) { reason, counter, refused = m.refusedBeside(g, extra) })
	return reason, counter, refused
}

// group returns a group with only this node.
func (s *NodeCounts) group() *group {
	return &group{topology: &s.Topology, host: s.Host, extra: s.Extra}
}

// refusedBeside is [Merged.refusal] while nominated pods add extra to the counts of a node.
func (m *Merged) refusedBeside(g *group, extra []int64) (reason Refusal, counter int, refused bool) {
	m.withCounts(g, extra, func(changed *group) { reason, counter, refused = m.refusal(changed, m.minCounts(nil)) })
	return reason, counter, refused
}

// refusal returns the first reason for which counters reject the nodes of a group.
func (m *Merged) refusal(g *group, minCounts []int64) (reason Refusal, counter int, refused bool) {
	for i, spread := range m.spec.Hard {
		count, labelled := m.count(g, spread.Counter)
		switch {
		case !labelled:
			return NoLabel, spread.Counter, true
		case count+spread.Self-minCounts[i] > spread.MaxSkew:
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
