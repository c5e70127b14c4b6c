package index

import "slices"

// Nominated describes how the pods that are nominated to a node affect one query.
type Nominated struct {
	Node NodeID
	// Barred is true if the queried pod does not fit on the node together with the nominated pods.
	Barred bool
	// Extra are the amounts that the nominated pods add to counters. The queried pod must fit with
	// and without them.
	Extra []Amount
}

// includeNominated makes the nodes with nominated pods special until undo is called. A barred node gets no bucket,
// so queries do not choose it.
func (c *Class) includeNominated(nominated []Nominated) (undo func()) {
	if len(nominated) == 0 {
		return func() {}
	}
	for i := range nominated {
		s := c.markSpecial(nominated[i].Node, c.x.nodes[nominated[i].Node].state)
		s.extra = c.sums(nominated[i].Extra)
		if nominated[i].Barred {
			c.unplace(s)
			continue
		}
		c.markUnplaced(nominated[i].Node, s)
	}
	c.settle()
	return func() {
		for i := range nominated {
			s := c.special[nominated[i].Node]
			s.extra = nil
			if !c.unmarkSpecial(nominated[i].Node, s) {
				c.markUnplaced(nominated[i].Node, s)
			}
		}
		c.settle()
	}
}

// FitsBeside reports whether pods of the class fit on a node, with and without nominated pods.
func (c *Class) FitsBeside(node NodeID, nominated []Nominated) (fits bool) {
	c.WithNominated(nominated, func() {
		b := c.bucketAt(node)
		fits = b != nil && c.admits(b.group, c.minCounts(nil)) && c.admitsExtra(b.group)
	})
	return fits
}

// admitsExtra reports whether the counters allow pods on the nodes of a group while the nominated pods of
// one of these nodes are counted.
func (v *view) admitsExtra(g *group) bool {
	admits := true
	v.withExtra(g, func(changed *group) { admits = v.admits(changed, v.minCounts(nil)) })
	return admits
}

// withExtra calls f while the nominated pods of one node of the group are counted. It does not call f if
// there are none.
func (v *view) withExtra(g *group, f func(*group)) {
	if extra := v.extra(g); anyCount(extra) {
		v.withCounts(g, extra, f)
	}
}

// withCounts calls f while more is added to the counts of one node of a group.
func (v *view) withCounts(g *group, more []int64, f func(*group)) {
	changed := v.copyForNode(g)
	v.addCounts(changed, more, 1)
	defer v.addCounts(changed, more, -1)
	f(changed)
}

// sums returns the sum of amounts for each counter.
func (v *view) sums(amounts []Amount) []int64 {
	sums := make([]int64, len(v.counters))
	for _, amount := range amounts {
		sums[amount.Counter] += amount.By
	}
	return sums
}

// copyForNode returns a copy of a group that represents one of its nodes, so that the counts of this node
// can change.
func (v *view) copyForNode(g *group) *group {
	changed := *g
	changed.host = make([]int64, len(v.counters))
	copy(changed.host, g.host)
	return &changed
}

// addCounts adds more, multiplied by sign, to the counts of a node. g comes from copyForNode.
func (v *view) addCounts(g *group, more []int64, sign int64) {
	v.shiftHost(g, -1)
	for i, by := range more {
		v.shiftCount(g, i, sign*by)
	}
	v.shiftHost(g, 1)
}

// extra returns the counts of a group's nominated pods. Those of Forbid are 0 if [Spec.ForbidIfAny] excludes
// them.
func (v *view) extra(g *group) []int64 {
	any := slices.ContainsFunc(v.spec.Forbid, func(i int) bool { return v.counters[i].total > 0 })
	if any || !v.spec.ForbidIfAny || len(g.extra) == 0 {
		return g.extra
	}
	kept := slices.Clone(g.extra)
	for _, i := range v.spec.Forbid {
		kept[i] = 0
	}
	return kept
}

// shiftCount adds to the count of counter i on a node of a group.
func (v *view) shiftCount(g *group, i int, by int64) {
	if by == 0 {
		return
	}
	c := &v.counters[i]
	switch key := v.spec.Counters[i].Key; {
	case key == HostKey:
		g.host[i] += by
		if g.topology.Host {
			c.total += by
		}
	case g.topology.counts(i) && g.topology.Values[key] != 0:
		c.at(g.topology.Values[key]).count += by
		c.total += by
	}
}

// shiftHost adds a node of a group to the histograms if by is 1, or removes it if by is -1.
func (v *view) shiftHost(g *group, by int) {
	if !anyCount(g.host) {
		return
	}
	for _, i := range v.hardHosts(g.topology) {
		v.counters[i].record(g.host[i], by)
	}
}
