package index

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// The largest score that one term of the score can give.
const maxScore = 100

// ranking is the working space of a query.
type ranking struct {
	candidates []candidate
	// least are the counts that hard constraints compare with, and weights those of
	// the keys of soft ones.
	least   []int64
	weights []float64
	seen    map[int32]struct{}
}

// candidate is a group whose nodes fit, as the query sees it.
type candidate struct {
	group *group
	top   *bucket
	// spread is what soft spreading makes of it, before it is compared; ignored
	// means that it gets nothing from that.
	spread  int64
	ignored bool
	// affinity is the sum of the preferences for and against.
	affinity int64
	total    int64
}

// Choice is what came of a query.
type Choice struct {
	// Slot of the node; it is one of the best, each with equal chance.
	Slot Slot
	// Fitting nodes there are, and groups of them that were compared.
	Fitting, Groups int
}

// Choose finds the best node, if any fits, with others around them: the best of a
// random sample of so many that fit, or of all if sample is 0. Scores are those among
// all that fit.
func (c *Class) Choose(around []Around, sample int) (Choice, bool) {
	defer c.surround(around)()
	r := &c.scratch
	fitting := c.candidates(r)
	if fitting == 0 {
		return Choice{}, false
	}
	choice := Choice{Fitting: fitting, Groups: len(r.candidates)}
	c.total(r)
	if sample > 0 && sample < fitting {
		choice.Slot = c.sampled(r, fitting, sample)
		return choice, true
	}
	choice.Slot = c.offer(c.draw(r))
	return choice, true
}

// draw is one of the nodes of the best candidates, each with equal chance: the bucket
// that it is in, and its number there.
func (v *view) draw(r *ranking) (*bucket, int) {
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
		if number < candidate.top.count {
			return candidate.top, number
		}
		number -= candidate.top.count
	}
	panic("index: fewer nodes than were counted")
}

// sampled is the best of some nodes that fit, as if they had been drawn. What is
// drawn is only how many nodes are better than the best of them; nodes of equal
// scores are in random order.
func (c *Class) sampled(r *ranking, fitting, sample int) Slot {
	better := 0
	for rand.IntN(fitting-better) >= sample {
		better++
	}
	type tier struct {
		total  int64
		bucket *bucket
	}
	var tiers []tier
	for i := range r.candidates {
		candidate := &r.candidates[i]
		for _, b := range candidate.group.buckets {
			if b.count > 0 {
				tiers = append(tiers, tier{candidate.total - candidate.top.static + b.static, b})
			}
		}
	}
	slices.SortFunc(tiers, func(a, b tier) int { return cmp.Compare(b.total, a.total) })
	for first := 0; ; {
		last, count := first, 0
		for ; last < len(tiers) && tiers[last].total == tiers[first].total; last++ {
			count += tiers[last].bucket.count
		}
		if better >= count {
			better -= count
			first = last
			continue
		}
		pick := rand.IntN(count)
		for ; pick >= tiers[first].bucket.count; first++ {
			pick -= tiers[first].bucket.count
		}
		return c.offer(tiers[first].bucket, pick)
	}
}

// Fits says whether pods of the class fit on a node.
func (c *Class) Fits(slot Slot) bool {
	b := c.where(slot)
	return b != nil && c.admits(b.group, c.leasts(nil))
}

// Has says whether pods of the class fit on a node as far as plugins say that look at
// one node only.
func (c *Class) Has(slot Slot) bool { return c.where(slot) != nil }

// where is the bucket of a node; nil if pods of the class do not fit there, as far as
// plugins say that look at one node only.
func (c *Class) where(slot Slot) *bucket {
	if s := c.special[slot]; s != nil {
		return s.bucket
	}
	return c.buckets[c.entries[c.x.nodes[slot].state].bucket]
}

// leasts are the smallest counts that hard constraints compare with.
func (v *view) leasts(into []int64) []int64 {
	for _, hard := range v.spec.Hard {
		into = append(into, v.least(hard))
	}
	return into
}

// Refused hands on the nodes that do not fit, state by state, with why. Those that
// counters keep pods away from are not among them.
func (c *Class) Refused(each func(refusal int32, slots []Slot)) {
	for id := range c.entries {
		e, slots := &c.entries[id], c.x.states[id].slots
		if e.known && e.bucket == 0 && len(slots) > 0 {
			each(e.refusal, slots)
		}
	}
}

// candidates finds the groups whose nodes fit, and counts these.
func (v *view) candidates(r *ranking) int {
	r.candidates = r.candidates[:0]
	r.least = v.leasts(r.least[:0])
	fitting := 0
	for _, g := range v.list {
		if g.count > 0 && v.admits(g, r.least) && v.admitsExtra(g) {
			r.candidates = append(r.candidates, candidate{group: g, top: g.top()})
			fitting += g.count
		}
	}
	return fitting
}

// admits says whether nodes of a group fit, as far as counters say.
func (v *view) admits(g *group, least []int64) bool {
	for i, spread := range v.spec.Hard {
		count, labelled := v.count(g, spread.Counter)
		if !labelled || count+spread.Self-least[i] > spread.MaxSkew {
			return false
		}
	}
	for _, i := range v.spec.Forbid {
		if count, labelled := v.count(g, i); labelled && count > 0 {
			return false
		}
	}
	return v.requirementsMet(g)
}

func (v *view) requirementsMet(g *group) bool {
	met, anywhere := true, false
	for _, i := range v.spec.Require {
		count, labelled := v.count(g, i)
		if !labelled {
			return false
		}
		met = met && count > 0
		anywhere = anywhere || v.counters[i].total > 0
	}
	return met || !anywhere && v.spec.SelfMatch
}

// count of a counter for the nodes of a group, and whether they have its key.
func (v *view) count(g *group, i int) (int64, bool) {
	key := v.spec.Counters[i].Key
	if key == HostKey {
		if g.facts.Eligible&(1<<i) == 0 {
			return 0, g.facts.Host
		}
		return g.hostCount(i), g.facts.Host
	}
	value := g.facts.Values[key]
	if value == 0 {
		return 0, false
	}
	if t := v.counters[i].byValue[value]; t != nil {
		return t.count, true
	}
	return 0, true
}

// least is the smallest count over the values of a hard constraint's key.
func (v *view) least(hard HardSpread) int64 {
	least, values := int64(math.MaxInt32), 0
	counter := &v.counters[hard.Counter]
	if v.spec.Counters[hard.Counter].Key == HostKey {
		least, values = v.leastHost(hard.Counter)
	} else {
		for _, t := range counter.byValue {
			if t.nodes > 0 {
				values++
				least = min(least, t.count)
			}
		}
	}
	if values < hard.MinDomains {
		return 0
	}
	return least
}

// leastHost is the smallest count on a host, and the number of hosts.
func (v *view) leastHost(i int) (int64, int) {
	least, counted := int64(math.MaxInt32), 0
	for count, nodes := range v.counters[i].histogram {
		least = min(least, count)
		counted += nodes
	}
	hosts := v.counters[i].hosts
	if hosts > counted {
		least = min(least, 0)
	}
	return least, hosts
}

// total compares the candidates.
func (v *view) total(r *ranking) {
	for i := range r.candidates {
		g := r.candidates[i].group
		r.candidates[i].total = r.candidates[i].top.static + v.spec.Local(g.profile)
	}
	for term, normalized := range v.spec.Normalized {
		v.addNormalized(r, term, normalized)
	}
	if len(v.spec.Soft) > 0 {
		v.addSpread(r)
	}
	if len(v.spec.Prefer) > 0 {
		v.addAffinity(r)
	}
}

func (v *view) addNormalized(r *ranking, term int, how Normalized) {
	most := int64(0)
	for i := range r.candidates {
		most = max(most, r.candidates[i].group.raw[term])
	}
	for i := range r.candidates {
		score := r.candidates[i].group.raw[term]
		if most > 0 {
			score = maxScore * score / most
		}
		if how.Reverse {
			score = maxScore - score
		}
		r.candidates[i].total += how.Weight * score
	}
}

// addSpread scores by how many pods there are for the values of keys, more so for
// keys that have many values.
func (v *view) addSpread(r *ranking) {
	scored := 0
	for i := range r.candidates {
		candidate := &r.candidates[i]
		candidate.ignored = v.spec.AllKeys && !v.hasSoftKeys(candidate.group)
		if !candidate.ignored {
			scored += candidate.group.count
		}
	}
	r.weights = r.weights[:0]
	for _, soft := range v.spec.Soft {
		size := scored
		if key := v.spec.Counters[soft.Counter].Key; key != HostKey {
			size = r.distinct(key)
		}
		r.weights = append(r.weights, math.Log(float64(size+2)))
	}
	least, most := int64(math.MaxInt64), int64(0)
	for i := range r.candidates {
		candidate := &r.candidates[i]
		if candidate.ignored {
			continue
		}
		candidate.spread = v.spread(candidate.group, r.weights)
		least, most = min(least, candidate.spread), max(most, candidate.spread)
	}
	for i := range r.candidates {
		candidate := &r.candidates[i]
		switch {
		case candidate.ignored:
		case most == 0:
			candidate.total += v.spec.SpreadWeight * maxScore
		default:
			candidate.total += v.spec.SpreadWeight * (maxScore * (most + least - candidate.spread) / most)
		}
	}
}

func (v *view) hasSoftKeys(g *group) bool {
	for _, soft := range v.spec.Soft {
		key := v.spec.Counters[soft.Counter].Key
		if key == HostKey && !g.facts.Host || key != HostKey && g.facts.Values[key] == 0 {
			return false
		}
	}
	return true
}

// distinct is the number of values of a key among the candidates; no label counts
// as the empty value.
func (r *ranking) distinct(key int) int {
	if r.seen == nil {
		r.seen = map[int32]struct{}{}
	}
	clear(r.seen)
	for i := range r.candidates {
		if candidate := &r.candidates[i]; !candidate.ignored {
			value := candidate.group.facts.Values[key]
			if value == EmptyValue {
				value = 0
			}
			r.seen[value] = struct{}{}
		}
	}
	return len(r.seen)
}

// spread is the raw score of a group; small is good.
func (v *view) spread(g *group, weights []float64) int64 {
	score := float64(0)
	for i, soft := range v.spec.Soft {
		key := v.spec.Counters[soft.Counter].Key
		var count int64
		switch {
		case key == HostKey:
			if !g.facts.Host {
				continue
			}
			// On the node itself all pods count, eligible or not.
			count = g.hostCount(soft.Counter)
		case g.facts.Values[key] == 0:
			continue
		default:
			count, _ = v.count(g, soft.Counter)
		}
		score += float64(count)*weights[i] + float64(soft.MaxSkew-1)
	}
	return int64(math.Round(score))
}

func (v *view) addAffinity(r *ranking) {
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range r.candidates {
		candidate := &r.candidates[i]
		candidate.affinity = 0
		for _, counter := range v.spec.Prefer {
			if count, labelled := v.count(candidate.group, counter); labelled {
				candidate.affinity += count
			}
		}
		least, most = min(least, candidate.affinity), max(most, candidate.affinity)
	}
	if most == least {
		return
	}
	for i := range r.candidates {
		candidate := &r.candidates[i]
		share := float64(candidate.affinity-least) / float64(most-least)
		candidate.total += v.spec.AffinityWeight * int64(float64(maxScore)*share)
	}
}

// offer is the node of a bucket that has a number among those with equal chance.
func (c *Class) offer(b *bucket, pick int) Slot {
	if pick < len(b.slots) {
		return b.slots[pick]
	}
	pick -= len(b.slots)
	for _, id := range b.states {
		if count := int(c.entries[id].count); pick >= count {
			pick -= count
			continue
		}
		return c.ordinary(id, pick)
	}
	panic("index: fewer nodes in a bucket than were counted")
}

// Guesses at a node of a state that is not special, before all are looked at.
const guesses = 16

// ordinary is one of the nodes of a state that are not special.
func (c *Class) ordinary(id StateID, pick int) Slot {
	slots := c.x.states[id].slots
	if int(c.entries[id].count) == len(slots) {
		return slots[pick]
	}
	for range guesses {
		slot := slots[rand.IntN(len(slots))]
		if c.special[slot] == nil {
			return slot
		}
	}
	for _, slot := range slots {
		if c.special[slot] == nil {
			if pick == 0 {
				return slot
			}
			pick--
		}
	}
	panic("index: fewer nodes in a state than were counted")
}
