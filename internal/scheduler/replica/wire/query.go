// Package wire is the protocol between replicas of the scheduler. Queries and answers are forwarded along
// a tree of replicas. Batches of changes are sent over ordered one-way connections (links). Messages are
// CBOR over gRPC. Package index defines the summaries inside answers. This package knows no plugins.
package wire

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Version is the version of this protocol. Replicas of different versions do not work together, because the leader ignores
// replicas whose version or configuration is another one: they own no nodes. It changes if a replica of the earlier version
// could misunderstand a message.
const Version = 3

// Query asks which nodes are best for pods of a class. [Request] is the message that contains it.
type Query struct {
	// Pod is one pod of the class, in the API's protobuf encoding. Profile is the name of
	// its scheduler profile.
	Pod     []byte
	Profile string
	// TermKeys are the topology keys for which each replica counts pods, in addition to the keys of
	// the pod's own required terms. They come from the pod's own preferred terms, and from affinity
	// terms of existing pods that match the pod.
	TermKeys TermKeys
	// Offers is the maximal number of nodes offered from each group. Steps is the maximal
	// number of predictions for each offer: whether the node still fits, and its static score, after
	// one, two, … more pods of the class were placed on it.
	Offers, Steps int
	// Node restricts the query to one node; "" means all nodes.
	Node string
	// Reserved is the UID of the pod if an earlier leader has reserved capacity for it. The answers do not
	// count this reservation.
	Reserved types.UID `cbor:",omitempty"`
	// KnownLabels are the versions of [Answer.ReferencedLabels] that the leader has, by the name of the replica.
	KnownLabels map[string]int64 `cbor:",omitempty"`
	// Reasons requests the reasons for which nodes do not fit.
	Reasons bool
	// NodeByNode requests that the plugins check each node, because the pod has requirements that
	// the index does not support. Exclude are the names of nodes that are known not to fit.
	NodeByNode bool     `cbor:",omitempty"`
	Exclude    []string `cbor:",omitempty"`
	// InUse are those PersistentVolumeClaims of this pod of which the leader knows from a previous answer
	// that another pod uses them, as namespace/name.
	InUse []string `cbor:",omitempty"`
	// IncludeNode requests the node object and its pods. It requires Node.
	IncludeNode bool `cbor:",omitempty"`
	// Preempt requests the best node on which the pod would fit if other pods were evicted.
	// Counters are required with Preempt: the counts by topology value, which the leader merged
	// from the answers of all replicas to a previous query. Values are the topology values
	// to which the numbers [index.ValueCount.Value] in Counters refer.
	Preempt  bool                   `cbor:",omitempty"`
	Counters []index.CounterSummary `cbor:",omitempty"`
	Values   []string               `cbor:",omitempty"`
}

// TermKeys are topology keys of affinity terms that affect the placement of a pod.
type TermKeys struct {
	// Forbid are the keys of required anti-affinity terms of existing pods. Prefer are the keys of
	// terms that affect only the score: preferred terms of the pod and of existing pods, and, if
	// hardPodAffinityWeight is not 0, required affinity terms of existing pods. Both are sorted.
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
	return TermKeys{Forbid: union(k.Forbid, others.Forbid), Prefer: union(k.Prefer, others.Prefer)}
}

// union returns the strings that are in at least one of the two lists, sorted.
func union(list, other []string) []string {
	all := slices.Concat(list, other)
	slices.Sort(all)
	return slices.Compact(all)
}

// Empty reports whether there are no keys.
func (k TermKeys) Empty() bool { return len(k.Forbid)+len(k.Prefer) == 0 }

// Request is the message that sends a query to one replica, with the branches to which that replica
// forwards it.
type Request struct {
	Query *Query
	// Term and Number identify the leader's [Assignment]. A replica that has not loaded all nodes
	// and pods of this assignment answers with an error and lists itself in [Answer.Absent].
	Term, Number int64
	// From is the name of the leader.
	From     string
	Branches []membership.Branch `cbor:",omitempty"`
	Patience Patience
	// AwaitNodes requests that a replica answers only when it can use all its nodes, also those whose pods it does not
	// know completely when it receives the query.
	AwaitNodes bool `cbor:",omitempty"`

	// Reservations maps the name of a replica to a number of reservations. Before this replica
	// answers, it must have received that many reservations from the leader on the current
	// connection.
	Reservations map[string]uint64 `cbor:",omitempty"`
}

// Patience limits the time for which a replica waits for answers.
type Patience struct {
	// Deadline is the duration for which a replica waits for missing answers after it has started to
	// send the query to its branches.
	Deadline time.Duration
	// Quorum is a percentage of branches. After at least this percentage has answered, the replica
	// waits for the others for the duration Grace, or for as long as it has already waited if that
	// is longer, but never beyond Deadline. Each further answer restarts this wait.
	// With 100, the replica waits for all branches until Deadline has passed.
	Quorum int
	// Grace is the minimal additional time after the quorum has answered.
	Grace time.Duration
}
