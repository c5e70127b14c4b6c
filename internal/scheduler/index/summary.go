package index

import (
	"math/rand/v2"
	"slices"
)

// Summary describes the nodes of an index for one class, so that they can be compared with nodes of other
// indexes. It contains no total scores, because normalization depends on the nodes of all indexes. Its
// parts are encoded as CBOR arrays without field names.
type Summary struct {
	// Nodes is the number of all nodes, fitting or not.
	Nodes    int
	Groups   []GroupSummary
	Counters []CounterSummary
}

// GroupSummary describes a node group.
type GroupSummary struct {
	_        struct{} `cbor:",toarray"`
	Raw      []int64
	ImageSet int32
	Topology Topology
	// Host has the counts of the counters whose topology key is the hostname ([HostKey]); nil means that all are zero.
	Host []int64
	// Extra has the numbers that nominated pods add to the counters; nil means that all are zero.
	Extra []int64
	// Count is the number of nodes. The static score of nodes that are not in Tiers is at most
	// Floor.
	Count int
	Floor int64
	Tiers []Tier
}

// Tier is a score bucket of a group: nodes with one static score. The tiers of a group are sorted by
// static score, highest first.
type Tier struct {
	_      struct{} `cbor:",toarray"`
	Static int64
	Count  int
	// Offers are some of the nodes, chosen at random.
	Offers []Offer
}

// Offer is a node, with predictions for further pods of the class on it.
type Offer struct {
	_ struct{} `cbor:",toarray"`
	// Part is the number of the index that the node belongs to. The caller sets it before it merges
	// summaries of several indexes.
	Part int
	Node NodeID
	// Steps are the predicted verdicts on the node with one, two, … more pods of the class.
	Steps []Step
	// taken is the number of steps used so far.
	taken int
}

// Step is the verdict on a node with one more pod of the class.
type Step struct {
	_      struct{} `cbor:",toarray"`
	Fits   bool
	Static int64
}

// CounterSummary describes the counts of a [Counter].
type CounterSummary struct {
	_      struct{} `cbor:",toarray"`
	Values []ValueCount
	Total  int64
	// Hosts and Histogram are set for a counter with [HostKey]. Hosts is the number of nodes that have a
	// hostname label and on which the counter counts pods ([Topology.Eligible]). Histogram has, for each
	// count, the number of nodes with that count. It omits nodes on which all counters of the class are 0.
	Hosts     int
	Histogram []HostCount
}

// ValueCount is the number of counted pods and of eligible nodes for one topology value.
type ValueCount struct {
	_     struct{} `cbor:",toarray"`
	Value int32
	Count int64
	Nodes int32
}

// HostCount is the number of nodes on which a counter has the value Count.
type HostCount struct {
	_     struct{} `cbor:",toarray"`
	Count int64
	Nodes int
}

// Stepper is a [Judge] that can predict the verdicts on a node after more pods of the class are placed on
// it.
type Stepper interface {
	// Steps predicts the verdicts on a node in a state with one, two, … more pods of the class. It
	// returns at most limit steps, and fewer if further ones cannot be predicted.
	Steps(node NodeID, state *State, limit int) ([]Step, error)
}

// PerNodeJudge is a [Judge] for which the topology of a node can differ from that of its shape.
// [Judge.Stale] must return true after each query, so that the next query makes a new class.
type PerNodeJudge interface {
	// TopologyAt returns the topology of a node. It returns false if the topology is that of the
	// node's shape.
	TopologyAt(node NodeID) (Topology, bool)
}

// Summarize returns the summary of all nodes and takes nominated pods into account. The
// parameter offers limits the number of offered nodes of each group, and steps the number of steps of each
// offered node.
func (c *Class) Summarize(nominated []Nominated, offers, steps int) (Summary, error) {
	defer c.includeNominated(nominated)()
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
			for _, node := range c.some(b, left) {
				offer, err := c.offerOf(node, steps)
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

// SummarizeOnly returns a summary whose groups contain only one node, if the node fits. The counters are
// those of all nodes.
func (c *Class) SummarizeOnly(node NodeID, nominated []Nominated, steps int) (Summary, error) {
	defer c.includeNominated(nominated)()
	s := c.Counts()
	b := c.bucketAt(node)
	if b == nil {
		return s, nil
	}
	offer, err := c.offerOf(node, steps)
	group := b.group.summary()
	group.Count, group.Tiers = 1, []Tier{{Static: b.static, Count: 1, Offers: []Offer{offer}}}
	s.Groups = []GroupSummary{group}
	return s, err
}

// SummarizeEach returns a summary whose groups contain the given nodes. It calls verdict for each node
// instead of using the verdict on its state. The summary offers one of the best nodes of each group. The
// counters are those of all nodes.
func (c *Class) SummarizeEach(nodes []NodeID, nominated []Nominated, verdict func(NodeID) (Verdict, error)) (Summary, error) {
	defer c.includeNominated(nominated)()
	s := c.Counts()
	numbers := map[string]int{}
	for _, node := range nodes {
		v, err := verdict(node)
		if err != nil {
			return s, err
		}
		if !v.Fits {
			continue
		}
		g := GroupSummary{Raw: v.Raw, ImageSet: v.ImageSet, Topology: *c.topologyAt(node)}
		if special := c.special[node]; special != nil {
			g.Host, g.Extra = slices.Clone(special.host), special.extra
		}
		key := string(g.appendKey(nil))
		number, known := numbers[key]
		if !known {
			number = len(s.Groups)
			numbers[key] = number
			s.Groups = append(s.Groups, g)
		}
		s.Groups[number].addNode(node, v.Static)
	}
	return s, nil
}

// addNode adds a node to the group. The group offers one of its best nodes, with equal probability.
func (g *GroupSummary) addNode(node NodeID, static int64) {
	g.Count++
	if len(g.Tiers) == 0 || static > g.Tiers[0].Static {
		g.Floor = static
		g.Tiers = []Tier{{Static: static, Count: 1, Offers: []Offer{{Node: node}}}}
		return
	}
	if best := &g.Tiers[0]; static == best.Static {
		best.Count++
		if rand.IntN(best.Count) == 0 {
			best.Offers[0].Node = node
		}
	}
}

// Counts returns a summary with the counters, but without groups.
func (c *Class) Counts() Summary {
	s := Summary{Nodes: c.x.count, Counters: make([]CounterSummary, len(c.counters))}
	for i := range c.counters {
		s.Counters[i] = c.counters[i].summary()
	}
	return s
}

// summary returns the description of a group without tiers.
func (g *group) summary() GroupSummary {
	return GroupSummary{Raw: g.raw, ImageSet: g.imageSet, Topology: *g.topology, Host: g.host, Extra: g.extra, Count: g.count}
}

// summary returns the description of a counter.
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

// offerOf returns the offer of a node. A node with nominated pods has no steps, because these pods affect
// the verdicts.
func (c *Class) offerOf(node NodeID, steps int) (offer Offer, err error) {
	offer.Node = node
	if s := c.special[node]; s != nil && s.extra != nil {
		return offer, nil
	}
	if stepper, ok := c.spec.Judge.(Stepper); ok && steps > 0 {
		offer.Steps, err = stepper.Steps(node, &c.x.states[c.x.nodes[node].state].State, steps)
	}
	return offer, err
}

// some returns nodes of a bucket, starting at a random position. The parameter most limits their number.
func (c *Class) some(b *bucket, most int) []NodeID {
	if most == 1 {
		return []NodeID{c.nodeAt(b, rand.IntN(b.count))}
	}
	found := make([]NodeID, 0, min(most, b.count))
	take := func(nodes []NodeID, skipSpecial bool) {
		if len(nodes) == 0 {
			return
		}
		start := rand.IntN(len(nodes))
		for i := 0; i < len(nodes) && len(found) < most; i++ {
			node := nodes[(start+i)%len(nodes)]
			if !skipSpecial || c.special[node] == nil {
				found = append(found, node)
			}
		}
	}
	take(b.nodes, false)
	if len(b.states) > 0 {
		start := rand.IntN(len(b.states))
		for i := 0; i < len(b.states) && len(found) < most; i++ {
			id := b.states[(start+i)%len(b.states)]
			take(c.x.states[id].nodes, int(c.entries[id].count) < len(c.x.states[id].nodes))
		}
	}
	return found
}

// NodeCounts returns the topology and the counts of one node. Within [Class.WithNominated], the counts
// include nominated pods.
func (c *Class) NodeCounts(node NodeID) NodeCounts {
	s := NodeCounts{Topology: *c.topologyAt(node)}
	if special := c.special[node]; special != nil {
		s.Host, s.Extra = slices.Clone(special.host), special.extra
	}
	return s
}

// WithNominated calls f while the class takes nominated pods into account.
func (c *Class) WithNominated(nominated []Nominated, f func()) {
	defer c.includeNominated(nominated)()
	f()
}

// RefusalOf returns why plugins that read only one node reject a node, as the ID of a reason
// ([Verdict.Refusal]). It returns false if they accept it.
func (c *Class) RefusalOf(node NodeID) (int32, bool) {
	e := &c.entries[c.x.nodes[node].state]
	return e.refusal, e.known && e.bucket == 0
}
