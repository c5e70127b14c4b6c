// Package membership describes the replicas of one scheduler: how they discover each other (Leases or a
// fixed list), which replica owns which hash slots, and the tree along which replicas forward a query. It
// does not depend on any other package of the scheduler.
package membership

import "context"

// Member is a replica and its address.
type Member struct {
	// Name identifies the replica in its group. Address is the host and port on which it serves the
	// other replicas.
	Name, Address string
	// Relay is true if the replica owns no nodes; it forwards queries and merges answers.
	Relay bool `cbor:",omitempty"`
}

// Discovery finds the replicas of a group. It need not detect quickly that a replica has failed: the
// leader uses status reports for that.
type Discovery interface {
	// Run announces this replica until the context ends.
	Run(ctx context.Context) error
	// Members returns all replicas found so far, including this one.
	Members() []Member
}

// Addresses is a Discovery with a fixed list of replicas.
type Addresses []Member

// Run returns immediately, because a fixed list needs no announcement.
func (Addresses) Run(context.Context) error { return nil }

// Members returns the fixed list.
func (a Addresses) Members() []Member { return a }
