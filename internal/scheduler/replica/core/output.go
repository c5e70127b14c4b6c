package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Output is what the caller of a [Leader] has to do, in the order of the fields. It sends the messages of one call
// before it makes the next call: the owner of a node must get the reservations of a pod in the order of the decisions,
// and a query that is planned later requires those that were sent before it.
type Output struct {
	// Assignment is a new assignment of hash slots; nil if there is none. The caller follows it, then sends it to all
	// replicas, and then calls [Leader.Adopted] and [Leader.Tick]. No other field except Notes is set with it.
	Assignment *wire.Assignment
	// Reservations are requests and releases. Each is sent to the owner of its node. If a node has no owner, the caller
	// calls [Leader.NoOwner].
	Reservations []wire.Reservation
	// Nominations are sent to the owners that they name, after Reservations.
	Nominations []OwnerNomination
	// Renewals are sent to the owners of the nodes.
	Renewals []NodeRenewal
	// Answered are the attempts whose reservation has got its first answer, or whose pod is not assumed any more. The
	// caller wakes those that wait for this (see [Leader.Placement]).
	Answered []uint64
	// Invalidate means that answers to earlier queries are outdated. The caller discards the current one only after it
	// has sent the messages above: a query that is sent before the release of a reservation still counts the pod.
	Invalidate bool
	// First are pods that the queue returns before all others from now on, because a late bind may use their reservation.
	// NotFirst are pods that it does not any more. Moved are those of First that may be in the queue already.
	First, NotFirst, Moved []types.UID
	// RetryAll means that all unschedulable pods are retried: no event says that they may fit now. Activate are pods
	// that are retried without their backoff.
	RetryAll bool
	Activate []*v1.Pod
	// Wake means that [Leader.Tick] is called soon.
	Wake bool
	// Resign means that this process exits, so that another replica becomes the leader.
	Resign bool
	// Notes are for the log.
	Notes []Note
}

// OwnerNomination is a nomination, or its withdrawal, for the owner of a node.
type OwnerNomination struct {
	Owner       string
	Reservation wire.Reservation
}

// NodeRenewal is the request to renew a reservation on a node.
type NodeRenewal struct {
	Node    string
	Renewal wire.Renewal
}

// Note is an entry for the log.
type Note struct {
	// Error is true if an administrator has to act.
	Error         bool
	Message       string
	KeysAndValues []any
}

func (o *Output) note(message string, keysAndValues ...any) {
	o.Notes = append(o.Notes, Note{Message: message, KeysAndValues: keysAndValues})
}

func (o *Output) noteError(message string, keysAndValues ...any) {
	o.Notes = append(o.Notes, Note{Error: true, Message: message, KeysAndValues: keysAndValues})
}

// View is what a leader reads from the member of its process: the assignment that this replica follows, the owners of
// nodes, and the state of the connections.
type View interface {
	// Assignment returns the assignment that this replica follows; nil before the first.
	Assignment() *wire.Assignment
	// NodeOwner returns the name of the replica that owns a node; "" if it is unknown.
	NodeOwner(node string) string
	// Unreachable returns whether this replica has had no connection to another one for some time.
	Unreachable(name string) bool
}
