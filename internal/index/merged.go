package index

import (
	"math"
	"math/rand/v2"
)

// Merged is what the classes of several indexes know together. Pods of the class can
// be placed by it, one after the other, for as long as what was summarized says
// enough of the nodes.
type Merged struct {
	view
	// own are what a pod of the class adds to the counters.
	own []Amount
	// floors are scores that nodes in no tier stay below, for groups that have such.
	floors map[*group]int64
	nodes  int
	spent  bool
}

// stock is the offers of one index in a bucket.
type stock struct {
	part   int
	count  int
	offers []Offer
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

// Merge puts together what classes of one spec know. Values and profiles are to be
// numbered as those of the judge of the spec are; own is what a pod of the class adds
// to counters.
func Merge(spec Spec, own []Amount, parts []Summary) *Merged {
	m := &Merged{view: newView(spec), own: own, floors: map[*group]int64{}}
	for part := range parts {
		m.add(part, &parts[part])
	}
	return m
}

// Nodes there are in all indexes.
func (m *Merged) Nodes() int { return m.nodes }

func (m *Merged) add(part int, s *Summary) {
	m.nodes += s.Nodes
	for i := range s.Counters {
		m.counters[i].merge(&s.Counters[i])
	}
	for i := range s.Groups {
		summary := &s.Groups[i]
		g := m.groupFor(summary.Raw, summary.Profile, &summary.Facts, summary.Host)
		known := 0
		for _, tier := range summary.Tiers {
			b := m.bucketOf(g, tier.Static)
			b.stocks = append(b.stocks, stock{part: part, count: tier.Count, offers: tier.Offers})
			b.add(int32(tier.Count))
			known += tier.Count
		}
		if rest := summary.Count - known; rest > 0 {
			g.count += rest
			m.setFloor(g, summary.Tiers)
		}
	}
}

// setFloor notes that a group has nodes worse than those of tiers.
func (m *Merged) setFloor(g *group, tiers []Tier) {
	floor := int64(math.MaxInt64)
	if len(tiers) > 0 {
		floor = tiers[len(tiers)-1].Static
	}
	if known, is := m.floors[g]; !is || floor > known {
		m.floors[g] = floor
	}
}

// hidden says whether there may be better nodes in a group than those known.
func (m *Merged) hidden(g *group, top *bucket) bool {
	floor, is := m.floors[g]
	return is && (top == nil || top.static < floor)
}

func (c *counter) merge(s *CounterSummary) {
	c.total += s.Total
	c.hosts += s.Hosts
	for _, v := range s.Values {
		t := c.at(v.Value)
		t.count += v.Count
		t.nodes += v.Nodes
	}
	for _, h := range s.Histogram {
		c.histogram[h.Count] += h.Nodes
	}
}

// Choose finds the best node for the next pod of the class, and takes it to be there.
func (m *Merged) Choose() (Pick, Outcome) {
	if m.spent {
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
	best, ties := int64(math.MinInt64), 0
	for i := range r.candidates {
		switch total := r.candidates[i].total; {
		case total > best:
			best, ties = total, r.candidates[i].top.count
		case total == best:
			ties += r.candidates[i].top.count
		}
	}
	number := rand.IntN(ties)
	for i := range r.candidates {
		candidate := &r.candidates[i]
		if candidate.total != best {
			continue
		}
		if number >= candidate.top.count {
			number -= candidate.top.count
			continue
		}
		pick, left := m.take(candidate.top, number)
		if !left {
			return Pick{}, Spent
		}
		pick.Fitting, pick.Groups = fitting, len(r.candidates)
		return pick, Chosen
	}
	panic("index: fewer nodes than were counted")
}

// take places a pod on one of the nodes of a bucket, which number says; false if none
// of them is offered.
func (m *Merged) take(b *bucket, number int) (Pick, bool) {
	from := -1
	for i := range b.stocks {
		offered := len(b.stocks[i].offers) > 0
		if offered && (from < 0 || number >= 0) {
			from = i
		}
		if number -= b.stocks[i].count; number < 0 && from >= 0 {
			break
		}
	}
	if from < 0 {
		return Pick{}, false
	}
	s := &b.stocks[from]
	last := len(s.offers) - 1
	offer := s.offers[last]
	s.offers = s.offers[:last]
	s.count--
	part := s.part
	if s.count == 0 {
		b.stocks = append(b.stocks[:from], b.stocks[from+1:]...)
	}
	b.add(-1)
	m.place(b.group, part, offer)
	return Pick{Part: part, Slot: offer.Slot}, true
}

// place puts a pod on a node of a group, and the node where it then belongs.
func (m *Merged) place(g *group, part int, offer Offer) {
	host := m.recount(g)
	if len(offer.Steps) == 0 {
		m.spent = true
		return
	}
	if step := offer.Steps[0]; step.Fits {
		b := m.bucketOf(m.groupFor(g.raw, g.profile, g.facts, host), step.Static)
		b.stocks = append(b.stocks, stock{part: part, count: 1, offers: []Offer{{Slot: offer.Slot, Steps: offer.Steps[1:]}}})
		b.add(1)
	}
}

// recount adds a pod on a node of a group to the counters, and returns the counts of
// counters of hosts on the node.
func (m *Merged) recount(g *group) []int64 {
	host := make([]int64, len(m.counters))
	copy(host, g.host)
	if anyCount(host) {
		for _, i := range m.hardHosts(g.facts) {
			m.counters[i].uncount(host[i])
		}
	}
	for _, amount := range m.own {
		c := &m.counters[amount.Counter]
		switch key := m.spec.Counters[amount.Counter].Key; {
		case key == HostKey:
			host[amount.Counter] += amount.By
			if g.facts.Host {
				c.total += amount.By
			}
		case g.facts.Eligible&(1<<amount.Counter) != 0 && g.facts.Values[key] != 0:
			c.at(g.facts.Values[key]).count += amount.By
			c.total += amount.By
		}
	}
	if !anyCount(host) {
		return nil
	}
	for _, i := range m.hardHosts(g.facts) {
		m.counters[i].histogram[host[i]]++
	}
	return host
}
