package index

import "slices"

// view is the input of a query: node groups and counters. They come from one index ([Class]) or from
// several ([Merged]). The code of queries is the same for both.
type view struct {
	spec   Spec
	groups map[string]*group
	list   []*group
	// buckets are the buckets of all groups, by bucketID; buckets[0] is nil.
	buckets  []*bucket
	counters []counter

	// scratch and groupKey are buffers that queries reuse.
	scratch  ranking
	groupKey []byte
}

// counter has the counts of a [Counter].
type counter struct {
	byValue map[int32]*tally
	// total is the sum of the counts of all values.
	total int64
	// For HostKey, hosts is the number of eligible nodes with a hostname label, and histogram has
	// the number of special nodes with each count.
	hosts     int
	histogram map[int64]int
}

// tally is the count of pods for one topology value, and the number of eligible nodes with
// that value.
type tally struct {
	count int64
	nodes int32
}

// newView returns an empty view.
func newView(spec Spec) view {
	v := view{spec: spec, groups: map[string]*group{}, buckets: []*bucket{nil}, counters: make([]counter, len(spec.Counters))}
	for i := range v.counters {
		v.counters[i] = counter{byValue: map[int32]*tally{}, histogram: map[int64]int{}}
	}
	return v
}

// Spec returns the Spec of the class.
func (v *view) Spec() *Spec { return &v.spec }

// at returns the tally of a value and creates it if necessary.
func (c *counter) at(value int32) *tally {
	t := c.byValue[value]
	if t == nil {
		t = &tally{}
		c.byValue[value] = t
	}
	return t
}

// record adds nodes with a count to the histogram.
func (c *counter) record(count int64, nodes int) {
	if c.histogram[count] += nodes; c.histogram[count] == 0 {
		delete(c.histogram, count)
	}
}

// hardHosts returns the counters with HostKey that belong to a hard constraint and whose histograms include
// nodes with this topology.
func (v *view) hardHosts(topology *Topology) []int {
	var counters []int
	for _, hard := range v.spec.Hard {
		i := hard.Counter
		if v.spec.Counters[i].Key == HostKey && topology.Host && topology.counts(i) {
			counters = append(counters, i)
		}
	}
	return counters
}

// anyCount reports whether a count is not zero.
func anyCount(counts []int64) bool {
	return slices.ContainsFunc(counts, func(count int64) bool { return count != 0 })
}
