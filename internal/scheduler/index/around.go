package index

import "slices"

// Around is what is to come to a node, for one query.
type Around struct {
	Slot Slot
	// Barred says that the pod does not fit there beside it.
	Barred bool
	// Extra is what it would add to counters; the pod has to fit with it and without.
	Extra []Amount
}

// surround makes nodes special for a query, until what it returns is called.
func (c *Class) surround(around []Around) (undo func()) {
	if len(around) == 0 {
		return func() {}
	}
	for i := range around {
		s := c.setAside(around[i].Slot, c.x.nodes[around[i].Slot].state)
		s.extra = c.sums(around[i].Extra)
		if around[i].Barred {
			c.unplace(s)
			continue
		}
		c.wait(around[i].Slot, s)
	}
	c.settle()
	return func() {
		for i := range around {
			s := c.special[around[i].Slot]
			s.extra = nil
			if !c.putBack(around[i].Slot, s) {
				c.wait(around[i].Slot, s)
			}
		}
		c.settle()
	}
}

// admitsExtra says whether nodes of a group fit with what is extra on one of them, as
// far as counters say.
func (v *view) admitsExtra(g *group) bool {
	admits := true
	v.withExtra(g, func(with *group) { admits = v.admits(with, v.leasts(nil)) })
	return admits
}

// withExtra calls f while what is extra on a node of a group is counted, if anything is.
func (v *view) withExtra(g *group, f func(*group)) {
	if extra := v.extra(g); anyCount(extra) {
		v.with(g, extra, f)
	}
}

// with calls f while a node of a group has more that counters count.
func (v *view) with(g *group, more []int64, f func(*group)) {
	with := v.apart(g)
	v.add(with, more, 1)
	defer v.add(with, more, -1)
	f(with)
}

// sums are amounts by counter.
func (v *view) sums(amounts []Amount) []int64 {
	sums := make([]int64, len(v.counters))
	for _, amount := range amounts {
		sums[amount.Counter] += amount.By
	}
	return sums
}

// apart is a node of a group by itself, so that what is on it can change.
func (v *view) apart(g *group) *group {
	with := *g
	with.host = make([]int64, len(v.counters))
	copy(with.host, g.host)
	return &with
}

// add counts more on a node that is apart.
func (v *view) add(g *group, more []int64, sign int64) {
	v.shiftHost(g, -1)
	for i, by := range more {
		v.shiftCount(g, i, sign*by)
	}
	v.shiftHost(g, 1)
}

// extra is what counts of what is extra on a node of a group.
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

// shiftCount adds pods on a node of a group to a counter.
func (v *view) shiftCount(g *group, i int, by int64) {
	if by == 0 {
		return
	}
	c := &v.counters[i]
	switch key := v.spec.Counters[i].Key; {
	case key == HostKey:
		g.host[i] += by
		if g.facts.Host {
			c.total += by
		}
	case g.facts.Eligible&(1<<i) != 0 && g.facts.Values[key] != 0:
		c.at(g.facts.Values[key]).count += by
		c.total += by
	}
}

// shiftHost takes a node of a group into the histograms, or out of them, if there is
// something to count there.
func (v *view) shiftHost(g *group, by int) {
	if !anyCount(g.host) {
		return
	}
	for _, i := range v.hardHosts(g.facts) {
		v.counters[i].record(g.host[i], by)
	}
}
