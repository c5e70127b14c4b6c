package wire

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Batch is a message from one replica to another. The receiver processes the fields in the
// order of their declaration.
type Batch struct {
	// From is the name of the sender. It is set in the first batch of a connection.
	From string `cbor:",omitempty"`
	// Assignments come from the leader. None is omitted, so that a receiver can detect that
	// it missed one.
	Assignments []*Assignment `cbor:",omitempty"`
	// Refreshing starts a resend of all objects in some slots.
	Refreshing []Refresh `cbor:",omitempty"`
	// Nodes are nodes of the sender. Pods on these nodes must be sent to it.
	Nodes []NodeName `cbor:",omitempty"`
	// Pods are pods on nodes of the receiver.
	Pods []Item `cbor:",omitempty"`
	// Pending are unscheduled pods. They are sent to the leader.
	Pending []Item `cbor:",omitempty"`
	// Events are other changes that the leader needs for its queue.
	Events []Event `cbor:",omitempty"`
	// Refreshed ends a resend of all objects in some slots.
	Refreshed []Refresh `cbor:",omitempty"`
	// Listed announces that all nodes of the sender in some slots were sent, so that the
	// receiver can send the pods on them.
	Listed []Refresh `cbor:",omitempty"`
	// Reservations come from the leader. Acks are the answers to them.
	Reservations []Reservation `cbor:",omitempty"`
	// Kept are the UIDs of pods whose reservations the leader still needs.
	Kept []types.UID `cbor:",omitempty"`
	Acks []Ack       `cbor:",omitempty"`
	// Status is sent to the leader.
	Status *Status `cbor:",omitempty"`
}

// NodeName identifies a node by the hash of its name.
type NodeName struct {
	_    struct{} `cbor:",toarray"`
	Hash uint64
	// Slot is the hash slot of the node.
	Slot int16
	// Created is the creation time in Unix seconds. If two nodes had the same name, the one
	// that was created later wins, whatever the order of the messages.
	Created int64
}

// Item is the current state of an object, or its deletion.
type Item struct {
	_   struct{} `cbor:",toarray"`
	UID types.UID
	// Object is in the API's protobuf encoding; empty if the object was deleted.
	Object []byte
	// Node, if not empty, means that the only change is the binding to this node.
	Node string
}

// Event is a change of a node, or of a pod on a node, that may make unschedulable pods
// schedulable.
type Event struct {
	_ struct{} `cbor:",toarray"`
	// Node is true for a node and false for a pod.
	Node bool
	// Before is empty for a new object, After for a deleted one.
	Before, After []byte
}

// Refresh refers to all objects with UIDs in some hash slots under an assignment. After a
// complete resend the receiver deletes the objects that were not part of it.
type Refresh struct {
	Term, Number int64
	Slots        []int
	// ID is a number of the sender. A Refreshing or Refreshed has in InReplyTo the ID of the
	// Listed to which it responds.
	ID, InReplyTo int64
}

// Reservation reserves capacity of a node for a pod before the pod is bound. It releases
// the capacity if Pod is empty.
type Reservation struct {
	// Nominated is true if the pod is nominated to the node and takes no capacity yet.
	Nominated bool `cbor:",omitempty"`

	Pod      []byte
	UID      types.UID
	Node     string
	Profile  string
	TermKeys TermKeys
	// Granted is true if the node's previous owner has granted the reservation. The pod may be
	// bound already, so the new owner does not check again whether it fits.
	Granted bool `cbor:",omitempty"`
}

// Ack is the result of a reservation.
type Ack struct {
	UID types.UID
	// Refused is the reason for a rejection; "" if the reservation was granted.
	Refused string `cbor:",omitempty"`
}

// Status is the state of a replica.
type Status struct {
	// Term and Number identify the assignment for which the replica has loaded all nodes
	// and pods.
	Term, Number int64
	Nodes, Pods  int
	// Expired is the number of reservations that expired because no leader renewed them.
	Expired int64
	// AntiAffinityBeyondNode is true if pods of this replica have required anti-affinity terms with a
	// topology larger than one node.
	AntiAffinityBeyondNode bool `cbor:"Forbids,omitempty"`
	// Unreachable are the names of replicas to which the replica has no connection.
	Unreachable []string `cbor:",omitempty"`
	// Config is a digest of the replica's configuration.
	Config string
}

// size estimates the encoded size of a batch in bytes.
func (b *Batch) size() int {
	size := 64 + 24*len(b.Nodes) + 48*(len(b.Kept)+len(b.Acks)) + 4*membership.SlotCount*(len(b.Refreshing)+len(b.Refreshed)+len(b.Listed))
	for _, items := range [][]Item{b.Pods, b.Pending} {
		for i := range items {
			size += 64 + len(items[i].Object)
		}
	}
	for _, a := range b.Assignments {
		size += 4*membership.SlotCount + 96*(len(a.Members)+len(a.Known)+len(a.Owners))
	}
	for i := range b.Events {
		size += 32 + len(b.Events[i].Before) + len(b.Events[i].After)
	}
	for i := range b.Reservations {
		size += 128 + len(b.Reservations[i].Pod)
	}
	return size
}

// grownBy estimates the encoded size in bytes of what was appended to a batch since a
// copy of it was made.
func (b *Batch) grownBy(before *Batch) int {
	added := Batch{
		Assignments: b.Assignments[len(before.Assignments):],
		Nodes:       b.Nodes[len(before.Nodes):], Pods: b.Pods[len(before.Pods):], Pending: b.Pending[len(before.Pending):],
		Events: b.Events[len(before.Events):], Reservations: b.Reservations[len(before.Reservations):],
		Refreshing: b.Refreshing[len(before.Refreshing):], Refreshed: b.Refreshed[len(before.Refreshed):], Listed: b.Listed[len(before.Listed):],
		Kept: b.Kept[len(before.Kept):], Acks: b.Acks[len(before.Acks):],
	}
	return added.size()
}
