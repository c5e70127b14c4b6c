package index

import "math/rand/v2"

// Summary is what a class knows of its nodes: enough to compare them with those of
// other indexes. It has no totals, because what is compared depends on all nodes. Its
// parts are encoded as lists, without names.
type Summary struct {
	// Nodes there are, whether they fit or not.
	Nodes    int
	Groups   []GroupSummary
	Counters []CounterSummary
}

// GroupSummary is nodes on which a pod gets the same from everything that compares
// nodes or counts pods.
type GroupSummary struct {
	_       struct{} `cbor:",toarray"`
	Raw     []int64
	Profile int32
	Facts   Facts
	// Host are the counts of counters of hosts; nil means that all are zero.
	Host []int64
	// Extra is what counters would have more of, with pods for which room has to be left.
	Extra []int64
	// Count of the nodes. Those that Tiers do not have are below Floor, if there are any.
	Count int
	Floor int64
	Tiers []Tier
}

// Tier is nodes of a group with one static score, the best first.
type Tier struct {
	_      struct{} `cbor:",toarray"`
	Static int64
	Count  int
	// Offers are some of the nodes, at random.
	Offers []Offer
}

// Offer is a node, and what becomes of it with one pod of the class after another.
type Offer struct {
	_ struct{} `cbor:",toarray"`
	// Part is the number of the index that the node is in; whoever asks several sets it.
	Part  int
	Slot  Slot
	Steps []Step
	// taken are the steps that were made.
	taken int
}

// Step is what there is to say of a node with one more pod of the class on it.
type Step struct {
	_      struct{} `cbor:",toarray"`
	Fits   bool
	Static int64
}

// CounterSummary is the state of a [Counter].
type CounterSummary struct {
	_      struct{} `cbor:",toarray"`
	Values []ValueCount
	Total  int64
	// Hosts are the eligible nodes with a value of their own, and Histogram the
	// counts on those where pods were counted.
	Hosts     int
	Histogram []HostCount
}

// ValueCount is the pods counted for one value, and the eligible nodes that have it.
type ValueCount struct {
	_     struct{} `cbor:",toarray"`
	Value int32
	Count int64
	Nodes int32
}

// HostCount is how many nodes have a count.
type HostCount struct {
	_     struct{} `cbor:",toarray"`
	Count int64
	Nodes int
}

// Stepper is a [Judge] that can tell what becomes of a node.
type Stepper interface {
	// Steps of a node in a state, with one pod of the class after another on it; as
	// many as can be told, and no more than most.
	Steps(slot Slot, state *State, most int) ([]Step, error)
}

// Individual is a [Judge] for which a node can differ from others of its shape, in a
// class that is made anew each time.
type Individual interface {
	// FactsAt are the facts about a node, if they are its own.
	FactsAt(slot Slot) (Facts, bool)
}

// Summarize says what is known of the nodes, with others around them. It offers so many
// nodes of each group, and so many steps of each of them.
func (c *Class) Summarize(around []Around, offers, steps int) (Summary, error) {
	defer c.surround(around)()
	s := c.Counts()
	for _, g := range c.list {
		if g.count == 0 {
			continue
		}
		group := g.summary()
		for i, left := len(g.buckets)-1, offers; i >= 0 && left > 0; i-- {
			b := g.buckets[i]
			if b.count == 0 {
				continue
			}
			tier := Tier{Static: b.static, Count: b.count}
			for _, slot := range c.some(b, left) {
				offer, err := c.offerOf(slot, steps)
				if err != nil {
					return s, err
				}
				tier.Offers = append(tier.Offers, offer)
			}
			left -= len(tier.Offers)
			group.Tiers = append(group.Tiers, tier)
			group.Floor = tier.Static
		}
		s.Groups = append(s.Groups, group)
	}
	return s, nil
}

// SummarizeOnly does so for one node, as if a pod could go to no other.
func (c *Class) SummarizeOnly(slot Slot, around []Around, steps int) (Summary, error) {
	defer c.surround(around)()
	s := c.Counts()
	b := c.where(slot)
	if b == nil {
		return s, nil
	}
	offer, err := c.offerOf(slot, steps)
	group := b.group.summary()
	group.Count, group.Tiers = 1, []Tier{{Static: b.static, Count: 1, Offers: []Offer{offer}}}
	s.Groups = []GroupSummary{group}
	return s, err
}

// SummarizeEach does so for some nodes of which each has a verdict of its own, whatever
// its state is. Of each group one of the best nodes is offered.
func (c *Class) SummarizeEach(slots []Slot, around []Around, verdict func(Slot) (Verdict, error)) (Summary, error) {
	defer c.surround(around)()
	s := c.Counts()
	numbers := map[string]int{}
	for _, slot := range slots {
		v, err := verdict(slot)
		if err != nil {
			return s, err
		}
		if !v.Fits {
			continue
		}
		g := GroupSummary{Raw: v.Raw, Profile: v.Profile, Facts: *c.factsAt(slot)}
		if special := c.special[slot]; special != nil {
			g.Host, g.Extra = special.host, special.extra
		}
		key := string(g.appendKey(nil))
		number, known := numbers[key]
		if !known {
			number = len(s.Groups)
			numbers[key] = number
			s.Groups = append(s.Groups, g)
		}
		s.Groups[number].see(slot, v.Static)
	}
	return s, nil
}

// see counts a node, and offers it if it is one of the best, each of which has the same
// chance.
func (g *GroupSummary) see(slot Slot, static int64) {
	g.Count++
	if len(g.Tiers) == 0 || static > g.Tiers[0].Static {
		g.Floor = static
		g.Tiers = []Tier{{Static: static, Count: 1, Offers: []Offer{{Slot: slot}}}}
		return
	}
	if best := &g.Tiers[0]; static == best.Static {
		best.Count++
		if rand.IntN(best.Count) == 0 {
			best.Offers[0].Slot = slot
		}
	}
}

// Counts is a summary without nodes to go to.
func (c *Class) Counts() Summary {
	s := Summary{Nodes: c.x.count, Counters: make([]CounterSummary, len(c.counters))}
	for i := range c.counters {
		s.Counters[i] = c.counters[i].summary()
	}
	return s
}

func (g *group) summary() GroupSummary {
	return GroupSummary{Raw: g.raw, Profile: g.profile, Facts: *g.facts, Host: g.host, Extra: g.extra, Count: g.count}
}

func (c *counter) summary() CounterSummary {
	s := CounterSummary{Total: c.total, Hosts: c.hosts}
	for value, t := range c.byValue {
		if *t != (tally{}) {
			s.Values = append(s.Values, ValueCount{Value: value, Count: t.count, Nodes: t.nodes})
		}
	}
	for count, nodes := range c.histogram {
		s.Histogram = append(s.Histogram, HostCount{Count: count, Nodes: nodes})
	}
	return s
}

// offerOf is a node with what becomes of it, unless that is also for pods to say that
// are to come to it.
func (c *Class) offerOf(slot Slot, steps int) (offer Offer, err error) {
	offer.Slot = slot
	if s := c.special[slot]; s != nil && s.extra != nil {
		return offer, nil
	}
	if stepper, able := c.spec.Judge.(Stepper); able && steps > 0 {
		offer.Steps, err = stepper.Steps(slot, &c.x.states[c.x.nodes[slot].state].State, steps)
	}
	return offer, err
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

// Standing of a node, with others around it.
func (c *Class) Standing(slot Slot) Standing {
	s := Standing{Facts: *c.factsAt(slot)}
	if special := c.special[slot]; special != nil {
		s.Host, s.Extra = special.host, special.extra
	}
	return s
}

// Around calls f with others around nodes.
func (c *Class) Around(around []Around, f func()) {
	defer c.surround(around)()
	f()
}

// RefusalOf says why a node does not fit, as far as plugins say that look at one node
// only; false if it does, or is barred.
func (c *Class) RefusalOf(slot Slot) (int32, bool) {
	e := &c.entries[c.x.nodes[slot].state]
	return e.refusal, e.known && e.bucket == 0
}
