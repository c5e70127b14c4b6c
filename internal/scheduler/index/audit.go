package index

import (
	"fmt"
	"maps"
)

// Audit compares the class with a class that is rebuilt from the current nodes, and returns an error for
// the first difference. The class must have read all changes. Audit is slow; only tests call it.
func (c *Class) Audit() error {
	fresh := &Class{view: view{spec: c.spec}, x: c.x}
	fresh.rebuild()
	fresh.settle()
	for i := range c.counters {
		if have, want := c.counters[i].sums(), fresh.counters[i].sums(); !maps.Equal(have, want) {
			return fmt.Errorf("counter %d has %v, want %v", i, have, want)
		}
		if have, want := c.counters[i].total, fresh.counters[i].total; have != want {
			return fmt.Errorf("counter %d has total %d, want %d", i, have, want)
		}
		if have, want := c.counters[i].histogram, fresh.counters[i].histogram; !maps.Equal(have, want) {
			return fmt.Errorf("counter %d has histogram %v, want %v", i, have, want)
		}
	}
	if have, want := c.sizes(), fresh.sizes(); !maps.Equal(have, want) {
		return fmt.Errorf("buckets have sizes %v, want %v", have, want)
	}
	return nil
}

// sums returns the tallies that are not empty, by value.
func (c *counter) sums() map[int32]tally {
	sums := map[int32]tally{}
	for value, t := range c.byValue {
		if *t != (tally{}) {
			sums[value] = *t
		}
	}
	return sums
}

// sizes returns the number of nodes of each bucket.
func (c *Class) sizes() map[string]int {
	sizes := map[string]int{}
	for _, g := range c.list {
		for _, b := range g.buckets {
			if b.count > 0 {
				sizes[fmt.Sprintf("%x/%d", g.key, b.static)] += b.count
			}
		}
	}
	return sizes
}

// Scores returns the total score of each node that fits, without nominated pods. It is slow; only tests call
// it.
func (c *Class) Scores() map[NodeID]int64 {
	r := &c.scratch
	c.candidates(r)
	c.total(r)
	scores := map[NodeID]int64{}
	for i := range r.candidates {
		candidate := &r.candidates[i]
		for _, b := range candidate.group.buckets {
			total := candidate.total - candidate.top.static + b.static
			for _, node := range b.nodes {
				scores[node] = total
			}
			for _, id := range b.states {
				for _, node := range c.x.states[id].nodes {
					if c.special[node] == nil {
						scores[node] = total
					}
				}
			}
		}
	}
	return scores
}
