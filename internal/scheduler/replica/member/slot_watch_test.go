package member

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestProgressOfListsCountsEachObjectOnce lists nodes in several attempts. Only objects that no earlier attempt has
// delivered, and the end of the first list, are progress.
func TestProgressOfListsCountsEachObjectOnce(t *testing.T) {
	s := newSlotWatcher(&v1.Node{}, nil, nil, func(_, _ *v1.Node, _ bool) {}, func() {})
	w := &slotWatch[*v1.Node]{watcher: s, slots: make([]bool, membership.SlotCount), seen: sets.New[types.UID]()}
	s.watches = append(s.watches, w)
	attempt := func(want int64, names ...string) {
		t.Helper()
		count := w.Transformer()
		for _, name := range names {
			if _, err := count(schedtest.PlainNode(name, "1")); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.progress.Load(); got != want {
			t.Errorf("progress is %d after %q, want %d", got, names, want)
		}
	}
	attempt(2, "a", "b")
	attempt(2, "a", "b")
	attempt(3, "a", "c")
	for range 2 {
		if err := w.Replace(nil, "5"); err != nil {
			t.Fatal(err)
		}
		attempt(4, "a", "d")
	}
}
