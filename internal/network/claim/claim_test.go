package claim

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	pool  = netip.MustParsePrefix("2001:db8:5::/64")
	first = netip.MustParsePrefix("2001:db8:5:0:0:1::/96")
)

// clocked is a store whose time and nodes the test decides.
type clocked struct {
	Store
	now  time.Time
	gone map[string]bool
}

func (c *clocked) Now() time.Time { return c.now }

func newStore(t *testing.T) *clocked {
	t.Helper()
	store, err := NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &clocked{Store: store, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func held(err error) *HeldError {
	var h *HeldError
	errors.As(err, &h)
	return h
}

func TestPrefixHasOneNode(t *testing.T) {
	s := newStore(t)
	take := func(node string) error { return Take(t.Context(), s, first, node, time.Hour) }
	if err := take("a"); err != nil {
		t.Fatal(err)
	}
	if err := take("a"); err != nil {
		t.Errorf("the holder cannot claim its prefix again: %v", err)
	}
	h := held(take("b"))
	if h == nil || h.Claim.Node != "a" || !h.Free.IsZero() || !strings.Contains(h.Error(), "claimed by node a") {
		t.Fatalf("the second node got %v", h)
	}
	if err := Release(t.Context(), s, first, "b"); err != nil {
		t.Errorf("a release by another node: %v", err)
	}
	if held(take("b")) == nil {
		t.Error("another node released the prefix of a")
	}
}

// A prefix that was released is not given to another node early. Its own node gets it at once.
func TestPrefixIsNotReusedEarly(t *testing.T) {
	s := newStore(t)
	take := func(node string) error { return Take(t.Context(), s, first, node, time.Hour) }
	for _, err := range []error{take("a"), Release(t.Context(), s, first, "a"), Release(t.Context(), s, first, "a")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.now = s.now.Add(59 * time.Minute)
	h := held(take("b"))
	if h == nil || !h.Free.Equal(s.now.Add(time.Minute)) {
		t.Fatalf("after 59 minutes: %v", h)
	}
	if err := take("a"); err != nil {
		t.Fatalf("the node that had it: %v", err)
	}
	if err := Release(t.Context(), s, first, "a"); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(time.Hour)
	if err := take("b"); err != nil {
		t.Fatalf("after an hour: %v", err)
	}
	if h := held(take("a")); h == nil || h.Claim.Node != "b" {
		t.Errorf("the earlier node got %v", h)
	}
}

// orphaned is a store in which nodes are deleted.
type orphaned struct{ *clocked }

func (o orphaned) Exists(_ context.Context, node string) (bool, error) { return !o.gone[node], nil }

func TestPrefixOfADeletedNode(t *testing.T) {
	s := newStore(t)
	if err := Take(t.Context(), s, first, "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	s.gone = map[string]bool{"a": true}
	take := func() error { return Take(t.Context(), orphaned{s}, first, "b", time.Hour) }
	h := held(take())
	if h == nil || !h.Free.Equal(s.now.Add(time.Hour)) {
		t.Fatalf("a prefix whose node was just found to be deleted: %v", h)
	}
	s.now = s.now.Add(30 * time.Minute)
	if h := held(take()); h == nil || !h.Free.Equal(s.now.Add(30*time.Minute)) {
		t.Fatalf("after half an hour: %v", h)
	}
	s.now = s.now.Add(30 * time.Minute)
	if err := take(); err != nil {
		t.Fatalf("after an hour: %v", err)
	}
}

// Of many nodes that claim one prefix at the same time, one gets it.
func TestOneOfManyGetsThePrefix(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	var mu sync.Mutex
	winners := 0
	for i := range 20 {
		wait.Go(func() {
			store, err := NewDirectory(dir)
			if err == nil {
				err = Take(t.Context(), store, first, string(rune('a'+i)), time.Hour)
			}
			if err == nil {
				mu.Lock()
				winners++
				mu.Unlock()
			} else if held(err) == nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if winners != 1 {
		t.Errorf("%d nodes got the prefix", winners)
	}
}

func TestAssign(t *testing.T) {
	s := newStore(t)
	assign := func(node string, before netip.Prefix) netip.Prefix {
		t.Helper()
		p, err := Assign(t.Context(), s, pool, 96, node, before, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := assign("a", netip.Prefix{})
	if assign("a", netip.Prefix{}) != a || assign("a", a) != a {
		t.Error("a node that comes back gets another prefix")
	}
	if b := assign("b", a); b == a {
		t.Error("a node got the prefix of another one that it remembered")
	}
	// In a pool of two prefixes, the third node gets none.
	small := netip.MustParsePrefix("2001:db8:6::/95")
	seen := map[netip.Prefix]bool{}
	for _, node := range []string{"c", "d"} {
		p, err := Assign(t.Context(), s, small, 96, node, netip.Prefix{}, time.Hour)
		if err != nil || seen[p] {
			t.Errorf("%s got %s, %v", node, p, err)
		}
		seen[p] = true
	}
	if p, err := Assign(t.Context(), s, small, 96, "e", netip.Prefix{}, time.Hour); err == nil || !strings.Contains(err.Error(), "use a larger pool") {
		t.Errorf("a node of a full pool got %s, %v", p, err)
	}
}

func TestDamagedClaim(t *testing.T) {
	dir := t.TempDir()
	store, err := NewDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileName(first)+".json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Take(t.Context(), store, first, "a", time.Hour); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Error(err)
	}
}
