package check

import (
	"fmt"
	"slices"
)

// Attempt is the attempt of a client to add an element, which no other attempt adds, to a list or a set.
type Attempt struct {
	Element      string
	Call, Return int64
	// Unknown is true if there was no response, and Refused if the response says that nothing was changed.
	Unknown, Refused bool
}

func (a Attempt) acknowledged() bool { return !a.Unknown && !a.Refused }

// Reading is a linearizable read of a whole list or set.
type Reading struct {
	Call, Return int64
	Elements     []string
}

// Appends checks a list: it is only appended to, contains every acknowledged element exactly once and no refused one, and
// its order agrees with the time. final is the list after all attempts.
func Appends(attempts []Attempt, readings []Reading, final []string) error {
	position := map[string]int{}
	for i, element := range final {
		if earlier, twice := position[element]; twice {
			return fmt.Errorf("element %s was appended twice: at positions %d and %d", element, earlier, i)
		}
		position[element] = i
	}
	if err := contents(attempts, final); err != nil {
		return err
	}
	for _, r := range readings {
		if len(r.Elements) > len(final) || !slices.Equal(r.Elements, final[:len(r.Elements)]) {
			return fmt.Errorf("a reader saw %v, which is not the start of the final list %v", r.Elements, final)
		}
		if err := r.timely(attempts); err != nil {
			return err
		}
	}
	for _, earlier := range attempts {
		for _, later := range attempts {
			if earlier.acknowledged() && later.acknowledged() && earlier.Return < later.Call && position[earlier.Element] > position[later.Element] {
				return fmt.Errorf("element %s was acknowledged before %s was sent, but is behind it", earlier.Element, later.Element)
			}
		}
	}
	return nil
}

// Sets checks a set: it contains every acknowledged element, and a reader sees all elements that were acknowledged before
// it began, and none that was sent after it had ended. final is the set after all attempts.
func Sets(attempts []Attempt, readings []Reading, final []string) error {
	if err := contents(attempts, final); err != nil {
		return err
	}
	for _, r := range readings {
		if err := r.timely(attempts); err != nil {
			return err
		}
	}
	return nil
}

// contents checks that a collection contains all acknowledged elements, and only elements that were sent and not refused.
func contents(attempts []Attempt, final []string) error {
	possible := map[string]Attempt{}
	for _, a := range attempts {
		possible[a.Element] = a
		if a.acknowledged() && !slices.Contains(final, a.Element) {
			return fmt.Errorf("acknowledged element %s is lost", a.Element)
		}
	}
	for _, element := range final {
		if a, sent := possible[element]; !sent || a.Refused {
			return fmt.Errorf("the store has element %s, which was never added: sent %t, refused %t", element, sent, a.Refused)
		}
	}
	return nil
}

// timely checks that a reading contains what was acknowledged before it began, and nothing that was sent after it.
func (r Reading) timely(attempts []Attempt) error {
	for _, a := range attempts {
		seen := slices.Contains(r.Elements, a.Element)
		if !seen && a.acknowledged() && a.Return < r.Call {
			return fmt.Errorf("stale read: element %s was acknowledged before the read began, but the reader did not see it", a.Element)
		}
		if seen && a.Call > r.Return {
			return fmt.Errorf("a reader saw element %s before it was sent", a.Element)
		}
	}
	return nil
}
