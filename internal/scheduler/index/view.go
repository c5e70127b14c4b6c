package index

import "slices"

// view is what a query looks at: groups of nodes, and counts of pods. Where it comes
// from, of one index or of many, makes no difference.
type view struct {
	spec   Spec
	groups map[string]*group
	list   []*group
	// buckets of all groups, by number; there is none with the number 0.
	buckets  []*bucket
	counters []counter

	scratch  ranking
	groupKey []byte
}

// counter is the state of a [Counter].
type counter struct {
	byValue map[int32]*tally
	// total of all values, and of all hosts.
	total int64
	// hosts are the eligible nodes with a value of their own, if the key is the host's,
	// and histogram the counts of those that are special.
	hosts     int
	histogram map[int64]int
}

// tally is the count for one value of a key, and the eligible nodes that have it.
type tally struct {
	count int64
	nodes int32
}

func newView(spec Spec) view {
	v := view{spec: spec, groups: map[string]*group{}, buckets: []*bucket{nil}, counters: make([]counter, len(spec.Counters))}
	for i := range v.counters {
		v.counters[i] = counter{byValue: map[int32]*tally{}, histogram: map[int64]int{}}
	}
	return v
}

// Spec is what the view was made for.
func (v *view) Spec() *Spec { return &v.spec }

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

// hardHosts are the counters of hosts whose histograms count nodes with some facts.
func (v *view) hardHosts(facts *Facts) []int {
	var counters []int
	for _, hard := range v.spec.Hard {
		i := hard.Counter
		if v.spec.Counters[i].Key == HostKey && facts.Host && facts.Eligible&(1<<i) != 0 {
			counters = append(counters, i)
		}
	}
	return counters
}

func anyCount(counts []int64) bool {
	return slices.ContainsFunc(counts, func(count int64) bool { return count != 0 })
}
