package index

// Spec has the requirements of a pod class. Its fields refer to counters by their position in Counters.
type Spec struct {
	// Judge evaluates plugins for the class.
	Judge
	// Normalized are the score terms that are normalized over all nodes. [Verdict.Raw] has
	// their raw values.
	Normalized []Normalized
	// Keys are the topology keys of counters, except [HostKey].
	Keys []string
	// Counters count pods by topology value. There are at most [MaxCounters]. Those of Hard and Soft come
	// first. There are at most [MaxSpreadCounters] of them.
	Counters []Counter

	// Hard are topology spread constraints with DoNotSchedule, Soft those with
	// ScheduleAnyway.
	Hard []HardSpread
	Soft []SoftSpread
	// RequireAllKeys is true if a node gets a score for Soft only if it has all topology keys of Soft.
	RequireAllKeys bool
	// SpreadWeight and AffinityWeight are the weights of the scores of Soft and Prefer.
	SpreadWeight, AffinityWeight int64

	// Forbid are the counters of required anti-affinity: they must be zero for the node's topology
	// values. A node without the topology key satisfies them.
	Forbid []int
	// ForbidIfAny: if true, nominated pods are ignored for Forbid while no running pod in the cluster
	// counts for Forbid. kube-scheduler's InterPodAffinity does the same.
	ForbidIfAny bool
	// Require are the counters of required affinity: they must be above zero for the node's topology
	// values. If all of them are zero in the whole cluster and SelfMatch is true, the pod is the
	// first one that matches its own terms, and may run on any node that has the keys.
	Require   []int
	SelfMatch bool
	// Prefer are the counters of preferred affinity. Their sum is the raw score.
	Prefer []int
}

const (
	// MaxSpreadCounters is the maximal number of counters of spread constraints: the bits of
	// [Topology.Eligible].
	MaxSpreadCounters = 64
	// MaxCounters is the maximal number of counters of a class. Affinity terms of other pods add counters, so
	// it is far above the number of labels that nodes have in practice.
	MaxCounters = 1 << 14
)

// HostKey represents the topology key hostname, whose value is different on each node.
const HostKey = -1

// Counter counts pods by topology value.
type Counter struct {
	// Key is an index into [Spec.Keys], or [HostKey].
	Key int
}

// Normalized is a score term that is divided by its largest raw score over all fitting nodes.
type Normalized struct {
	Weight int64
	// Reverse is true if a smaller raw score is better.
	Reverse bool
}

// HardSpread is a topology spread constraint that must be satisfied.
type HardSpread struct {
	Counter    int
	MaxSkew    int64
	MinDomains int
	// Self is 1 if the pod matches its own constraint, otherwise 0.
	Self int64
}

// SoftSpread is a topology spread constraint that is a preference.
type SoftSpread struct {
	Counter int
	MaxSkew int64
}

// Judge evaluates the plugins for the pods of one class.
type Judge interface {
	// Verdict returns the verdict on a node state. node is one of the nodes in this state.
	Verdict(node NodeID, state *State) (Verdict, error)
	// Topology returns the topology of the nodes of a shape. It may be called for a shape that no
	// node has any more.
	Topology(shape ShapeID) Topology
	// Amounts returns the amounts that a running pod of a kind adds to the counters.
	Amounts(kind KindID) []Amount
	// Stale reports whether the Spec is outdated, for example because there are now pods whose affinity
	// terms need a counter that the class does not have. Then the class must be replaced by one with a
	// new Spec.
	Stale() bool
	// ImageScore returns the current weighted score of an image set (see [Verdict.ImageSet]).
	ImageScore(imageSet int32) int64
}

// Verdict is the result of the plugins that read only one node.
type Verdict struct {
	// Fits is true if all filters accept the node.
	Fits bool
	// Static is the weighted sum of the scores that do not depend on other nodes.
	Static int64
	// Raw are the raw scores of [Spec.Normalized].
	Raw []int64
	// ImageSet is the number of the node's image set: which of the pod's images the node has (see
	// [Judge.ImageScore]).
	ImageSet int32
	// Refusal is an ID of the reason why the node does not fit. The implementation of Judge assigns the
	// IDs.
	Refusal int32
}

// Topology has the topology values of a node and the counters that count its pods.
type Topology struct {
	// Values are the IDs of the node's label values for [Spec.Keys]; 0 for a missing label.
	Values []int32
	// Host is true if the node has a hostname label (see [HostKey]).
	Host bool
	// Eligible has one bit for each of the first [MaxSpreadCounters] counters. The bit is set if the counter
	// counts pods on this node. All further counters do.
	Eligible uint64
}

// counts returns whether a counter counts pods on the node.
func (t *Topology) counts(counter int) bool {
	return counter >= MaxSpreadCounters || t.Eligible&(1<<counter) != 0
}

// EmptyValue is the number of the label value "".
const EmptyValue = 1

// Amount is a number that is added to a counter.
type Amount struct {
	Counter int
	By      int64
}
