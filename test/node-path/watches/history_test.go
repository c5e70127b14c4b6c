package watches

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// history records every change of the objects below a prefix of the store.
type history struct {
	// start is the revision of the initial state.
	start   int64
	initial map[string]runtime.Object
	mutex   sync.Mutex
	changes []change
	seen    int64
}

// change is a change of an object. before or after may be nil.
type change struct {
	revision      int64
	key           string
	before, after runtime.Object
}

// record begins to record. It ends with the test.
func (c *cluster) record(t *testing.T, prefix string) *history {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	result, err := c.store.Get(ctx, prefix, clientv3.WithPrefix())
	must(t, err)
	h := &history{start: result.Header.Revision, initial: map[string]runtime.Object{}, seen: result.Header.Revision}
	for _, item := range result.Kvs {
		h.initial[string(item.Key)] = stored(t, item.Value, item.ModRevision)
	}
	events := c.store.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(h.start+1), clientv3.WithProgressNotify())
	go func() {
		for response := range events {
			h.add(t, response)
		}
	}()
	return h
}

func (h *history) add(t *testing.T, response clientv3.WatchResponse) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, event := range response.Events {
		next := change{revision: event.Kv.ModRevision, key: string(event.Kv.Key)}
		if event.PrevKv != nil {
			next.before = stored(t, event.PrevKv.Value, event.PrevKv.ModRevision)
		}
		if event.Type == clientv3.EventTypePut {
			next.after = stored(t, event.Kv.Value, event.Kv.ModRevision)
		}
		h.changes = append(h.changes, next)
	}
	h.seen = max(h.seen, response.Header.Revision)
}

// until waits until everything up to a revision is recorded, and returns it.
func (h *history) until(t *testing.T, revision int64) []change {
	t.Helper()
	testcluster.Eventually(t, settleTimeout, "the store's history is recorded", func() bool {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		return h.seen >= revision
	})
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return slices.Clone(h.changes)
}

// state returns the objects at a revision, by key.
func (h *history) state(changes []change, revision int64) map[string]runtime.Object {
	state := map[string]runtime.Object{}
	for key, object := range h.initial {
		state[key] = object
	}
	for _, change := range changes {
		if change.revision > revision {
			break
		}
		if change.after == nil {
			delete(state, change.key)
		} else {
			state[change.key] = change.after
		}
	}
	return state
}

// stored decodes what is in the store, as an object with its version.
func stored(t *testing.T, value []byte, revision int64) runtime.Object {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		t.Errorf("decode a stored value: %v", err)
		return &corev1.Pod{}
	}
	return versioned(object, revision)
}

// versioned returns a copy with a version.
func versioned(object runtime.Object, revision int64) runtime.Object {
	object = object.DeepCopyObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetResourceVersion(fmt.Sprint(revision))
	}
	return object
}

// expected returns what a change is to a watch; nil if nothing.
func (c change) expected(selects func(runtime.Object) bool) *event {
	before, after := c.before != nil && selects(c.before), c.after != nil && selects(c.after)
	switch {
	case before && after:
		return &event{kind: watch.Modified, version: c.revision, object: c.after}
	case after:
		return &event{kind: watch.Added, version: c.revision, object: c.after}
	case before:
		return &event{kind: watch.Deleted, version: c.revision, object: versioned(c.before, c.revision)}
	}
	return nil
}

// check holds what a watching client saw against the history: each change once, in order, nothing missed over
// reconnects, no bookmark before the changes that it covers, and no state that is older than what was seen. It returns the number of changes.
func (h *history) check(t *testing.T, name string, seen []event, selects func(runtime.Object) bool, changes []change) int {
	t.Helper()
	var expected []event
	for _, change := range changes {
		if event := change.expected(selects); event != nil {
			expected = append(expected, *event)
		}
	}
	checked, after := 0, h.start
	// next returns the first change after the last version that the client knows.
	next := func() *event {
		at, _ := slices.BinarySearchFunc(expected, after+1, func(e event, version int64) int { return int(e.version - version) })
		if at < len(expected) {
			return &expected[at]
		}
		return nil
	}
	var initial []event
	for i, got := range seen {
		switch {
		case got.starts && got.hasState:
			initial = []event{}
		case got.starts:
			// Initial events that broke off do not count.
			initial = nil
		case got.kind == watch.Bookmark && initial != nil:
			h.checkInitial(t, name, initial, got.version, selects, changes)
			if got.version < after {
				t.Errorf("%s: event %d ends a state of %d after %d", name, i, got.version, after)
			}
			initial, after = nil, got.version
		case got.kind == watch.Bookmark:
			if missed := next(); missed != nil && missed.version <= got.version {
				t.Errorf("%s: event %d is a bookmark of %d, but the change of %d was not sent", name, i, got.version, missed.version)
				return checked
			}
			if got.version < after {
				t.Errorf("%s: event %d is a bookmark of %d after %d", name, i, got.version, after)
			}
			after = got.version
		case initial != nil:
			initial = append(initial, got)
		default:
			want := next()
			if want == nil || want.kind != got.kind || want.version != got.version || !equality.Semantic.DeepEqual(want.object, got.object) {
				t.Errorf("%s: event %d is %s %d, want %s\n%v\n%v", name, i, got.kind, got.version, want.short(), got.object, want)
				return checked
			}
			checked, after = checked+1, got.version
		}
	}
	if missed := next(); missed != nil {
		t.Errorf("%s: the change of %d was not sent", name, missed.version)
	}
	return checked
}

// checkInitial compares initial events with the state at the version of the bookmark after them.
func (h *history) checkInitial(t *testing.T, name string, initial []event, version int64, selects func(runtime.Object) bool, changes []change) {
	t.Helper()
	var keys []string
	state := h.state(changes, version)
	for key, object := range state {
		if selects(object) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, strings.Compare)
	if len(keys) != len(initial) {
		t.Errorf("%s: %d initial events at %d, want %d", name, len(initial), version, len(keys))
		return
	}
	for i, key := range keys {
		if initial[i].kind != watch.Added || !equality.Semantic.DeepEqual(initial[i].object, state[key]) {
			t.Errorf("%s: initial event %d at %d is %s %v, want %v", name, i, version, initial[i].kind, initial[i].object, state[key])
		}
	}
}
