package check

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds the work of porcupine, which needs milliseconds for the histories of these tests.
const patience = time.Minute

// The helpers make operations that take 5 time units from a call on, and events.

func put(client int, key, value string, call, revision int64) Operation {
	return Operation{Client: client, Kind: Put, Key: key, Value: value, Call: call, Return: call + 5, Done: true, Revision: revision, Header: revision}
}

func get(client int, key, found string, call, revision, header int64) Operation {
	return Operation{Client: client, Kind: Get, Key: key, Found: found, Call: call, Return: call + 5, Revision: revision, Header: header}
}

func unanswered(o Operation) Operation {
	o.Unknown, o.Done, o.Revision, o.Header = true, false, 0, 0
	return o
}

func event(key, value string, revision int64) Event {
	return Event{Key: key, Value: value, Revision: revision}
}

// expect fails the test unless err has the wanted text; "" for no error.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err == nil && want != "":
		t.Errorf("no error, want one with %q", want)
	case err != nil && (want == "" || !strings.Contains(err.Error(), want)):
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestLinearizable(t *testing.T) {
	a, b := put(1, "k", "a", 0, 2), put(2, "k", "b", 10, 3)
	for name, c := range map[string]struct {
		history []Operation
		want    string
	}{
		"read of the last write":          {[]Operation{a, b, get(3, "k", "b", 20, 3, 3)}, ""},
		"stale read":                      {[]Operation{a, b, get(3, "k", "a", 20, 2, 2)}, "not linearizable"},
		"lost write":                      {[]Operation{a, get(3, "k", "", 10, 0, 2)}, "not linearizable"},
		"wrong revision":                  {[]Operation{a, get(3, "k", "a", 10, 3, 3)}, "not linearizable"},
		"no response, executed late":      {[]Operation{unanswered(a), get(3, "k", "", 10, 0, 1), get(3, "k", "a", 20, 2, 2)}, ""},
		"no response, then disappears":    {[]Operation{unanswered(a), get(3, "k", "a", 10, 2, 2), get(3, "k", "", 20, 0, 2)}, "not linearizable"},
		"no response, executed twice":     {[]Operation{unanswered(a), get(3, "k", "a", 10, 2, 2), b, get(3, "k", "a", 30, 4, 4)}, "not linearizable"},
		"concurrent writes, either order": {[]Operation{a, put(2, "k", "b", 1, 3), get(3, "k", "b", 20, 3, 3)}, ""},
		"swap of an old revision":         {[]Operation{a, b, {Kind: Swap, Key: "k", Value: "c", Expected: 2, Call: 20, Return: 25, Done: true, Revision: 4, Header: 4}}, "not linearizable"},
		"two swaps of one revision": {[]Operation{
			a,
			{Kind: Swap, Key: "k", Value: "c", Expected: 2, Call: 20, Return: 25, Done: true, Revision: 3, Header: 3},
			{Kind: Swap, Key: "k", Value: "d", Expected: 2, Call: 30, Return: 35, Done: true, Revision: 4, Header: 4},
		}, "not linearizable"},
		"serializable read of an old value": {[]Operation{a, b, {Kind: Get, Key: "k", Serializable: true, Found: "a", Revision: 2, Header: 2, Call: 20, Return: 25}}, ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, Linearizable(c.history, patience), c.want) })
	}
}

func TestRealTime(t *testing.T) {
	a, b := put(1, "a", "x", 0, 2), put(2, "b", "y", 10, 3)
	old := get(3, "c", "", 20, 0, 2)
	expect(t, RealTime([]Operation{a, b, get(3, "c", "", 20, 0, 3)}), "")
	expect(t, RealTime([]Operation{a, b, old}), "older than what another client had seen")
	expect(t, RealTime([]Operation{b, put(1, "a", "x", 20, 3)}), "revision that another client had seen before")
	old.Serializable = true
	expect(t, RealTime([]Operation{a, b, old}), "")
	concurrent := get(3, "c", "", 12, 0, 2)
	expect(t, RealTime([]Operation{a, b, concurrent}), "")
}

func TestResponses(t *testing.T) {
	history := History{event("k", "a", 2), event("other", "x", 3), event("k", "b", 4), {Key: "k", Deleted: true, Revision: 5}, event("other", "y", 6)}
	remove := Operation{Kind: Delete, Key: "k", Done: true, Header: 5}
	for name, c := range map[string]struct {
		operation Operation
		want      string
	}{
		"write":                        {put(1, "k", "b", 0, 4), ""},
		"lost write":                   {put(1, "k", "c", 0, 3), "acknowledged write is lost"},
		"write of another value":       {put(1, "k", "c", 0, 4), "another change at this revision"},
		"write after the end":          {put(1, "k", "c", 0, 7), "ends at revision 6"},
		"deletion":                     {remove, ""},
		"deletion that put":            {Operation{Kind: Delete, Key: "k", Done: true, Header: 4}, "another change"},
		"deletion of nothing":          {Operation{Kind: Delete, Key: "k", Header: 6}, ""},
		"deletion that missed a key":   {Operation{Kind: Delete, Key: "k", Header: 4}, "deleted nothing"},
		"read":                         {get(1, "k", "a", 0, 2, 3), ""},
		"read of a value before":       {get(1, "k", "a", 0, 2, 4), "has value \"b\""},
		"read of a deleted key":        {get(1, "k", "", 0, 0, 6), ""},
		"read of a value after":        {get(1, "k", "b", 0, 4, 3), "has value \"a\""},
		"serializable read of garbage": {Operation{Kind: Get, Key: "k", Serializable: true, Found: "z", Revision: 3, Header: 3}, "has value \"a\""},
		"no response":                  {unanswered(put(1, "k", "c", 0, 3)), ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, Responses([]Operation{c.operation}, history), c.want) })
	}
	expect(t, history.Err(), "")
	expect(t, History{event("k", "a", 2), event("k", "b", 2)}.Err(), "twice at revision 2")
	expect(t, History{event("k", "a", 3), event("k", "b", 2)}.Err(), "revision 2 after 3")
	expect(t, Responses(nil, nil), "empty")
}

// attempts are those of three elements one after the other, the second of which has no response, and the third is refused.
func attempts() []Attempt {
	return []Attempt{{Element: "a", Call: 0, Return: 5}, {Element: "b", Call: 10, Return: 15, Unknown: true}, {Element: "c", Call: 20, Return: 25, Refused: true}, {Element: "d", Call: 30, Return: 35}}
}

func TestAppends(t *testing.T) {
	for name, c := range map[string]struct {
		readings []Reading
		final    []string
		want     string
	}{
		"with the one without response":   {nil, []string{"a", "b", "d"}, ""},
		"without it":                      {nil, []string{"a", "d"}, ""},
		"late":                            {nil, []string{"a", "d", "b"}, ""},
		"lost write":                      {nil, []string{"b", "d"}, "acknowledged element a is lost"},
		"doubled append":                  {nil, []string{"a", "b", "d", "a"}, "element a was appended twice"},
		"doubled append without response": {nil, []string{"a", "b", "b", "d"}, "element b was appended twice"},
		"refused and executed":            {nil, []string{"a", "c", "d"}, "refused true"},
		"never sent":                      {nil, []string{"a", "d", "z"}, "sent false"},
		"wrong order":                     {nil, []string{"d", "a"}, "a was acknowledged before d"},
		"readings":                        {[]Reading{{Call: 6, Return: 8, Elements: []string{"a"}}, {Call: 40, Return: 45, Elements: []string{"a", "d"}}}, []string{"a", "d"}, ""},
		"stale read":                      {[]Reading{{Call: 40, Return: 45, Elements: []string{"a"}}}, []string{"a", "d"}, "stale read: element d"},
		"read of the future":              {[]Reading{{Call: 6, Return: 8, Elements: []string{"a", "d"}}}, []string{"a", "d"}, "element d before it was sent"},
		"read of what disappeared":        {[]Reading{{Call: 40, Return: 45, Elements: []string{"a", "b", "d"}}}, []string{"a", "d"}, "not the start of the final list"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, Appends(attempts(), c.readings, c.final), c.want) })
	}
}

func TestSets(t *testing.T) {
	reading := func(elements ...string) []Reading { return []Reading{{Call: 12, Return: 14, Elements: elements}} }
	expect(t, Sets(attempts(), reading("a"), []string{"d", "a"}), "")
	expect(t, Sets(attempts(), reading("a", "b"), []string{"a", "b", "d"}), "")
	expect(t, Sets(attempts(), nil, []string{"a"}), "acknowledged element d is lost")
	expect(t, Sets(attempts(), nil, []string{"a", "c", "d"}), "refused true")
	expect(t, Sets(attempts(), reading(), []string{"a", "d"}), "stale read: element a")
	expect(t, Sets(attempts(), reading("a", "d"), []string{"a", "d"}), "element d before it was sent")
}

func TestWatch(t *testing.T) {
	// Revision 3 is a transaction with two changes.
	history := History{event("a", "1", 2), event("b", "1", 3), event("c", "1", 3), event("a", "2", 4), event("a", "3", 5)}
	without := func(i int) []Event { return slices.Delete(slices.Clone(history), i, i+1) }
	swapped := slices.Clone(history)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	for name, c := range map[string]struct {
		events []Event
		want   string
	}{
		"complete":                       {history, ""},
		"up to the end, and no more":     {history[:4], ""},
		"missing event":                  {without(0), "missing or late"},
		"missing event of a transaction": {without(2), "missing or late"},
		"missing event at the end":       {without(3), "missing or late"},
		"missing events at the end":      {history[:2], "2 events of 4 are missing"},
		"doubled event":                  {slices.Insert(slices.Clone(history), 2, history[1]), "delivered twice"},
		"wrong order":                    {swapped, "missing or late"},
		"wrong value":                    {append([]Event{event("a", "9", 2)}, history[1:]...), "an event is wrong"},
		"event that the history lacks":   {slices.Insert(slices.Clone(history), 4, event("z", "1", 4)), "the history ends before it"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, Watch(Stream{Name: "m", From: 2, Events: c.events}, history, 4), c.want) })
	}
	later := Stream{Name: "m", From: 3, Events: history[1:]}
	expect(t, Watch(later, history, 5), "")
	later.Progress = []Progress{{Revision: 2, After: 0}, {Revision: 3, After: 2}, {Revision: 5, After: 4}}
	expect(t, Watch(later, history, 5), "")
	later.Progress = []Progress{{Revision: 3, After: 1}}
	expect(t, Watch(later, history, 5), "progress notification covers revision 3")
	later.Progress = []Progress{{Revision: 4, After: 2}}
	expect(t, Watch(later, history, 4), "progress notification covers revision 4")
}

func TestLeases(t *testing.T) {
	lease := Lease{Key: "k", Attached: 10, AliveUntil: 100, RevokeCall: 50, RevokeReturn: 60}
	unrevoked := Lease{Key: "k", Attached: 10, AliveUntil: 100}
	for name, c := range map[string]struct {
		lease Lease
		read  KeyRead
		want  string
	}{
		"alive":                       {lease, KeyRead{"k", 20, 25, true}, ""},
		"expired too early":           {unrevoked, KeyRead{"k", 80, 90, false}, "is gone"},
		"expired":                     {unrevoked, KeyRead{"k", 95, 105, false}, ""},
		"lives longer":                {unrevoked, KeyRead{"k", 200, 205, true}, ""},
		"gone before it was put":      {unrevoked, KeyRead{"k", 5, 15, false}, ""},
		"gone, maybe revoked":         {lease, KeyRead{"k", 45, 55, false}, ""},
		"exists, maybe revoked":       {lease, KeyRead{"k", 55, 58, true}, ""},
		"gone before the revocation":  {lease, KeyRead{"k", 40, 45, false}, "is gone"},
		"exists after the revocation": {lease, KeyRead{"k", 61, 65, true}, "revocation of its lease was acknowledged"},
		"of no lease":                 {lease, KeyRead{"other", 61, 65, true}, ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, Leases([]Lease{c.lease}, []KeyRead{c.read}), c.want) })
	}
}
