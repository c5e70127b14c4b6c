package index

import "math/rand/v2"

// Summary is what a class knows of its nodes: enough to compare them with those of
// other indexes. It has no totals, because what is compared depends on all nodes.
type Summary struct {
	// Nodes there are, whether they fit or not.
	Nodes    int
	Groups   []GroupSummary
	Counters []CounterSummary
}

// GroupSummary is nodes on which a pod gets the same from everything that compares
// nodes or counts pods.
type GroupSummary struct {
	Raw     []int64
	Profile int32
	Facts   Facts
	// Host are the counts of counters of hosts; nil means that all are zero.
	Host []int64
	// Count of the nodes; those that Tiers do not have are worse than those there.
	Count int
	Tiers []Tier
}

// Tier is nodes of a group with one static score, the best first.
type Tier struct {
	Static int64
	Count  int
	// Offers are some of the nodes, at random.
	Offers []Offer
}

// Offer is a node, and what becomes of it with one pod of the class after another.
type Offer struct {
	Slot  Slot
	Steps []Step
}

// Step is what there is to say of a node with one more pod of the class on it.
type Step struct {
	Fits   bool
	Static int64
}

// CounterSummary is the state of a [Counter].
type CounterSummary struct {
	Values []ValueCount
	Total  int64
	// Hosts are the eligible nodes with a value of their own, and Histogram the
	// counts on those where pods were counted.
	Hosts     int
	Histogram []HostCount
}

// ValueCount is the pods counted for one value, and the eligible nodes that have it.
type ValueCount struct {
	Value int32
	Count int64
	Nodes int32
}

// HostCount is how many nodes have a count.
type HostCount struct {
	Count int64
	Nodes int
}

// Stepper is a [Judge] that can tell what becomes of a node.
type Stepper interface {
	// Steps of a node in a state, with one pod of the class after another on it; as
	// many as can be told, and no more than most.
	Steps(slot Slot, state *State, most int) ([]Step, error)
}

// Summarize says what is known of the nodes, but for those that are barred. It
// offers so many nodes of each group, and so many steps of each of them.
func (c *Class) Summarize(barred []Slot, offers, steps int) (Summary, error) {
	for _, slot := range barred {
		c.bar(slot)
		defer c.unbar(slot)
	}
	s := Summary{Nodes: c.x.count, Counters: make([]CounterSummary, len(c.counters))}
	for i := range c.counters {
		s.Counters[i] = c.counters[i].summary()
	}
	for _, g := range c.list {
		if g.count == 0 {
			continue
		}
		group := GroupSummary{Raw: g.raw, Profile: g.profile, Facts: *g.facts, Host: g.host, Count: g.count}
		for i, left := len(g.buckets)-1, offers; i >= 0 && left > 0; i-- {
			b := g.buckets[i]
			if b.count == 0 {
				continue
			}
			tier, err := c.tier(b, left, steps)
			if err != nil {
				return s, err
			}
			left -= len(tier.Offers)
			group.Tiers = append(group.Tiers, tier)
		}
		s.Groups = append(s.Groups, group)
	}
	return s, nil
}

func (c *counter) summary() CounterSummary {
	s := CounterSummary{Total: c.total, Hosts: c.hosts}
	for value, t := range c.byValue {
		if *t != (tally{}) {
			s.Values = append(s.Values, ValueCount{value, t.count, t.nodes})
		}
	}
	for count, nodes := range c.histogram {
		s.Histogram = append(s.Histogram, HostCount{count, nodes})
	}
	return s
}

// tier offers nodes of a bucket.
func (c *Class) tier(b *bucket, most, steps int) (Tier, error) {
	tier := Tier{Static: b.static, Count: b.count}
	for _, slot := range c.some(b, most) {
		offer := Offer{Slot: slot}
		if stepper, able := c.spec.Judge.(Stepper); able && steps > 0 {
			var err error
			if offer.Steps, err = stepper.Steps(slot, &c.x.states[c.x.nodes[slot].state].State, steps); err != nil {
				return tier, err
			}
		}
		tier.Offers = append(tier.Offers, offer)
	}
	return tier, nil
}

// some nodes of a bucket; which they are is left to chance, as far as that is cheap.
func (c *Class) some(b *bucket, most int) []Slot {
	if most == 1 {
		return []Slot{c.offer(b, rand.IntN(b.count))}
	}
	found := make([]Slot, 0, min(most, b.count))
	take := func(slots []Slot, skipSpecial bool) {
		if len(slots) == 0 {
			return
		}
		start := rand.IntN(len(slots))
		for i := 0; i < len(slots) && len(found) < most; i++ {
			slot := slots[(start+i)%len(slots)]
			if !skipSpecial || c.special[slot] == nil {
				found = append(found, slot)
			}
		}
	}
	take(b.slots, false)
	if len(b.states) > 0 {
		start := rand.IntN(len(b.states))
		for i := 0; i < len(b.states) && len(found) < most; i++ {
			id := b.states[(start+i)%len(b.states)]
			take(c.x.states[id].slots, int(c.entries[id].count) < len(c.x.states[id].slots))
		}
	}
	return found
}
