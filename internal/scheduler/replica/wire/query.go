// Package wire is the protocol between replicas of the scheduler. Queries and answers are forwarded along
// a tree of replicas. Batches of changes are sent over ordered one-way connections (links). Messages are
// CBOR over gRPC. Package index defines the summaries inside answers. This package knows no plugins.
package wire

import (
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Query is the content of a query: which nodes are best for pods of a class.
type Query struct {
	// Pod is one pod of the class, in the API's protobuf encoding. Profile is the name of
	// its scheduler profile.
	Pod     []byte
	Profile string
	// TermKeys are the topology keys, from affinity terms of existing pods, by which pods are
	// counted in addition to the keys in the pod's own terms.
	TermKeys TermKeys
	// Offers is the maximal number of nodes offered from each group. Steps is the maximal
	// number of further pods for which the state of each offer is predicted.
	Offers, Steps int
	// Node restricts the query to one node; "" means all nodes.
	Node string
	// Reasons requests the reasons for which nodes do not fit.
	Reasons bool
	// NodeByNode requests that the plugins check each node, because the pod has requirements that
	// the index does not support. Exclude are the names of nodes that are known not to fit.
	NodeByNode bool     `cbor:",omitempty"`
	Exclude    []string `cbor:",omitempty"`
	// InUse is true if the leader knows from a previous answer that another pod uses a claim of
	// this pod.
	InUse bool `cbor:",omitempty"`
	// IncludeNode requests the node object and its pods. It requires Node.
	IncludeNode bool `cbor:",omitempty"`
	// Preempt requests the best node on which the pod would fit if other pods were evicted.
	// Counters are the counters summed over all replicas. Values are the strings that the numbers
	// in the counters stand for.
	Preempt  bool                   `cbor:",omitempty"`
	Counters []index.CounterSummary `cbor:",omitempty"`
	Values   []string               `cbor:",omitempty"`
}

// TermKeys are topology keys to which affinity terms of existing pods refer.
type TermKeys struct {
	// Forbid are the keys of required anti-affinity terms. Prefer are the keys of preferred
	// terms. Both are sorted.
	Forbid, Prefer []string
}

// Without returns the keys that are not in others.
func (k TermKeys) Without(others TermKeys) TermKeys {
	without := func(keys, others []string) []string {
		return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(others, key) })
	}
	return TermKeys{Forbid: without(k.Forbid, others.Forbid), Prefer: without(k.Prefer, others.Prefer)}
}

// Union returns the keys that are in at least one of the two.
func (k TermKeys) Union(others TermKeys) TermKeys {
	union := func(keys, others []string) []string {
		all := slices.Concat(keys, others)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return TermKeys{Forbid: union(k.Forbid, others.Forbid), Prefer: union(k.Prefer, others.Prefer)}
}

// Empty reports whether there are no keys.
func (k TermKeys) Empty() bool { return len(k.Forbid)+len(k.Prefer) == 0 }

// Request is the message that sends a query to one replica, with the branches to which that replica
// forwards it.
type Request struct {
	Query *Query
	// Term and Number identify the leader's assignment. A replica that is not ready for
	// this assignment does not answer.
	Term, Number int64
	// From is the name of the leader.
	From     string
	Branches []membership.Branch `cbor:",omitempty"`
	Patience Patience

	// Reservations has, by name of the replica, the number of reservations of the leader that the
	// replica must have received on the current connection before it answers.
	Reservations map[string]uint64 `cbor:",omitempty"`
}

// Patience limits the time for which a replica waits for answers.
type Patience struct {
	// Deadline is the time after which a replica no longer waits for missing answers.
	Deadline time.Duration
	// Quorum is a percentage of branches. After so many have answered, the remaining branches get
	// Grace, or as much time as has passed so far if that is longer. With 100, all branches get the
	// time until the deadline.
	Quorum int
	// Grace is the minimal additional time after the quorum has answered.
	Grace time.Duration
}
