package check

import "fmt"

// Stream is what a watcher of all keys received, from a revision on, across all its connections.
type Stream struct {
	// Name says to which member the watcher was connected.
	Name   string
	From   int64
	Events []Event
	// Progress are the progress notifications.
	Progress []Progress
}

// Progress is a notification that a watcher has received all events up to a revision.
type Progress struct {
	Revision int64
	// After is the number of events that had arrived before.
	After int
}

// Watch checks that a watcher received each change of the history exactly once and in order, up to the revision until, and
// that no progress notification came before an event that it covers.
func Watch(s Stream, history History, until int64) error {
	want := history.between(s.From, until)
	for i, event := range s.Events {
		switch {
		case event.Revision > until && i == len(want):
			return s.progress(want)
		case i == len(want):
			return fmt.Errorf("watcher of %s: event %d is %+v, but the history ends before it", s.Name, i, event)
		case event != want[i]:
			return fmt.Errorf("watcher of %s: event %d is %+v, but the history has %+v: %s", s.Name, i, event, want[i], difference(s.Events[:i], event, want[i]))
		}
	}
	if len(s.Events) < len(want) {
		return fmt.Errorf("watcher of %s: %d events of %d are missing, the first is %+v", s.Name, len(want)-len(s.Events), len(want), want[len(s.Events)])
	}
	return s.progress(want)
}

// difference names the kind of a wrong event.
func difference(before []Event, got, want Event) string {
	for _, earlier := range before {
		if earlier == got {
			return "an event was delivered twice"
		}
	}
	if got.Revision > want.Revision {
		return "an event is missing or late"
	}
	return "an event is wrong"
}

// progress checks the progress notifications of a stream whose events are those of the history.
func (s Stream) progress(want History) error {
	for _, p := range s.Progress {
		if p.After < len(want) && want[p.After].Revision <= p.Revision {
			return fmt.Errorf("watcher of %s: a progress notification covers revision %d, but arrived before %+v", s.Name, p.Revision, want[p.After])
		}
	}
	return nil
}
