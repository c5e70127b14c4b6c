package index

import (
	"fmt"
	"maps"
)

// Audit compares the class, which is up to date, with one made anew from the nodes
// as they are. It looks at everything, so it is for tests.
func (c *Class) Audit() error {
	fresh := &Class{view: view{spec: c.spec}, x: c.x}
	fresh.rebuild()
	fresh.settle()
	for i := range c.counters {
		if have, want := c.counters[i].sums(), fresh.counters[i].sums(); !maps.Equal(have, want) {
			return fmt.Errorf("counter %d has %v, and should have %v", i, have, want)
		}
		if have, want := c.counters[i].total, fresh.counters[i].total; have != want {
			return fmt.Errorf("counter %d has %d in all, and should have %d", i, have, want)
		}
		if have, want := c.counters[i].histogram, fresh.counters[i].histogram; !maps.Equal(have, want) {
			return fmt.Errorf("counter %d has hosts %v, and should have %v", i, have, want)
		}
	}
	if have, want := c.sizes(), fresh.sizes(); !maps.Equal(have, want) {
		return fmt.Errorf("groups and scores have nodes %v, and should have %v", have, want)
	}
	return nil
}

func (c *counter) sums() map[int32]tally {
	sums := map[int32]tally{}
	for value, t := range c.byValue {
		if *t != (tally{}) {
			sums[value] = *t
		}
	}
	return sums
}

// sizes are the numbers of nodes, by group and static score.
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
