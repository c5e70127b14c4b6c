package wire

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// What other replicas send is looked at before it is taken: a number that is out of range
// ends the connection, and not this process.

var errMalformed = errors.New("a replica has sent what cannot be")

// Bounds of what replicas send.
const (
	maxMembers  = 10_000
	maxDepth    = 16
	maxOffers   = 1 << 16
	maxSteps    = 1 << 10
	maxDeadline = time.Minute
	// A term and a number are made one number of.
	maxTerm, maxNumber = 1<<38 - 1, 1<<24 - 1
)

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }

// validate says what is wrong with a batch.
func (b *Batch) validate() error {
	for _, a := range b.Assignments {
		if err := a.validate(); err != nil {
			return err
		}
	}
	for _, list := range [][]Refresh{b.Refreshing, b.Refreshed, b.Listed} {
		for i := range list {
			if !isStamp(list[i].Term, list[i].Number) || !areSlots(list[i].Slots) {
				return malformed("slots that there are not")
			}
		}
	}
	for i := range b.Nodes {
		if b.Nodes[i].Slot < 0 || b.Nodes[i].Slot >= Slots {
			return malformed("a node in a slot that there is not")
		}
	}
	for i := range b.Reservations {
		if b.Reservations[i].UID == types.UID("") || b.Reservations[i].Node == "" {
			return malformed("a place for no pod, or nowhere")
		}
	}
	if s := b.Status; s != nil && (!isStamp(s.Term, s.Number) || s.Nodes < 0 || s.Pods < 0) {
		return malformed("a status")
	}
	return nil
}

func (a *Assignment) validate() error {
	switch {
	case a == nil || !isStamp(a.Term, a.Number) || !isStamp(a.AfterTerm, a.AfterNumber):
		return malformed("an assignment without a number")
	case a.Leader.Name == "" || len(a.Slots) != Slots || len(a.Members) > maxMembers || len(a.Known) > maxMembers:
		return malformed("an assignment without a leader or slots, or with too many replicas")
	}
	for _, owner := range a.Slots {
		if owner < -1 || int(owner) >= len(a.Owners) {
			return malformed("an assignment to nobody")
		}
	}
	return nil
}

func isStamp(term, number int64) bool {
	return term >= 0 && term <= maxTerm && number >= 0 && number <= maxNumber
}

func areSlots(slots []int) bool {
	if len(slots) > Slots {
		return false
	}
	for _, slot := range slots {
		if slot < 0 || slot >= Slots {
			return false
		}
	}
	return true
}

// validate says what is wrong with a question.
func (q *Question) validate() error {
	left := maxMembers
	switch {
	case q.Ask == nil:
		return malformed("a question without a question")
	case !isStamp(q.Term, q.Number):
		return malformed("a question without an assignment")
	case q.Ask.Offers < 0 || q.Ask.Offers > maxOffers || q.Ask.Steps < 0 || q.Ask.Steps > maxSteps:
		return malformed("a question for too much")
	case q.Patience.Deadline <= 0 || q.Patience.Deadline > maxDeadline || q.Patience.Grace < 0 || q.Patience.Quorum < 0:
		return malformed("a question without a deadline")
	case !fits(q.Branches, maxDepth, &left):
		return malformed("a question to too many")
	}
	return nil
}

func fits(branches []Branch, depth int, left *int) bool {
	*left -= len(branches)
	if *left < 0 || depth == 0 && len(branches) > 0 {
		return false
	}
	for i := range branches {
		if !fits(branches[i].Branches, depth-1, left) {
			return false
		}
	}
	return true
}

// validate says what is wrong with an answer.
func (a *Answer) validate() error {
	if len(a.Summary.Groups)+len(a.Summary.Counters) > 0 && (len(a.Values) < 2 || a.Values[0] != NoValue || a.Values[1] != "") {
		return malformed("an answer without values")
	}
	if err := a.Summary.Validate(len(a.Values), len(a.Profiles), len(a.Names)); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	for _, image := range a.Images {
		if image.Nodes < 0 || image.Size < 0 {
			return malformed("an image")
		}
	}
	for i := range a.Refusals {
		if a.Refusals[i].Nodes < 0 || a.Refusals[i].Nodes > a.Summary.Nodes {
			return malformed("more refusals than nodes")
		}
	}
	return nil
}
