package index

// Spec is what the pods of a class want.
type Spec struct {
	Judge
	// Normalized are the terms of the score that [Verdict.Raw] has values for.
	Normalized []Normalized
	// Keys are the topology keys that counters refer to, apart from the host's.
	Keys []string
	// Counters count pods by the value of a topology key; at most [MaxCounters].
	Counters []Counter

	Hard []HardSpread
	Soft []SoftSpread
	// AllKeys says that a node without one of the keys of Soft gets no score from
	// them.
	AllKeys bool
	// SpreadWeight and AffinityWeight of what Soft and Prefer come to.
	SpreadWeight, AffinityWeight int64

	// Forbid are counters that must be zero where a pod goes; a node without the
	// key is free.
	Forbid []int
	// ForbidIfAny says that pods that are to come forbid nothing as long as no pod that
	// is there does, anywhere.
	ForbidIfAny bool
	// Require are counters that must not be zero where a pod goes, unless all of
	// them are zero everywhere and SelfMatch says that the pod would be the first
	// of those that it wants to be with.
	Require   []int
	SelfMatch bool
	// Prefer are counters that add up to a score.
	Prefer []int
}

// MaxCounters is the most counters that a class can have.
const MaxCounters = 64

// HostKey stands for the topology key of which each node has its own value.
const HostKey = -1

// Counter counts pods by the value of a topology key.
type Counter struct {
	// Key is an index into [Spec.Keys], or [HostKey].
	Key int
}

// Normalized is a term of the score that the largest value of it makes comparable.
type Normalized struct {
	Weight int64
	// Reverse means that small values are good.
	Reverse bool
}

// HardSpread forbids that one value of a key gets ahead of the others.
type HardSpread struct {
	Counter    int
	MaxSkew    int64
	MinDomains int
	// Self is one if the pod counts itself.
	Self int64
}

// SoftSpread prefers values of a key with few pods.
type SoftSpread struct {
	Counter int
	MaxSkew int64
}

// Judge knows what plugins say.
type Judge interface {
	// Verdict on the nodes of a state, of which slot is one.
	Verdict(slot Slot, state *State) (Verdict, error)
	// Facts about the nodes of a shape, of which there may be none any more.
	Facts(shape ShapeID) Facts
	// Amounts that a pod on a node adds to counters.
	Amounts(kind KindID) []Amount
	// Stale says that pods have come for which the class has no counters, so that it
	// has to be made anew.
	Stale() bool
	// Local is the part of the score, weighted, that follows from a profile, now.
	Local(profile int32) int64
}

// Verdict is what plugins that look at one node only say of it.
type Verdict struct {
	Fits bool
	// Static is the weighted score of plugins that do not compare nodes.
	Static int64
	// Raw are the values of [Spec.Normalized].
	Raw []int64
	// Profile of what is there for [Judge.Local].
	Profile int32
	// Refusal is the number of why the nodes do not fit.
	Refusal int32
}

// Facts are what counters have to know of a node without its pods.
type Facts struct {
	// Values of [Spec.Keys], numbered; 0 where the node has no such label.
	Values []int32
	// Host says whether the node has a value of its own for [HostKey].
	Host bool
	// Eligible has a bit for each counter that counts pods on such nodes.
	Eligible uint64
}

// EmptyValue is the number of the value "" of a topology key.
const EmptyValue = 1

// Amount is what is added to a counter.
type Amount struct {
	Counter int
	By      int64
}
