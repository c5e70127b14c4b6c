package index

import "slices"

// Class is a pod class: pods that every plugin treats alike, with the verdicts on all states
// and the counters for topology constraints.
type Class struct {
	view
	x   *Index
	key string
	// cursor is the number of the first change in the log that the class has not read.
	cursor int64
	// used is the value of Index.clock at the last use. usedAgain is true after the second use.
	used      int64
	usedAgain bool

	// entries are indexed by StateID.
	entries []entry
	// unjudged are states that have nodes but no verdict yet.
	unjudged []StateID
	// last has, for each shape, the group of the most recently evaluated state.
	last map[ShapeID]*group
	// special are the nodes that differ from the other nodes of their state for this class, because
	// counters with HostKey count pods on them, or because nominated pods count on them.
	special map[NodeID]*special
	// unplaced are the special nodes that settle must assign to a bucket.
	unplaced   []NodeID
	topologies map[ShapeID]*Topology
	amounts    map[KindID][]Amount
	// failure is the error of a verdict. If it is set, the class cannot be used.
	failure error
}

// entry is the verdict of a class on a state. It has no pointers: there are many entries, and the garbage
// collector would scan them.
type entry struct {
	// bucket is 0 if the nodes do not fit or the verdict is unknown.
	bucket bucketID
	// count is the number of ordinary nodes in the state.
	count int32
	// refusal is [Verdict.Refusal] if the nodes do not fit.
	refusal int32
	// known is true if the verdict was computed.
	known bool
}

// special is a special node of a class.
type special struct {
	state  StateID
	bucket *bucket
	// position is the index in the nodes of the bucket.
	position int32
	// waiting is true if the node is in unplaced.
	waiting bool
	// host has the counts of the counters with HostKey on this node, by counter. extra has the
	// numbers that nominated pods add to all counters; nil without nominated pods.
	host, extra []int64
	// counted are the counters whose histograms include this node.
	counted []int
}

// rebuild computes the class from the current nodes.
func (c *Class) rebuild() {
	x := c.x
	*c = Class{
		view: newView(c.spec),
		x:    x, key: c.key, used: c.used, usedAgain: c.usedAgain, cursor: x.log.end(),
		entries:    make([]entry, len(x.states)),
		unjudged:   make([]StateID, 0, x.States()),
		last:       map[ShapeID]*group{},
		special:    map[NodeID]*special{},
		topologies: map[ShapeID]*Topology{},
		amounts:    map[KindID][]Amount{},
	}
	for id := range x.states {
		c.addOrdinary(StateID(id), int32(len(x.states[id].nodes)))
	}
	if len(c.spec.Counters) == 0 {
		return
	}
	for node := range x.nodes {
		n := &x.nodes[node]
		if n.state == None {
			continue
		}
		topology := c.topologyAt(NodeID(node))
		c.countNode(topology, 1)
		for _, kind := range n.kinds {
			c.countPod(NodeID(node), n.state, topology, kind, 1)
		}
	}
}

// catchUp applies the changes since the last use of the class.
func (c *Class) catchUp() {
	changes, complete := c.x.log.since(c.cursor)
	if !complete {
		c.rebuild()
		return
	}
	for len(c.entries) < len(c.x.states) {
		c.entries = append(c.entries, entry{})
	}
	for i := range changes {
		change := &changes[i]
		if change.delta == 0 {
			c.applyMove(change)
		} else if len(c.counters) > 0 {
			c.countPod(change.node, change.to, c.topologyOf(c.x.states[change.to].Shape), change.kind, int64(change.delta))
		}
	}
	c.cursor = c.x.log.end()
}

// applyMove applies a change of a node's state.
func (c *Class) applyMove(change *change) {
	c.recount(change)
	s := c.special[change.node]
	switch {
	case s == nil:
		if change.from != None {
			c.addOrdinary(change.from, -1)
		}
		if change.to != None {
			c.addOrdinary(change.to, 1)
		}
	case change.to == None:
		c.unplace(s)
		delete(c.special, change.node)
	default:
		s.state = change.to
		c.markUnplaced(change.node, s)
	}
}

// recount moves the pods of a node from the topology values of its old labels to those of its new labels,
// if its shape has changed.
func (c *Class) recount(change *change) {
	if len(c.counters) == 0 {
		return
	}
	if change.from != None && change.to != None && c.x.states[change.from].Shape == c.x.states[change.to].Shape {
		return
	}
	if change.from != None {
		topology := c.topologyOf(c.x.states[change.from].Shape)
		c.countNode(topology, -1)
		for _, kind := range change.kinds {
			c.countPod(change.node, change.from, topology, kind, -1)
		}
	}
	if change.to != None {
		topology := c.topologyOf(c.x.states[change.to].Shape)
		c.countNode(topology, 1)
		// change.kinds is set for changed and removed nodes. A changed node keeps its pods.
		if change.from != None {
			for _, kind := range change.kinds {
				c.countPod(change.node, change.from, topology, kind, 1)
			}
		}
	}
}

// addOrdinary adds to the number of ordinary nodes of a state.
func (c *Class) addOrdinary(id StateID, by int32) {
	e := &c.entries[id]
	e.count += by
	switch {
	case e.bucket != 0:
		c.buckets[e.bucket].add(by)
	case !e.known && e.count > 0:
		c.unjudged = append(c.unjudged, id)
	}
}

// countNode adds a node to the numbers of eligible nodes of its topology values, or removes it if by is -1.
func (c *Class) countNode(topology *Topology, by int32) {
	for i, spec := range c.spec.Counters {
		switch {
		case !topology.counts(i):
		case spec.Key == HostKey && topology.Host:
			c.counters[i].hosts += int(by)
		case spec.Key != HostKey && topology.Values[spec.Key] != 0:
			c.counters[i].at(topology.Values[spec.Key]).nodes += by
		}
	}
}

// countPod adds a pod on a node to the counters, or removes it if by is -1.
func (c *Class) countPod(node NodeID, state StateID, topology *Topology, kind KindID, by int64) {
	amounts, ok := c.amounts[kind]
	if !ok {
		amounts = c.spec.Amounts(kind)
		c.amounts[kind] = amounts
	}
	if len(amounts) == 0 {
		return
	}
	var s *special
	for _, amount := range amounts {
		i := amount.Counter
		switch key := c.spec.Counters[i].Key; {
		case key == HostKey:
			if s == nil {
				s = c.beginCount(node, state)
			}
			s.host[i] += by * amount.By
			if topology.Host {
				c.counters[i].total += by * amount.By
			}
		case topology.counts(i) && topology.Values[key] != 0:
			c.counters[i].at(topology.Values[key]).count += by * amount.By
			c.counters[i].total += by * amount.By
		}
	}
	if s != nil {
		c.endCount(node, s, topology)
	}
}

// beginCount prepares a change of the counts of a node: it makes the node special and removes it from the
// histograms.
func (c *Class) beginCount(node NodeID, state StateID) *special {
	s := c.markSpecial(node, state)
	for _, i := range s.counted {
		c.counters[i].record(s.host[i], -1)
	}
	s.counted = nil
	return s
}

// endCount completes a change of the counts of a node. A node with counts is added to the histograms and
// remains special; a node without counts becomes ordinary.
func (c *Class) endCount(node NodeID, s *special, topology *Topology) {
	if c.unmarkSpecial(node, s) {
		return
	}
	s.counted = c.hardHosts(topology)
	for _, i := range s.counted {
		c.counters[i].record(s.host[i], 1)
	}
	c.markUnplaced(node, s)
}

// markSpecial makes a node special, unless it already is.
func (c *Class) markSpecial(node NodeID, state StateID) *special {
	s := c.special[node]
	if s == nil {
		s = &special{state: state, host: make([]int64, len(c.counters))}
		c.special[node] = s
		c.addOrdinary(state, -1)
	}
	return s
}

// unmarkSpecial makes a special node ordinary. It returns false if the node has counts or nominated pods
// and therefore remains special.
func (c *Class) unmarkSpecial(node NodeID, s *special) bool {
	if anyCount(s.host) || s.extra != nil {
		return false
	}
	c.unplace(s)
	delete(c.special, node)
	c.addOrdinary(s.state, 1)
	return true
}

// markUnplaced removes a special node from its bucket. settle will assign a new bucket.
func (c *Class) markUnplaced(node NodeID, s *special) {
	c.unplace(s)
	if !s.waiting {
		s.waiting = true
		c.unplaced = append(c.unplaced, node)
	}
}

// unplace removes a special node from its bucket.
func (c *Class) unplace(s *special) {
	b := s.bucket
	if b == nil {
		return
	}
	last := len(b.nodes) - 1
	moved := b.nodes[last]
	b.nodes[s.position] = moved
	c.special[moved].position = s.position
	b.nodes = b.nodes[:last]
	b.add(-1)
	s.bucket = nil
}

// settle computes missing verdicts and assigns special nodes to buckets.
func (c *Class) settle() {
	for _, id := range c.unjudged {
		c.judge(id)
	}
	c.unjudged = c.unjudged[:0]
	for _, node := range c.unplaced {
		s := c.special[node]
		if s == nil || !s.waiting {
			continue
		}
		s.waiting = false
		e := c.judge(s.state)
		if e == nil || e.bucket == 0 {
			continue
		}
		ordinary := c.buckets[e.bucket]
		base := ordinary.group
		b := c.bucketOf(c.groupFor(base.raw, base.imageSet, base.topology, s.host, s.extra), ordinary.static)
		s.bucket, s.position = b, int32(len(b.nodes))
		b.nodes = append(b.nodes, node)
		b.add(1)
	}
	c.unplaced = c.unplaced[:0]
}

// judge returns the entry of a state. It computes the verdict if necessary. It returns nil if the state
// has no nodes or the verdict returned an error.
func (c *Class) judge(id StateID) *entry {
	e := &c.entries[id]
	if e.known {
		return e
	}
	state := &c.x.states[id]
	if len(state.nodes) == 0 {
		return nil
	}
	verdict, err := c.spec.Verdict(state.nodes[0], &state.State)
	if err != nil {
		c.failure = err
		return nil
	}
	e.known, e.refusal = true, verdict.Refusal
	if verdict.Fits {
		b := c.bucketOf(c.ordinaryGroup(state.Shape, &verdict), verdict.Static)
		b.states = append(b.states, id)
		b.add(e.count)
		e.bucket = b.id
	}
	return e
}

// ordinaryGroup returns the group of the ordinary nodes with a verdict. This is nearly always the group of
// the state of the same shape that was evaluated last.
func (c *Class) ordinaryGroup(shape ShapeID, verdict *Verdict) *group {
	g := c.last[shape]
	if g == nil || g.imageSet != verdict.ImageSet || !slices.Equal(g.raw, verdict.Raw) {
		g = c.groupFor(verdict.Raw, verdict.ImageSet, c.topologyOf(shape), nil, nil)
		c.last[shape] = g
	}
	return g
}

// topologyAt returns the topology of a node, which may differ from that of its shape.
func (c *Class) topologyAt(node NodeID) *Topology {
	if perNode, ok := c.spec.Judge.(PerNodeJudge); ok {
		if topology, own := perNode.TopologyAt(node); own {
			return &topology
		}
	}
	return c.topologyOf(c.x.states[c.x.nodes[node].state].Shape)
}

// topologyOf returns the topology of a shape.
func (c *Class) topologyOf(shape ShapeID) *Topology {
	topology := c.topologies[shape]
	if topology == nil {
		found := c.spec.Topology(shape)
		topology = &found
		c.topologies[shape] = topology
	}
	return topology
}

// renumber updates StateIDs after [Index.sweep]. The class must have read all changes.
func (c *Class) renumber(numbers []StateID) {
	for _, s := range c.special {
		s.state = numbers[s.state]
	}
	for i, id := range c.unjudged {
		c.unjudged[i] = numbers[id]
	}
	c.unjudged = dropNone(c.unjudged)
	clear(c.last)
	buckets := []*bucket{nil}
	kept := c.list[:0]
	for _, g := range c.list {
		if g.renumber(numbers) {
			kept = append(kept, g)
			buckets = append(buckets, g.buckets...)
		} else {
			delete(c.groups, g.key)
		}
	}
	clear(c.list[len(kept):])
	c.list = kept
	entries := make([]entry, len(c.x.states))
	for old, id := range numbers {
		if id != None && old < len(c.entries) {
			entries[id] = c.entries[old]
		}
	}
	c.buckets = buckets
	for number, b := range buckets[1:] {
		b.id = bucketID(number + 1)
		for _, id := range b.states {
			entries[id].bucket = b.id
		}
	}
	c.entries = entries
	c.cursor = c.x.log.end()
}

// dropNone removes None from ids in place.
func dropNone(ids []StateID) []StateID {
	kept := ids[:0]
	for _, id := range ids {
		if id != None {
			kept = append(kept, id)
		}
	}
	return kept
}
