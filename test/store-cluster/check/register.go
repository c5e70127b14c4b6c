package check

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Linearizable checks that the requests for each key have an order that agrees with their responses and with the time.
// Serializable reads are left out. It gives up after timeout, and then returns an error.
func Linearizable(operations []Operation, timeout time.Duration) error {
	byKey := map[string][]porcupine.Operation{}
	for _, o := range operations {
		if o.Serializable || o.Unknown && o.Kind == Get {
			continue
		}
		end := o.Return
		if o.Unknown {
			end = math.MaxInt64
		}
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Output: o, Return: end})
	}
	deadline := time.Now().Add(timeout)
	for key, history := range byKey {
		switch porcupine.CheckOperationsTimeout(registerModel.ToModel(), history, time.Until(deadline)) {
		case porcupine.Illegal:
			return fmt.Errorf("the %d requests for key %s are not linearizable", len(history), key)
		case porcupine.Unknown:
			return fmt.Errorf("porcupine has not decided within %v about the %d requests for key %s", timeout, len(history), key)
		}
	}
	return nil
}

// register is the state of one key. value is "" if the key does not exist. After a write without response, revision is
// revisionUnknown until the next read.
type register struct {
	value    string
	revision int64
}

const revisionUnknown = -1

var registerModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Step: func(state, input, _ any) (after []any) {
		for _, next := range state.(register).step(input.(Operation)) {
			after = append(after, next)
		}
		return after
	},
	Equal: func(a, b any) bool { return a == b },
}

// step returns the possible states after an operation; none if its response is impossible.
func (r register) step(o Operation) []register {
	if o.Unknown {
		return r.stepUnknown(o)
	}
	matches := func(value string, revision int64) bool {
		return r.value == value && (r.revision == revision || r.revision == revisionUnknown)
	}
	written := []register{{o.Value, o.Revision}}
	switch {
	case o.Kind == Put:
		return written
	case o.Kind == Delete && o.Done == (r.value != ""):
		return []register{{}}
	case o.Kind == Delete:
		return nil
	case o.Kind == Swap && o.Done && (r.revision == o.Expected || r.revision == revisionUnknown):
		return written
	case o.Kind == Swap && o.Done:
		return nil
	case matches(o.Found, o.Revision):
		return []register{{o.Found, o.Revision}}
	}
	return nil
}

// stepUnknown returns the state without the operation, and the state with it if it can have been executed.
func (r register) stepUnknown(o Operation) []register {
	switch {
	case o.Kind == Put, o.Kind == Swap && (r.revision == o.Expected || r.revision == revisionUnknown):
		return []register{r, {o.Value, revisionUnknown}}
	case o.Kind == Delete:
		return []register{r, {}}
	}
	return []register{r}
}

// RealTime checks the revisions of all responses: a request that is sent after a response has arrived sees at least the
// revision of that response, and a write gets a higher one. This is what linearizability means across keys.
func RealTime(operations []Operation) error {
	answered := slices.DeleteFunc(slices.Clone(operations), func(o Operation) bool { return o.Unknown })
	ended := slices.Clone(answered)
	sort.Slice(answered, func(i, j int) bool { return answered[i].Call < answered[j].Call })
	sort.Slice(ended, func(i, j int) bool { return ended[i].Return < ended[j].Return })
	var newest Operation // of those that had ended
	for next, o := 0, 0; o < len(answered); o++ {
		for ; next < len(ended) && ended[next].Return < answered[o].Call; next++ {
			if ended[next].Header > newest.Header {
				newest = ended[next]
			}
		}
		current := answered[o]
		switch {
		case current.Serializable:
		case current.Header < newest.Header:
			return fmt.Errorf("%v is older than what another client had seen before: %v", current, newest)
		case current.wrote() && current.Header <= newest.Header:
			return fmt.Errorf("%v has a revision that another client had seen before: %v", current, newest)
		}
	}
	return nil
}

// Responses compares each response with the history, which must contain all changes of the keys up to its last revision:
// every acknowledged write is at its revision, and every read returned what the key had at the revision of the response.
func Responses(operations []Operation, history History) error {
	if len(history) == 0 {
		return fmt.Errorf("the history is empty")
	}
	last, keys := history[len(history)-1].Revision, history.byKey()
	for _, o := range operations {
		switch {
		case o.Unknown:
		case o.Header > last:
			return fmt.Errorf("%v: the history ends at revision %d", o, last)
		case o.wrote():
			event, found := history.at(o.Key, o.Header)
			if !found {
				return fmt.Errorf("acknowledged write is lost: %v: the history has no such change", o)
			}
			if event.Deleted != (o.Kind == Delete) || !event.Deleted && event.Value != o.Value {
				return fmt.Errorf("%v: the history has another change at this revision: %+v", o, event)
			}
		case o.Kind == Get, o.Kind == Swap:
			state := keys[o.Key].state(o.Header)
			if state.Deleted {
				state = Event{}
			}
			if state.Revision != o.Revision || state.Value != o.Found {
				return fmt.Errorf("%v: at this revision the key has value %q and mod revision %d", o, state.Value, state.Revision)
			}
		case o.Kind == Delete:
			if state := keys[o.Key].state(o.Header); !state.Deleted {
				return fmt.Errorf("%v deleted nothing: the key has value %q at this revision", o, state.Value)
			}
		}
	}
	return nil
}
