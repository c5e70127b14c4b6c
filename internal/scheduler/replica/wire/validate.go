package wire

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Messages are validated before they are used. A malformed message ends the connection or the query, but
// must not crash the process.

var errMalformed = errors.New("malformed message from another replica")

// Bounds of the fields of messages.
const (
	maxMembers = 10_000
	// maxAssignments is the maximal length of [Batch.Assignments]. A leader makes at most one in 200 ms. A receiver may have
	// to ask the API server about each of them.
	maxAssignments = 64
	maxDepth       = 16
	maxOffers      = 1 << 16
	maxSteps       = 1 << 10
	// MaxClaims is the maximal length of [Answer.UnavailableClaims].
	MaxClaims = 1 << 10
	// MaxReferencedLabels is the maximal length of [Answer.ReferencedLabels]. A label key has at most 317 bytes.
	MaxReferencedLabels = 100_000
	// MaxFailed is the maximal length of [Answer.Failed]. It becomes part of a pod's status.
	MaxFailed = 4 << 10
	// MaxDeadline is the maximal [Patience.Deadline].
	MaxDeadline = time.Minute
	// The receiver combines a term and a number into one 64-bit integer.
	maxTerm, maxNumber = 1<<38 - 1, 1<<24 - 1
)

func malformed(problem string) error { return fmt.Errorf("%w: %s", errMalformed, problem) }

// validate returns an error if a field is out of bounds.
func (b *Batch) validate() error {
	if len(b.Assignments) > maxAssignments {
		return malformed("batch with too many assignments")
	}
	for _, a := range b.Assignments {
		if err := a.validate(); err != nil {
			return err
		}
	}
	for _, list := range [][]Refresh{b.Refreshing, b.Refreshed, b.Listed} {
		for i := range list {
			if !validVersion(list[i].Term, list[i].Number) || !validSlots(list[i].Slots) {
				return malformed("refresh with an invalid assignment or hash slot")
			}
		}
	}
	for i := range b.Listed {
		if len(b.Listed[i].Since) != len(b.Listed[i].Slots) {
			return malformed("report of listed nodes without the start of a list")
		}
	}
	for _, nodes := range [][]NodeName{b.Nodes, b.GoneNodes} {
		for i := range nodes {
			if nodes[i].Slot < 0 || nodes[i].Slot >= membership.SlotCount {
				return malformed("node with an invalid hash slot")
			}
		}
	}
	if b.Announced < 0 || b.Confirmed < 0 {
		return malformed("negative announcement")
	}
	for i := range b.Reservations {
		if b.Reservations[i].UID == types.UID("") || b.Reservations[i].Node == "" {
			return malformed("reservation without pod or node")
		}
	}
	if s := b.Status; s != nil && (!validVersion(s.Term, s.Number) || s.Nodes < 0 || s.Pods < 0 || s.Listing < 0) {
		return malformed("status with an invalid assignment or a negative count")
	}
	if s := b.Status; s != nil && slices.ContainsFunc(s.Earlier, func(r EarlierReservation) bool { return r.UID == "" || r.Node == "" }) {
		return malformed("status with an earlier reservation without pod or node")
	}
	return nil
}

func (a *Assignment) validate() error {
	switch {
	case a == nil || !validVersion(a.Term, a.Number) || !validVersion(a.AfterTerm, a.AfterNumber):
		return malformed("assignment with an invalid term or number")
	case a.Leader.Name == "" || len(a.Slots) != membership.SlotCount || len(a.Members) > maxMembers || len(a.Known) > maxMembers:
		return malformed("assignment without leader or hash slots, or with too many replicas")
	}
	for _, owner := range a.Slots {
		if owner < -1 || int(owner) >= len(a.Owners) {
			return malformed("assignment to an unknown owner")
		}
	}
	return nil
}

// validVersion returns whether the term and number of an assignment are within their bounds.
func validVersion(term, number int64) bool {
	return term >= 0 && term <= maxTerm && number >= 0 && number <= maxNumber
}

func validSlots(slots []int) bool {
	if len(slots) > membership.SlotCount {
		return false
	}
	for _, slot := range slots {
		if slot < 0 || slot >= membership.SlotCount {
			return false
		}
	}
	return true
}

// validate returns an error if a field is out of bounds.
func (q *Request) validate() error {
	membersLeft := maxMembers
	switch {
	case q.Query == nil:
		return malformed("request without a query")
	case !validVersion(q.Term, q.Number):
		return malformed("query with an invalid assignment")
	case q.Query.Offers < 0 || q.Query.Offers > maxOffers || q.Query.Steps < 0 || q.Query.Steps > maxSteps:
		return malformed("query for too many offers or steps")
	case q.Patience.Deadline <= 0 || q.Patience.Deadline > MaxDeadline || q.Patience.Grace < 0 || q.Patience.Quorum < 0:
		return malformed("query with an invalid deadline, grace time or quorum")
	case !treeWithinBounds(q.Branches, maxDepth, &membersLeft):
		return malformed("query with a tree of too many replicas or levels")
	}
	return nil
}

// treeWithinBounds reports whether a tree has at most levelsLeft levels and at most *membersLeft members.
// It subtracts the number of members from *membersLeft.
func treeWithinBounds(branches []membership.Branch, levelsLeft int, membersLeft *int) bool {
	*membersLeft -= len(branches)
	if *membersLeft < 0 || levelsLeft == 0 && len(branches) > 0 {
		return false
	}
	for i := range branches {
		if !treeWithinBounds(branches[i].Branches, levelsLeft-1, membersLeft) {
			return false
		}
	}
	return true
}

// validate returns an error if a field is out of bounds.
func (a *Answer) validate() error {
	if len(a.Failed) > MaxFailed {
		return malformed("answer with an error that is too long")
	}
	if len(a.ReferencedLabels) > MaxReferencedLabels {
		return malformed("answer with too many referenced labels")
	}
	invalid := func(c UnavailableClaim) bool { return c.Claim < 0 || c.Claim >= MaxClaims || c.Node == "" }
	if len(a.UnavailableClaims) > MaxClaims || slices.ContainsFunc(a.UnavailableClaims, invalid) {
		return malformed("answer with too many or invalid resource claims")
	}
	if len(a.Summary.Groups)+len(a.Summary.Counters) > 0 && (len(a.Values) < 2 || a.Values[0] != NoValue || a.Values[1] != "") {
		return malformed("answer without the two predefined values")
	}
	if err := a.Summary.Validate(len(a.Values), len(a.ImageSets), len(a.Names)); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	for _, image := range a.Images {
		if image.Nodes < 0 || image.Size < 0 {
			return malformed("image with a negative size or number of nodes")
		}
	}
	for i := range a.Refusals {
		if a.Refusals[i].Nodes < 0 || a.Refusals[i].Nodes > a.Summary.Nodes {
			return malformed("more refusals than nodes")
		}
		if counts := a.Refusals[i].Counts; counts != nil {
			known := func(value int32) bool { return value >= 0 && int(value) < len(a.Values) }
			if slices.ContainsFunc(counts.Topology.Values, func(value int32) bool { return !known(value) }) {
				return malformed("refusal with an unknown topology value")
			}
		}
	}
	return nil
}
