package index

import "slices"

// Nominated describes the pods that are nominated to a node, for one query.
type Nominated struct {
	Node NodeID
	// Barred is true if the queried pod does not fit on the node together with them.
	Barred bool
	// Extra is what they add to counters. The queried pod must fit with and without it.
	Extra []Amount
}

// surround makes nodes with nominated pods special until undo is called.
func (c *Class) surround(around []Nominated) (undo func()) {
	if len(around) == 0 {
		return func() {}
	}
	for i := range around {
		s := c.setAside(around[i].Node, c.x.nodes[around[i].Node].state)
		s.extra = c.sums(around[i].Extra)
		if around[i].Barred {
			c.unplace(s)
			continue
		}
		c.wait(around[i].Node, s)
	}
	c.settle()
	return func() {
		for i := range around {
			s := c.special[around[i].Node]
			s.extra = nil
			if !c.putBack(around[i].Node, s) {
				c.wait(around[i].Node, s)
			}
		}
		c.settle()
	}
}

// admitsExtra reports whether the counters allow pods on the nodes of a group together with
// the nominated pods of one of these nodes.
func (v *view) admitsExtra(g *group) bool {
	admits := true
	v.withExtra(g, func(with *group) { admits = v.admits(with, v.leasts(nil)) })
	return admits
}

// withExtra calls f while the nominated pods of a node of the group are counted. It does
// nothing without nominated pods.
func (v *view) withExtra(g *group, f func(*group)) {
	if extra := v.extra(g); anyCount(extra) {
		v.with(g, extra, f)
	}
}

// with calls f while additional counts apply to a node of a group.
func (v *view) with(g *group, more []int64, f func(*group)) {
	with := v.apart(g)
	v.add(with, more, 1)
	defer v.add(with, more, -1)
	f(with)
}

// sums returns the sum of amounts for each counter.
func (v *view) sums(amounts []Amount) []int64 {
	sums := make([]int64, len(v.counters))
	for _, amount := range amounts {
		sums[amount.Counter] += amount.By
	}
	return sums
}

// apart returns a copy of a group for one node whose counts will change.
func (v *view) apart(g *group) *group {
	with := *g
	with.host = make([]int64, len(v.counters))
	copy(with.host, g.host)
	return &with
}

// add adds counts to the node of a group from apart, multiplied by sign.
func (v *view) add(g *group, more []int64, sign int64) {
	v.shiftHost(g, -1)
	for i, by := range more {
		v.shiftCount(g, i, sign*by)
	}
	v.shiftHost(g, 1)
}

// extra returns the counts of nominated pods that apply to a group (see Spec.ForbidIfAny).
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

// shiftCount adds to counter i for a node of a group.
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
	case g.topology.Eligible&(1<<i) != 0 && g.topology.Values[key] != 0:
		c.at(g.topology.Values[key]).count += by
		c.total += by
	}
}

// shiftHost adds a node of a group to the histograms (by 1) or removes it (by -1).
func (v *view) shiftHost(g *group, by int) {
	if !anyCount(g.host) {
		return
	}
	for _, i := range v.hardHosts(g.topology) {
		v.counters[i].record(g.host[i], by)
	}
}
