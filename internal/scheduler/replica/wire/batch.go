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
	// Assignments come from the leader. A batch contains all assignments since the previous batch,
	// also outdated ones, so that a receiver can detect that it missed one.
	Assignments []*Assignment `cbor:",omitempty"`
	// Refreshing starts a list of all pods in some hash slots.
	Refreshing []Refresh `cbor:",omitempty"`
	// Nodes announces nodes of the sender. Pods on these nodes must be sent to it.
	Nodes []NodeName `cbor:",omitempty"`
	// Announced is the number of the last announcement of a node; 0 if none. On this connection, the sender has then
	// announced all nodes with this number or a lower one.
	Announced int64 `cbor:",omitempty"`
	// GoneNodes are nodes of the sender that were deleted.
	GoneNodes []NodeName `cbor:",omitempty"`
	// Pods are pods on nodes of the receiver.
	Pods []Item `cbor:",omitempty"`
	// Pending are unscheduled pods. They are sent to the leader.
	Pending []Item `cbor:",omitempty"`
	// Events are changes of nodes and bound pods. They are sent to the leader, for its queue.
	Events []Event `cbor:",omitempty"`
	// Refreshed ends a list of all pods in some hash slots.
	Refreshed []Refresh `cbor:",omitempty"`
	// Listed reports that the sender has announced all its nodes in some hash slots. It is also the
	// request for the pods on these nodes.
	Listed []Refresh `cbor:",omitempty"`
	// Reservations are requests of the leader for reservations, releases and nominations.
	Reservations []Reservation `cbor:",omitempty"`
	// Confirmed is the last announcement of the receiver for which the sender has sent all its pods on the announced
	// nodes, and all its reservations if it leads; 0 if none.
	Confirmed int64 `cbor:",omitempty"`
	// Kept are the reservations that the leader renews.
	Kept []Renewal `cbor:"Renewals,omitempty"`
	// Acks are the answers to Reservations and Kept.
	Acks []Ack `cbor:",omitempty"`
	// Status is the status report of the sender. It is sent to the leader.
	Status *Status `cbor:",omitempty"`
}

// NodeName identifies a node by the hash of its name.
type NodeName struct {
	_    struct{} `cbor:",toarray"`
	Hash uint64
	// Slot is the hash slot of the node.
	Slot int16
	// Created is the creation time in Unix seconds.
	Created int64
	// Number is the number of the announcement, or of the report that the node was deleted.
	Number int64
}

// Ends returns whether the report that a node was deleted is about an announcement. The creation time has a precision of a
// second, so a node may have been deleted and created again with the same one.
func (n NodeName) Ends(announced NodeName) bool {
	return n.Slot == announced.Slot && n.Created == announced.Created && n.Number >= announced.Number
}

// Item is the current state of an object, or its deletion.
type Item struct {
	_   struct{} `cbor:",toarray"`
	UID types.UID
	// Object is in the API's protobuf encoding; empty if the object was deleted.
	Object []byte
	// Node is set in Pending if the pod was not deleted but bound: the name of its node.
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

// Refresh is the start or the end of a list of pods, or the request for one (see [Batch]). After the end
// of a list, the receiver removes the pods in Slots that were not in the list.
type Refresh struct {
	// Term and Number identify the assignment to which the message belongs.
	Term, Number int64
	// Slots are the hash slots to which the message refers. Since is set in Listed, with an element for each of Slots: the
	// list of the nodes in the slot has started after all announcements with a lower number.
	Slots []int
	Since []int64 `cbor:",omitempty"`
	// ID is a number that the sender has chosen. It is higher than the number of each announcement that the sender has
	// sent before. In Refreshing and Refreshed, InReplyTo is the ID of the Listed to which the list responds.
	ID, InReplyTo int64
	// Version is the resource version up to which the sender had received all changes before it
	// started the list. It is set in Refreshed.
	Version string `cbor:",omitempty"`
}

// Reservation is the request to reserve capacity of a node for a pod before the pod is bound. If Pod is
// empty, it releases the capacity.
type Reservation struct {
	// Nominated is true if the message adds or removes a nomination of the pod to the node instead
	// of a reservation.
	Nominated bool `cbor:",omitempty"`

	// Pod is in the API's protobuf encoding.
	Pod  []byte
	UID  types.UID
	Node string
	// Profile is the name of the pod's scheduler profile. TermKeys are the term keys of its class.
	Profile  string
	TermKeys TermKeys
	// Granted is true if the node's previous owner has granted the reservation. The pod may be
	// bound already, so the new owner does not check again whether it fits.
	Granted bool `cbor:",omitempty"`
	// Attempt identifies the placement of the pod for which the leader requests the reservation.
	Attempt uint64 `cbor:",omitempty"`
}

// Renewal is the request to renew a reservation.
type Renewal struct {
	_   struct{} `cbor:",toarray"`
	UID types.UID
	// Attempt is that of the [Reservation].
	Attempt uint64
}

// Ack is the result of a reservation or of a renewal.
type Ack struct {
	UID types.UID
	// Attempt is that of the reservation or the renewal. The leader ignores answers to the requests of an earlier placement
	// of the pod.
	Attempt uint64 `cbor:",omitempty"`
	// Refused is the reason for a rejection; "" if the reservation was granted.
	Refused string `cbor:",omitempty"`
}

// Status is the status report of a replica.
type Status struct {
	// Term and Number identify the assignment for which the replica has loaded all nodes and pods;
	// 0 if it has not done so for the current one.
	Term, Number int64
	// Nodes and Pods are the numbers of nodes that the replica owns and of bound pods on them.
	Nodes, Pods int
	// Expired is the number of reservations that expired because no leader renewed them.
	Expired int64
	// AntiAffinityBeyondNode is true if a pod on a node of this replica has a required
	// anti-affinity term with another topology key than the hostname.
	AntiAffinityBeyondNode bool `cbor:"Forbids,omitempty"`
	// Earlier are the reservations on nodes of this replica that a leader of an earlier term
	// requested. It is set if Term is.
	Earlier []EarlierReservation `cbor:",omitempty"`
	// Unreachable are the names of the replicas to which this replica has had no connection for some
	// time.
	Unreachable []string `cbor:",omitempty"`
	// Listing is not 0 while the first lists of the replica's hash slots are incomplete. Then it grows with each
	// object that arrives.
	Listing int64 `cbor:",omitempty"`
	// Config is a digest of the replica's configuration. The leader ignores replicas with another one.
	Config string
}

// EarlierReservation is a reservation that a leader of an earlier term requested.
type EarlierReservation struct {
	_ struct{} `cbor:",toarray"`
	// UID identifies the pod. Node is the name of the node.
	UID  types.UID
	Node string
}

// size estimates the encoded size of a batch in bytes.
func (b *Batch) size() int {
	size := 64 + 24*(len(b.Nodes)+len(b.GoneNodes)) + 64*(len(b.Kept)+len(b.Acks)) + 4*membership.SlotCount*(len(b.Refreshing)+len(b.Refreshed)+len(b.Listed))
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
	if b.Status != nil {
		size += 96 * len(b.Status.Earlier)
	}
	return size
}

// grownBy estimates the encoded size in bytes of the elements that were appended to a batch after the
// copy before was made.
func (b *Batch) grownBy(before *Batch) int {
	added := Batch{
		Assignments: b.Assignments[len(before.Assignments):],
		GoneNodes:   b.GoneNodes[len(before.GoneNodes):],
		Nodes:       b.Nodes[len(before.Nodes):], Pods: b.Pods[len(before.Pods):], Pending: b.Pending[len(before.Pending):],
		Events: b.Events[len(before.Events):], Reservations: b.Reservations[len(before.Reservations):],
		Refreshing: b.Refreshing[len(before.Refreshing):], Refreshed: b.Refreshed[len(before.Refreshed):], Listed: b.Listed[len(before.Listed):],
		Kept: b.Kept[len(before.Kept):], Acks: b.Acks[len(before.Acks):],
	}
	return added.size()
}
