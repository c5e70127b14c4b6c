package index

import "sort"

// group is a node group: nodes with the same filter results, raw scores, topology and
// counts for the class.
type group struct {
	key      string
	raw      []int64
	imageSet int32
	topology *Topology
	// host has the counts of the counters with HostKey on each node of the group, by counter. extra
	// has the numbers that nominated pods add to the counters. nil means that all are zero.
	host, extra []int64
	// count is the number of nodes.
	count int
	// buckets are sorted by static score, lowest first.
	buckets []*bucket
}

// bucketID is the number of a bucket in a class.
type bucketID int32

// bucket is a score bucket: the nodes of a group with one static score.
type bucket struct {
	id     bucketID
	group  *group
	static int64
	count  int
	// states are the states whose ordinary nodes are in the bucket.
	states []StateID
	// nodes are the special nodes in the bucket.
	nodes []NodeID
	// offers are the offered nodes of other indexes. Only [Merged] uses them.
	offers []Offer
}

// groupFor returns the group with the given properties. It creates the group if necessary.
func (v *view) groupFor(raw []int64, imageSet int32, topology *Topology, host, extra []int64) *group {
	key := appendGroup(v.groupKey[:0], raw, imageSet, topology, host, extra)
	v.groupKey = key
	g := v.groups[string(key)]
	if g == nil {
		g = &group{
			key: string(key), raw: append([]int64(nil), raw...), imageSet: imageSet, topology: topology,
			host: append([]int64(nil), host...), extra: append([]int64(nil), extra...),
		}
		v.groups[g.key] = g
		v.list = append(v.list, g)
	}
	return g
}

// bucketOf returns the bucket of a group for a static score. It creates the bucket if necessary.
func (v *view) bucketOf(g *group, static int64) *bucket {
	i := sort.Search(len(g.buckets), func(i int) bool { return g.buckets[i].static >= static })
	if i < len(g.buckets) && g.buckets[i].static == static {
		return g.buckets[i]
	}
	b := &bucket{id: bucketID(len(v.buckets)), group: g, static: static}
	v.buckets = append(v.buckets, b)
	g.buckets = append(g.buckets, nil)
	copy(g.buckets[i+1:], g.buckets[i:])
	g.buckets[i] = b
	return b
}

// add adds to the numbers of nodes of the bucket and its group.
func (b *bucket) add(count int32) {
	b.count += int(count)
	b.group.count += int(count)
}

// top returns the non-empty bucket with the highest score; nil if all are empty.
func (g *group) top() *bucket {
	for i := len(g.buckets) - 1; i >= 0; i-- {
		if g.buckets[i].count > 0 {
			return g.buckets[i]
		}
	}
	return nil
}

// hostCount returns the count of a counter with HostKey on each node of the group.
func (g *group) hostCount(counter int) int64 {
	if len(g.host) == 0 {
		return 0
	}
	return g.host[counter]
}

// renumber updates StateIDs after [Index.sweep]. It returns false if the group is empty.
func (g *group) renumber(numbers []StateID) bool {
	kept := g.buckets[:0]
	for _, b := range g.buckets {
		for i, id := range b.states {
			b.states[i] = numbers[id]
		}
		b.states = dropNone(b.states)
		if len(b.states) > 0 || len(b.nodes) > 0 {
			kept = append(kept, b)
		}
	}
	clear(g.buckets[len(kept):])
	g.buckets = kept
	return len(kept) > 0
}
