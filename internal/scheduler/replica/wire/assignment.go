package wire

import "github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"

// Assignment is the leader's decision which replica owns which hash slots.
type Assignment struct {
	// Term is the leader's term. Number counts the assignments of the term. A later assignment
	// replaces an earlier one.
	Term, Number int64
	// AfterTerm, AfterNumber and the name AfterLeader identify the preceding assignment. A replica that
	// did not follow that one may have missed a change of owners, so it lists all its slots again.
	AfterTerm, AfterNumber int64
	AfterLeader            string
	Leader                 membership.Member
	// Members are the replicas that the leader considers alive. Known are all discovered replicas.
	Members, Known []membership.Member
	// Owners are the names of the replicas that own hash slots. Slots has the owner of each hash
	// slot, as an index into Owners; -1 if there is none.
	Owners []string
	Slots  []int16
}

// Later reports whether the assignment replaces the other one, which may be nil. Only the leader of a term can
// replace its assignments.
func (a *Assignment) Later(other *Assignment) bool {
	return other == nil || a.Term > other.Term || a.Term == other.Term && a.Number > other.Number && a.Leader.Name == other.Leader.Name
}

// Superseded reports whether a replica that follows the other assignment will not follow a: the other one is of a
// later term, or later in this term, or of another leader for this term.
func (a *Assignment) Superseded(by *Assignment) bool {
	return by.Term > a.Term || by.Term == a.Term && (by.Leader.Name != a.Leader.Name || by.Number > a.Number)
}

// Follows reports whether the other assignment, which may be nil, directly precedes a.
func (a *Assignment) Follows(other *Assignment) bool {
	return other != nil && a.AfterTerm == other.Term && a.AfterNumber == other.Number && a.AfterLeader == other.Leader.Name
}

// Table returns the owner of each slot.
func (a *Assignment) Table() membership.Table {
	t := make(membership.Table, membership.SlotCount)
	for slot, owner := range a.Slots {
		if slot < membership.SlotCount && owner >= 0 && int(owner) < len(a.Owners) {
			t[slot] = a.Owners[owner]
		}
	}
	return t
}

// SetTable sets Owners and Slots from a table.
func (a *Assignment) SetTable(t membership.Table) {
	numbers := map[string]int16{"": -1}
	a.Owners, a.Slots = t.Owners(), make([]int16, len(t))
	for number, owner := range a.Owners {
		numbers[owner] = int16(number)
	}
	for slot, owner := range t {
		a.Slots[slot] = numbers[owner]
	}
}
