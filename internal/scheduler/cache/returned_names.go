package cache

// Names are never removed one by one. When there are too many, the index is rebuilt, and only those return that are in
// use: those of nodes and pods at once, and those of classes, and of answers of other replicas, when they are used
// again. A cluster may have more names in use than usual: one pod can have 55,000 selector keys, and each node may have
// labels of its own to which classes refer. So what returns soon after a rebuild raises the limit. Otherwise the names
// in use would cause the next rebuild at once, and so on.

const (
	// spareNames is the default of Cluster.SpareNames: the usual limit is twice the number of nodes and pods plus this
	// number. Beyond it, most names are usually unused.
	spareNames = 100_000
	// returnCycles is the default of Cluster.ReturnCycles: the number of scheduling cycles after a rebuild in which
	// names count as returned. The index is rebuilt at most once in that many cycles. Names that are new in these cycles
	// count as well, so anybody who creates pods with many names can make unused ones occupy some memory: 100 pods of
	// 1 MB have 5.5 million names.
	returnCycles = 100
)

// returnedNames finds out how many names are in use.
type returnedNames struct {
	// cycles is the number of cycles since the index was rebuilt, until names count as returned no longer. limit is
	// twice the number of names that have returned.
	cycles, limit int
}

// exceeded counts a cycle that ends with a number of names, and returns whether the index must be rebuilt. usual is the
// usual limit, and cycles the number of cycles in which names return.
func (r *returnedNames) exceeded(names, usual, cycles int) bool {
	if r.cycles < cycles {
		r.cycles++
		r.limit = max(r.limit, 2*names)
		return false
	}
	if names <= max(usual, r.limit) {
		return false
	}
	*r = returnedNames{}
	return true
}
