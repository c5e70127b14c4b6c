package index

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// maxScore is the largest normalized score of one term.
const maxScore = 100

// ranking is the working memory of a query.
type ranking struct {
	candidates []candidate
	// minCounts has the minimal count for each hard constraint. weights has the weight of each soft
	// constraint.
	minCounts []int64
	weights   []float64
	// seen is used to count distinct topology values.
	seen map[int32]struct{}
}

// candidate is a group whose nodes fit, with its scores in a query.
type candidate struct {
	group *group
	// top is the bucket of the group with the highest static score.
	top *bucket
	// count is the number of nodes of the group that count as fitting.
	count int
	// spread is the raw score of the soft constraints. ignored is true if the group gets no
	// score for them.
	spread  int64
	ignored bool
	// affinity is the raw score of preferred affinity and anti-affinity.
	affinity int64
	// total is the score of the nodes in top.
	total int64
}

// Choice is the result of a query.
type Choice struct {
	// Node is the chosen node, at random among the best nodes.
	Node NodeID
	// Fitting is the number of nodes that fit. Groups is the number of their groups.
	Fitting, Groups int
}

// Choose chooses the best node and takes nominated pods into account. It returns false if no node fits.
// If sample is above 0, it chooses the best node of a random sample of that many fitting nodes; scores are
// still normalized over all fitting nodes.
func (c *Class) Choose(nominated []Nominated, sample int) (Choice, bool) {
	defer c.includeNominated(nominated)()
	r := &c.scratch
	fitting := c.candidates(r)
	if fitting == 0 {
		return Choice{}, false
	}
	choice := Choice{Fitting: fitting, Groups: len(r.candidates)}
	c.total(r)
	if sample > 0 && sample < fitting {
		choice.Node = c.chooseFromSample(r, fitting, sample)
		return choice, true
	}
	choice.Node = c.nodeAt(c.draw(r))
	return choice, true
}

// draw chooses one of the best nodes at random. It returns the bucket and the position in
// the bucket.
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

// chooseFromSample returns the best node of a random sample of fitting nodes. It does not draw the sample
// itself. If all fitting nodes are sorted by score, with equal scores in random order, it draws how many
// nodes precede the best node of the sample.
func (c *Class) chooseFromSample(r *ranking, fitting, sample int) NodeID {
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
		return c.nodeAt(tiers[first].bucket, pick)
	}
}

// Fits reports whether pods of the class fit on a node.
func (c *Class) Fits(node NodeID) bool {
	b := c.bucketAt(node)
	return b != nil && c.admits(b.group, c.minCounts(nil))
}

// FitsAlone reports whether pods of the class fit on a node according to plugins that read only
// that node.
func (c *Class) FitsAlone(node NodeID) bool { return c.bucketAt(node) != nil }

// bucketAt returns the bucket of a node; nil if plugins that read only that node reject it.
func (c *Class) bucketAt(node NodeID) *bucket {
	if s := c.special[node]; s != nil {
		return s.bucket
	}
	return c.buckets[c.entries[c.x.nodes[node].state].bucket]
}

// minCounts appends the minimal count of each hard constraint to a slice.
func (v *view) minCounts(into []int64) []int64 {
	for _, hard := range v.spec.Hard {
		into = append(into, v.minCount(hard))
	}
	return into
}

// EachRefused calls each with the nodes of each state that does not fit, and the number of the reason.
// It does not include nodes that only counters reject.
func (c *Class) EachRefused(each func(refusal int32, nodes []NodeID)) {
	for id := range c.entries {
		e, nodes := &c.entries[id], c.x.states[id].nodes
		if e.known && e.bucket == 0 && len(nodes) > 0 {
			each(e.refusal, nodes)
		}
	}
}

// candidates sets r.candidates to the groups whose nodes fit. It returns the number of these nodes.
func (v *view) candidates(r *ranking) int {
	r.candidates = r.candidates[:0]
	r.minCounts = v.minCounts(r.minCounts[:0])
	fitting := 0
	for _, g := range v.list {
		if g.count > 0 && v.admits(g, r.minCounts) && v.admitsExtra(g) {
			r.candidates = append(r.candidates, candidate{group: g, top: g.top(), count: g.count})
			fitting += g.count
		}
	}
	return fitting
}

// admits reports whether the counters allow pods on the nodes of a group.
func (v *view) admits(g *group, minCounts []int64) bool {
	for i, spread := range v.spec.Hard {
		count, labelled := v.count(g, spread.Counter)
		if !labelled || count+spread.Self-minCounts[i] > spread.MaxSkew {
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

// requirementsMet reports whether the nodes of a group satisfy [Spec.Require].
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

// count returns the count of counter i on the nodes of a group. It returns false if the nodes do not have
// the topology key.
func (v *view) count(g *group, i int) (int64, bool) {
	key := v.spec.Counters[i].Key
	if key == HostKey {
		if !g.topology.counts(i) {
			return 0, g.topology.Host
		}
		return g.hostCount(i), g.topology.Host
	}
	value := g.topology.Values[key]
	if value == 0 {
		return 0, false
	}
	if t := v.counters[i].byValue[value]; t != nil {
		return t.count, true
	}
	return 0, true
}

// minCount returns the minimal count over all values of a hard constraint's key. It returns 0 if there are
// fewer values than MinDomains.
func (v *view) minCount(hard HardSpread) int64 {
	least, values := int64(math.MaxInt32), 0
	counter := &v.counters[hard.Counter]
	if v.spec.Counters[hard.Counter].Key == HostKey {
		least, values = v.minHostCount(hard.Counter)
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

// minHostCount returns the minimal count on a host and the number of eligible hosts. Hosts that are not in
// the histogram have the count 0.
func (v *view) minHostCount(i int) (int64, int) {
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

// total computes the total scores of the candidates.
func (v *view) total(r *ranking) {
	for i := range r.candidates {
		g := r.candidates[i].group
		r.candidates[i].total = r.candidates[i].top.static + v.spec.ImageScore(g.imageSet)
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

// addNormalized adds a normalized score term.
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

// addSpread adds the score of the soft constraints. Keys with more values have a higher weight, as in
// kube-scheduler's plugin.
func (v *view) addSpread(r *ranking) {
	scored := 0
	for i := range r.candidates {
		candidate := &r.candidates[i]
		candidate.ignored = v.spec.RequireAllKeys && !v.hasSoftKeys(candidate.group)
		if !candidate.ignored {
			scored += candidate.count
		}
	}
	r.weights = v.spreadWeights(r, scored)
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

// spreadWeights returns the weight of each soft constraint. scored is the number of fitting nodes that get a score
// for them. The result is valid until the next call, because it uses a buffer.
func (v *view) spreadWeights(r *ranking, scored int) []float64 {
	weights := r.weights[:0]
	for _, soft := range v.spec.Soft {
		size := scored
		if key := v.spec.Counters[soft.Counter].Key; key != HostKey {
			size = r.distinct(key)
		}
		weights = append(weights, math.Log(float64(size+2)))
	}
	return weights
}

// hasSoftKeys reports whether the nodes of a group have the keys of all soft constraints.
func (v *view) hasSoftKeys(g *group) bool {
	for _, soft := range v.spec.Soft {
		key := v.spec.Counters[soft.Counter].Key
		if key == HostKey && !g.topology.Host || key != HostKey && g.topology.Values[key] == 0 {
			return false
		}
	}
	return true
}

// distinctValue returns a topology value as the weights of soft constraints count it: a missing label counts as the
// empty value.
func distinctValue(value int32) int32 {
	if value == EmptyValue {
		return 0
	}
	return value
}

// distinct returns the number of values of a key among the candidates. A missing label
// counts as the empty value.
func (r *ranking) distinct(key int) int {
	if r.seen == nil {
		r.seen = map[int32]struct{}{}
	}
	clear(r.seen)
	for i := range r.candidates {
		if candidate := &r.candidates[i]; !candidate.ignored {
			r.seen[distinctValue(candidate.group.topology.Values[key])] = struct{}{}
		}
	}
	return len(r.seen)
}

// spread returns the raw score of the soft constraints for a group; lower is better.
func (v *view) spread(g *group, weights []float64) int64 {
	score := float64(0)
	for i, soft := range v.spec.Soft {
		key := v.spec.Counters[soft.Counter].Key
		var count int64
		switch {
		case key == HostKey:
			if !g.topology.Host {
				continue
			}
			// As in kube-scheduler, the score counts all pods on the node, even if the node is not
			// eligible.
			count = g.hostCount(soft.Counter)
		case g.topology.Values[key] == 0:
			continue
		default:
			count, _ = v.count(g, soft.Counter)
		}
		score += float64(count)*weights[i] + float64(soft.MaxSkew-1)
	}
	return int64(math.Round(score))
}

// addAffinity adds the score of preferred affinity and anti-affinity.
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

// nodeAt returns the node at a position in a bucket.
func (c *Class) nodeAt(b *bucket, pick int) NodeID {
	if pick < len(b.nodes) {
		return b.nodes[pick]
	}
	pick -= len(b.nodes)
	for _, id := range b.states {
		if count := int(c.entries[id].count); pick >= count {
			pick -= count
			continue
		}
		return c.ordinaryNode(id, pick)
	}
	panic("index: fewer nodes in a bucket than were counted")
}

// guesses is the number of random attempts to find an ordinary node of a state. After that, all nodes of
// the state are scanned.
const guesses = 16

// ordinaryNode returns an ordinary node of a state. All of them are equally probable if pick is a random
// number below their count.
func (c *Class) ordinaryNode(id StateID, pick int) NodeID {
	nodes := c.x.states[id].nodes
	if int(c.entries[id].count) == len(nodes) {
		return nodes[pick]
	}
	for range guesses {
		node := nodes[rand.IntN(len(nodes))]
		if c.special[node] == nil {
			return node
		}
	}
	for _, node := range nodes {
		if c.special[node] == nil {
			if pick == 0 {
				return node
			}
			pick--
		}
	}
	panic("index: fewer nodes in a state than were counted")
}
