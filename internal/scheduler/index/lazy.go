package index

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// Lazy are filters that the index does not know. A query asks them about single nodes.
type Lazy struct {
	// Ask returns whether the filters accept a node. It must return the same for a node during a query. The
	// query asks about a node at most once.
	Ask func(NodeID) (bool, error)
	// Sure is true if the verdicts of the class already contain what the filters decide, so that they reject no
	// node that fits unless something has changed meanwhile. Nodes that were not asked about then count as
	// fitting.
	Sure bool
	// MaxCounted is the largest number of nodes to ask about only to count those that fit.
	MaxCounted int
}

// ErrUncounted is the error of [Class.ChooseLazily] if the scores depend on the number of nodes that fit, and more
// than [Lazy.MaxCounted] nodes would have to be asked about to count them.
var ErrUncounted = errors.New("index: scores depend on the number of nodes that fit, which is unknown")

// ChooseLazily chooses the best node that the filters of lazy accept, at random among equal ones. It asks about
// nodes in the order of their scores. Scores are normalized over the nodes that fit and that the filters accept. It
// returns false if there is no such node. In the result, Fitting is the number of nodes that are known to fit.
//
// A score depends on other nodes only by extremes over all fitting nodes (the largest raw score, the smallest
// and the largest count), by the set of topology values, and by the number of fitting nodes. All nodes of a group
// are equal in the first two. So the result is exact if for each extreme and each value one node that has it is known to
// fit, under the assumption that each group of which not all nodes were rejected has one: an extreme over more groups is
// at least as extreme, and the known node attains it. Where no such node is known, nodes of these groups are
// asked about until one fits or all are rejected; then the scores are computed again. The proof is in ADR 28.
func (c *Class) ChooseLazily(nominated []Nominated, lazy Lazy) (Choice, bool, error) {
	defer c.includeNominated(nominated)()
	w := &lazyWalk{
		class: c, ranking: &c.scratch, lazy: lazy, asked: map[NodeID]bool{},
		rejected: map[*bucket]int{}, rejectedIn: map[*group]int{}, accepted: map[*group]int{},
	}
	c.candidates(w.ranking)
	for w.rank() {
		node, found, err := w.best()
		if err != nil {
			return Choice{}, false, err
		}
		if !found {
			continue
		}
		settled, err := w.settle()
		if err != nil {
			return Choice{}, false, err
		}
		if settled {
			return Choice{Node: node, Fitting: w.fitting(), Groups: len(w.candidates)}, true, nil
		}
	}
	return Choice{}, false, nil
}

// lazyWalk is the state of one call of [Class.ChooseLazily].
type lazyWalk struct {
	*ranking
	class *Class
	lazy  Lazy
	// asked are the nodes asked about, and whether they were accepted.
	asked map[NodeID]bool
	// rejected and rejectedIn are the numbers of rejected nodes by bucket and by group, and accepted that of accepted
	// nodes.
	rejected   map[*bucket]int
	rejectedIn map[*group]int
	accepted   map[*group]int
}

// rank removes the candidates whose nodes are all rejected, and computes the scores of the others. It returns false
// if none is left.
func (w *lazyWalk) rank() bool {
	left := w.candidates[:0]
	for _, candidate := range w.candidates {
		candidate.count = candidate.group.count - w.rejectedIn[candidate.group]
		if candidate.count > 0 {
			candidate.top = w.top(candidate.group)
			left = append(left, candidate)
		}
	}
	w.candidates = left
	if len(left) == 0 {
		return false
	}
	w.class.total(w.ranking)
	return true
}

// top returns the bucket with the highest score of which not all nodes are rejected.
func (w *lazyWalk) top(g *group) *bucket {
	for i := len(g.buckets) - 1; i >= 0; i-- {
		if b := g.buckets[i]; b.count > w.rejected[b] {
			return b
		}
	}
	return nil
}

// best returns a random accepted node among those with the highest score; false if all of them are rejected.
func (w *lazyWalk) best() (NodeID, bool, error) {
	highest := int64(math.MinInt64)
	var tier []*bucket
	for i := range w.candidates {
		candidate := &w.candidates[i]
		if candidate.total > highest {
			highest, tier = candidate.total, tier[:0]
		}
		if candidate.total == highest {
			tier = append(tier, candidate.top)
		}
	}
	return w.draw(tier)
}

// draws is the number of nodes that are drawn from a list of buckets before all of their nodes are listed.
const draws = 32

// draw asks about random nodes of buckets until one is accepted. All accepted nodes of the buckets have the same
// probability, whether they were asked about before or not. It returns false if all are rejected.
func (w *lazyWalk) draw(buckets []*bucket) (NodeID, bool, error) {
	total := 0
	for _, b := range buckets {
		total += b.count
	}
	for range draws {
		number := rand.IntN(total)
		for _, b := range buckets {
			if number < b.count {
				node := w.class.nodeAt(b, number)
				if accepted, err := w.ask(b, node); accepted || err != nil {
					return node, accepted, err
				}
				break
			}
			number -= b.count
		}
	}
	type member struct {
		bucket *bucket
		node   NodeID
	}
	members := make([]member, 0, total)
	for _, b := range buckets {
		for _, node := range w.class.nodesIn(b) {
			members = append(members, member{b, node})
		}
	}
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, m := range members {
		if accepted, err := w.ask(m.bucket, m.node); accepted || err != nil {
			return m.node, accepted, err
		}
	}
	return 0, false, nil
}

// ask returns whether the filters accept a node of a bucket.
func (w *lazyWalk) ask(b *bucket, node NodeID) (bool, error) {
	if accepted, known := w.asked[node]; known {
		return accepted, nil
	}
	accepted, err := w.lazy.Ask(node)
	if err != nil {
		return false, err
	}
	w.asked[node] = accepted
	if accepted {
		w.accepted[b.group]++
	} else {
		w.rejected[b]++
		w.rejectedIn[b.group]++
	}
	return accepted, nil
}

// settle makes sure that the scores are those over the nodes that fit. It asks about nodes as far as necessary. It
// returns false if the scores have to be computed again, because all nodes of a group were rejected.
func (w *lazyWalk) settle() (bool, error) {
	if w.lazy.Sure {
		return true, nil
	}
	for _, decisive := range w.decisive() {
		if settled, err := w.confirm(decisive); !settled || err != nil {
			return settled, err
		}
	}
	if !w.countMatters() {
		return true, nil
	}
	return w.countAll()
}

// decisive returns lists of candidates. At least one candidate of each list must have a node that fits.
func (w *lazyWalk) decisive() (lists [][]*candidate) {
	add := func(has func(*candidate) bool) {
		var list []*candidate
		for i := range w.candidates {
			if has(&w.candidates[i]) {
				list = append(list, &w.candidates[i])
			}
		}
		lists = append(lists, list)
	}
	spec := &w.class.spec
	for term := range spec.Normalized {
		if spec.Normalized[term].Weight != 0 {
			raw := func(c *candidate) int64 { return c.group.raw[term] }
			_, most := w.extremes(raw)
			add(func(c *candidate) bool { return raw(c) == most })
		}
	}
	if len(spec.Prefer) > 0 {
		least, most := w.extremes(func(c *candidate) int64 { return c.affinity })
		add(func(c *candidate) bool { return c.affinity == least })
		add(func(c *candidate) bool { return c.affinity == most })
	}
	if len(spec.Soft) > 0 {
		w.decisiveForSpread(add)
	}
	return lists
}

// decisiveForSpread calls add for each property that the score of soft constraints depends on.
func (w *lazyWalk) decisiveForSpread(add func(has func(*candidate) bool)) {
	scored := func(c *candidate) bool { return !c.ignored }
	if !slices.ContainsFunc(w.candidates, func(c candidate) bool { return scored(&c) }) {
		return
	}
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	values := map[int]map[int32]bool{}
	for i := range w.candidates {
		c := &w.candidates[i]
		if !scored(c) {
			continue
		}
		least, most = min(least, c.spread), max(most, c.spread)
		for _, soft := range w.class.spec.Soft {
			if key := w.class.spec.Counters[soft.Counter].Key; key != HostKey {
				if values[key] == nil {
					values[key] = map[int32]bool{}
				}
				values[key][distinctValue(c.group.topology.Values[key])] = true
			}
		}
	}
	add(func(c *candidate) bool { return scored(c) && c.spread == least })
	add(func(c *candidate) bool { return scored(c) && c.spread == most })
	for key, present := range values {
		for value := range present {
			add(func(c *candidate) bool { return scored(c) && distinctValue(c.group.topology.Values[key]) == value })
		}
	}
}

// extremes returns the smallest and the largest value over all candidates.
func (w *lazyWalk) extremes(value func(*candidate) int64) (least, most int64) {
	least, most = math.MaxInt64, math.MinInt64
	for i := range w.candidates {
		v := value(&w.candidates[i])
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

// confirm makes sure that one of the candidates has a node that fits. It returns false if it found a candidate
// that has none.
func (w *lazyWalk) confirm(candidates []*candidate) (bool, error) {
	for _, c := range candidates {
		if w.accepted[c.group] > 0 {
			return true, nil
		}
	}
	for _, c := range candidates {
		for _, b := range slices.Backward(c.group.buckets) {
			if b.count == w.rejected[b] {
				continue
			}
			if _, accepted, err := w.draw([]*bucket{b}); accepted || err != nil {
				return accepted, err
			}
		}
		return false, nil
	}
	return true, nil
}

// countMatters reports whether the scores depend on how many of the nodes that were not asked about fit. This number is the
// weight of soft constraints with [HostKey]. A raw score grows with the weight. So if it is the same for the
// smallest and for the largest possible number, it is the same for all numbers between them.
func (w *lazyWalk) countMatters() bool {
	v := &w.class.view
	if !slices.ContainsFunc(v.spec.Soft, func(soft SoftSpread) bool { return v.spec.Counters[soft.Counter].Key == HostKey }) {
		return false
	}
	least, most := 0, 0
	for i := range w.candidates {
		if c := &w.candidates[i]; !c.ignored {
			least, most = least+w.accepted[c.group], most+c.count
		}
	}
	if least == most {
		return false
	}
	weights := v.spreadWeights(w.ranking, least)
	for i := range w.candidates {
		if c := &w.candidates[i]; !c.ignored && v.spread(c.group, weights) != c.spread {
			return true
		}
	}
	return false
}

// countAll asks about all nodes that were not asked about, unless there are too many. It returns false if some are
// rejected.
func (w *lazyWalk) countAll() (bool, error) {
	unknown := 0
	for i := range w.candidates {
		c := &w.candidates[i]
		unknown += c.count - w.accepted[c.group]
	}
	if unknown > w.lazy.MaxCounted {
		return false, ErrUncounted
	}
	settled := true
	for i := range w.candidates {
		for _, b := range w.candidates[i].group.buckets {
			for _, node := range w.class.nodesIn(b) {
				_, known := w.asked[node]
				accepted, err := w.ask(b, node)
				if err != nil {
					return false, err
				}
				settled = settled && (known || accepted)
			}
		}
	}
	return settled, nil
}

// fitting returns the number of nodes that are known to fit.
func (w *lazyWalk) fitting() (nodes int) {
	for i := range w.candidates {
		if c := &w.candidates[i]; w.lazy.Sure {
			nodes += c.count
		} else {
			nodes += w.accepted[c.group]
		}
	}
	return nodes
}

// nodesIn returns the nodes of a bucket.
func (c *Class) nodesIn(b *bucket) []NodeID {
	nodes := slices.Clone(b.nodes)
	for _, id := range b.states {
		for _, node := range c.x.states[id].nodes {
			if c.special[node] == nil {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}
