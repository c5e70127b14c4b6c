package wire

import "k8s.io/apimachinery/pkg/types"

// Batch is what a replica tells another. The parts of it are taken in the order in
// which they stand here.
type Batch struct {
	// From is who tells; it is said in the first batch of a connection.
	From string `cbor:",omitempty"`
	// Assignments are by the leader; none is left out, so that it can be seen whether one
	// was missed.
	Assignments []*Assignment `cbor:",omitempty"`
	// Refreshing says that all objects in some slots are told anew.
	Refreshing []Refresh `cbor:",omitempty"`
	// Nodes are where pods are to be sent that run on nodes with these names.
	Nodes []NodeName `cbor:",omitempty"`
	// Pods are those on nodes of the receiver; Pending those that wait, for the leader;
	// News what else the leader has to know.
	Pods    []Item `cbor:",omitempty"`
	Pending []Item `cbor:",omitempty"`
	News    []News `cbor:",omitempty"`
	// Refreshed says that this is done, and Listed that all nodes in some slots have
	// been told, so that pods on them can be.
	Refreshed []Refresh `cbor:",omitempty"`
	Listed    []Refresh `cbor:",omitempty"`
	// Reservations are by the leader, and Kept says that they are still of use. Acks
	// answer the first.
	Reservations []Reservation `cbor:",omitempty"`
	Kept         []types.UID   `cbor:",omitempty"`
	Acks         []Ack         `cbor:",omitempty"`
	// Status is for the leader.
	Status *Status `cbor:",omitempty"`
}

// Assignment is who owns which slots.
type Assignment struct {
	// Term counts leaders, and Number the assignments of one. Later ones replace others.
	Term, Number int64
	// AfterTerm and AfterNumber are those of the assignment that it changes. For who does
	// not have that one others may have been in its place, so that it begins anew.
	AfterTerm, AfterNumber int64
	Leader                 Member
	// Members live, as the leader sees it; Known are all that there may be.
	Members, Known []Member
	// Owners are the names that slots refer to.
	Owners []string
	Slots  []int16
}

// Later says whether an assignment replaces another, which may be nil.
func (a *Assignment) Later(other *Assignment) bool {
	return other == nil || a.Term > other.Term || a.Term == other.Term && a.Number > other.Number
}

// Table is the assignment as a table.
func (a *Assignment) Table() Table {
	t := make(Table, Slots)
	for slot, owner := range a.Slots {
		if slot < Slots && owner >= 0 && int(owner) < len(a.Owners) {
			t[slot] = a.Owners[owner]
		}
	}
	return t
}

// SetTable is the opposite.
func (a *Assignment) SetTable(t Table) {
	numbers := map[string]int16{"": -1}
	a.Owners, a.Slots = t.Owners(), make([]int16, len(t))
	for number, owner := range a.Owners {
		numbers[owner] = int16(number)
	}
	for slot, owner := range t {
		a.Slots[slot] = numbers[owner]
	}
}

// Follows says whether an assignment changes another, which may be nil.
func (a *Assignment) Follows(other *Assignment) bool {
	return other != nil && a.AfterTerm == other.Term && a.AfterNumber == other.Number
}

// NodeName is a node by the hash of its name, and its slot.
type NodeName struct {
	_    struct{} `cbor:",toarray"`
	Hash uint64
	Slot int16
	// Created is when, in seconds. Of two nodes that had a name the later one counts,
	// whoever is told of first.
	Created int64
}

// Item is an object as it is now, or that it is gone.
type Item struct {
	_   struct{} `cbor:",toarray"`
	UID types.UID
	// Object is in the API's protobuf encoding; empty if it is gone.
	Object []byte
	// Node says that the object is as it was, but bound to a node.
	Node string
}

// News is a change of a node, or of a pod on one, that may let pods fit that did not.
type News struct {
	_ struct{} `cbor:",toarray"`
	// Node says that it is a node.
	Node bool
	// Before and After are empty if there was no such object, or is none any more.
	Before, After []byte
}

// Refresh is about the objects with UIDs in some slots, by an assignment. When all of
// them were told anew, those that were not are gone.
type Refresh struct {
	Term, Number int64
	Slots        []int
	// Listed gives each a number of its sender's, and Refreshing and Refreshed that
	// which they answer, in Asked; they have a number of their own in ID.
	ID, Asked int64
}

// Reservation is a pod that takes its place on a node, before it is bound, or that gives
// it back, if there is no Pod.
type Reservation struct {
	// Nominated says that the pod waits for the node, and has no place there yet.
	Nominated bool `cbor:",omitempty"`

	Pod     []byte
	UID     types.UID
	Node    string
	Profile string
	Demands Demands
	// Held says that the last owner of the node has given the pod its place, so that it
	// may be bound by now: there is no question of whether it fits.
	Held bool `cbor:",omitempty"`
}

// Ack says whether a pod has its place.
type Ack struct {
	UID types.UID
	// Refused is why not; "" if it has.
	Refused string `cbor:",omitempty"`
}

// Status is how far a replica is.
type Status struct {
	// Term and Number are the assignment that it is ready for, with all nodes and pods.
	Term, Number int64
	Nodes, Pods  int
	// Freed counts places that were given to others, as no leader asked to keep them.
	Freed int64
	// Forbids says that pods are here that forbid others on more than their own node.
	Forbids bool `cbor:",omitempty"`
	// Cut are replicas that cannot be told anything.
	Cut []string `cbor:",omitempty"`
	// Config is a digest of its configuration.
	Config string
}

// size is about how many bytes a batch has.
func (b *Batch) size() int {
	size := 64 + 24*len(b.Nodes) + 48*(len(b.Kept)+len(b.Acks)) + 4*Slots*(len(b.Refreshing)+len(b.Refreshed)+len(b.Listed))
	for _, items := range [][]Item{b.Pods, b.Pending} {
		for i := range items {
			size += 64 + len(items[i].Object)
		}
	}
	for _, a := range b.Assignments {
		size += 4*Slots + 96*(len(a.Members)+len(a.Known)+len(a.Owners))
	}
	for i := range b.News {
		size += 32 + len(b.News[i].Before) + len(b.News[i].After)
	}
	for i := range b.Reservations {
		size += 128 + len(b.Reservations[i].Pod)
	}
	return size
}
