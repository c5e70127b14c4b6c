// Package check checks recorded histories of a replicated store: what clients sent and received, what watchers
// received, and what the store has at the end. It is pure, so that its tests feed it with made-up histories.
//
//   - [Linearizable] and [RealTime] check requests for single keys.
//   - [Responses] compares each answer with the history of the store.
//   - [Appends] and [Sets] check that nothing acknowledged is lost and nothing is executed twice.
//   - [Watch] compares what a watcher received with the history.
//   - [Leases] checks that keys of a lease exist exactly as long as they must.
package check

import (
	"fmt"
	"sort"
)

// Times are in nanoseconds since the start of the recording, by the clock of the clients.

// Kind is the kind of a request for one key.
type Kind int

// Kinds of requests. A Swap puts the key if it has an expected mod revision, and otherwise reads it.
const (
	Get Kind = iota
	Put
	Swap
	Delete
)

// Operation is a request for one key and its response.
type Operation struct {
	Client       int
	Call, Return int64
	Kind         Kind
	Key, Value   string
	// Expected is the mod revision with which a Swap compares the key; 0 means that it does not exist.
	Expected int64
	// Serializable is true for a Get that may read an old revision.
	Serializable bool

	// Unknown is true if there was no response: the request may be executed at any later time, or never.
	Unknown bool
	// Done is true if the request has changed the key.
	Done bool
	// Found and Revision are value and mod revision that were read, "" and 0 if the key does not exist. For a Put or a
	// Swap that is Done, Revision is that of the write.
	Found    string
	Revision int64
	// Header is the revision in the header of the response.
	Header int64
}

// String describes an operation in an error.
func (o Operation) String() string {
	name := [...]string{"get", "put", "swap", "delete"}[o.Kind]
	text := fmt.Sprintf("%s of key %s by client %d at %.3fs", name, o.Key, o.Client, float64(o.Call)/1e9)
	if o.Kind == Put || o.Kind == Swap {
		text += " with value " + o.Value
	}
	if o.Unknown {
		return text + ", no response"
	}
	return fmt.Sprintf("%s, response at %.3fs: done %t, value %q, mod revision %d, revision %d",
		text, float64(o.Return)/1e9, o.Done, o.Found, o.Revision, o.Header)
}

// wrote reports whether the operation has changed the key, as far as its response says.
func (o Operation) wrote() bool { return !o.Unknown && o.Done }

// Event is a change of a key.
type Event struct {
	Key, Value string
	Deleted    bool
	Revision   int64
}

// History is all changes of the store within a span of revisions, in order.
type History []Event

// Err returns an error unless the revisions are in order and no revision has two changes of a key.
func (h History) Err() error {
	keys, last := map[string]bool{}, int64(0)
	for _, event := range h {
		switch {
		case event.Revision < last:
			return fmt.Errorf("the history has revision %d after %d", event.Revision, last)
		case event.Revision > last:
			clear(keys)
			last = event.Revision
		case keys[event.Key]:
			return fmt.Errorf("the history has key %s twice at revision %d", event.Key, event.Revision)
		}
		keys[event.Key] = true
	}
	return nil
}

// between returns the changes of the revisions first to last.
func (h History) between(first, last int64) History {
	from := sort.Search(len(h), func(i int) bool { return h[i].Revision >= first })
	to := sort.Search(len(h), func(i int) bool { return h[i].Revision > last })
	return h[from:max(from, to)]
}

// at returns the change of a key at a revision.
func (h History) at(key string, revision int64) (Event, bool) {
	for _, event := range h.between(revision, revision) {
		if event.Key == key {
			return event, true
		}
	}
	return Event{}, false
}

// byKey returns the changes of each key.
func (h History) byKey() map[string]History {
	keys := map[string]History{}
	for _, event := range h {
		keys[event.Key] = append(keys[event.Key], event)
	}
	return keys
}

// state returns the last change up to a revision; a deletion at revision 0 if there is none.
func (h History) state(revision int64) Event {
	i := sort.Search(len(h), func(i int) bool { return h[i].Revision > revision })
	if i == 0 {
		return Event{Deleted: true}
	}
	return h[i-1]
}
