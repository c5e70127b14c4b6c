package registry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// plane records the peers of a registry.
type plane map[string]Peer

func (p plane) AddPeer(peer Peer) error {
	if _, exists := p[peer.Name]; exists {
		return fmt.Errorf("peer %s is added twice", peer.Name)
	}
	p[peer.Name] = peer
	return nil
}

func (p plane) RemovePeer(name string) { delete(p, name) }

var (
	now         = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	certificate = Certificate{Serial: "17", Expires: now.Add(time.Hour)}
)

func node(name, prefix string) Node {
	return Node{Name: name, Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}
}

func key(n byte) wireguard.PublicKey { return wireguard.PublicKey{n} }

func newTest(t *testing.T) (*Registry, plane) {
	p := plane{}
	r := New(Config{MaxPeers: 3, TTL: time.Minute, IPv4: netip.MustParsePrefix("10.64.0.0/29")}, p)
	for _, n := range []Node{node("a", "2001:db8:1::/96"), node("b", "2001:db8:2::/96"), node("c", "2001:db8:3::/96"), node("d", "2001:db8:4::/96")} {
		if err := r.SetNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return r, p
}

func register(t *testing.T, r *Registry, name string, k byte) Registration {
	t.Helper()
	registration, err := r.Register(name, key(k), certificate, now)
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

func TestPeersComeAndGo(t *testing.T) {
	r, p := newTest(t)
	first := register(t, r, "a", 1)
	if p["a"].Key != key(1) || !first.IPv4.IsValid() || p["a"].IPv4 != first.IPv4 {
		t.Fatalf("peer %+v", p["a"])
	}
	if again := register(t, r, "a", 1); again.IPv4 != first.IPv4 {
		t.Error("a renewal has changed the address")
	}
	if changed := register(t, r, "a", 2); p["a"].Key != key(2) || changed.IPv4 != first.IPv4 {
		t.Error("a new key does not replace the former one, or the address has changed")
	}
	r.DeleteNode("a")
	if len(p) != 0 {
		t.Error("a deleted node is a peer")
	}
	if _, err := r.Register("a", key(1), certificate, now); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("a deleted node: %v", err)
	}
	register(t, r, "b", 3)
	if !r.Leave("b") || r.Leave("b") || len(p) != 0 {
		t.Error("a node cannot leave")
	}
}

func TestConflictsAreRefused(t *testing.T) {
	r, p := newTest(t)
	register(t, r, "a", 1)
	if _, err := r.Register("b", key(1), certificate, now); !errors.Is(err, ErrConflict) {
		t.Errorf("the key of another node: %v", err)
	}
	for _, prefix := range []string{"2001:db8:1::/96", "2001:db8:1::/64", "2001:db8:1::7/128"} {
		if err := r.SetNode(node("b", prefix)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Register("b", key(2), certificate, now); !errors.Is(err, ErrConflict) {
			t.Errorf("prefix %s of another node: %v", prefix, err)
		}
	}
	if err := r.SetNode(Node{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register("b", key(2), certificate, now); !errors.Is(err, ErrNoPrefix) {
		t.Errorf("no prefix: %v", err)
	}
	if len(p) != 1 {
		t.Errorf("%d peers", len(p))
	}
}

func TestRegistrationsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		at      time.Time
		revoked bool
	}{
		"not renewed": {at: now.Add(61 * time.Second)},
		"expired":     {at: now.Add(time.Hour)},
		"revoked":     {at: now.Add(time.Second), revoked: true},
	} {
		r, p := newTest(t)
		register(t, r, "a", 1)
		never := func(string) bool { return false }
		if r.Expire(now.Add(time.Minute), never); len(p) != 1 {
			t.Errorf("%s: ended early", name)
		}
		gone := r.Expire(c.at, func(serial string) bool { return c.revoked && serial == "17" })
		if len(p) != 0 || len(gone) != 1 {
			t.Errorf("%s: still a peer", name)
		}
	}
}

func TestPrefixThatChanges(t *testing.T) {
	r, p := newTest(t)
	register(t, r, "a", 1)
	register(t, r, "b", 2)
	if err := r.SetNode(node("a", "2001:db8:9::/96")); err != nil {
		t.Fatal(err)
	}
	if p["a"].Prefixes[0] != netip.MustParsePrefix("2001:db8:9::/96") {
		t.Errorf("peer %+v", p["a"])
	}
	if err := r.SetNode(node("a", "2001:db8:2::/96")); !errors.Is(err, ErrConflict) {
		t.Errorf("the prefix of another node: %v", err)
	}
	if _, still := p["a"]; still || len(p) != 1 {
		t.Error("a node that claims the prefix of another one is a peer")
	}
}

func TestFullGateway(t *testing.T) {
	r, _ := newTest(t)
	seen := map[netip.Addr]bool{}
	for i, name := range []string{"a", "b", "c"} {
		seen[register(t, r, name, byte(i+1)).IPv4] = true
	}
	if len(seen) != 3 || seen[netip.MustParseAddr("10.64.0.0")] || seen[netip.MustParseAddr("10.64.0.7")] {
		t.Errorf("addresses %v", seen)
	}
	if _, err := r.Register("d", key(4), certificate, now); !errors.Is(err, ErrFull) {
		t.Errorf("more than the limit: %v", err)
	}
}

func TestRestoreKeepsAddresses(t *testing.T) {
	r, _ := newTest(t)
	register(t, r, "a", 1)
	register(t, r, "b", 2)
	p := plane{}
	next := New(r.config, p)
	for _, registration := range r.Registrations() {
		if err := next.Restore(registration); err != nil {
			t.Fatal(err)
		}
		if p[registration.Name].IPv4 != registration.IPv4 {
			t.Errorf("node %s has moved to %v", registration.Name, p[registration.Name].IPv4)
		}
	}
	if err := next.SetNode(node("a", "2001:db8:1::/96")); err != nil || len(p) != 2 {
		t.Errorf("a node that is known again: %v", err)
	}
}

// The sorted prefixes find the same overlaps as a comparison with all of them.
func TestOverlapsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	// Few addresses, so that many prefixes overlap.
	prefix := func() netip.Prefix {
		p := netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 1: byte(random.IntN(256)), 2: byte(random.IntN(256))}), 10+random.IntN(15))
		return p.Masked()
	}
	var all owners
	present := map[string][]netip.Prefix{}
	conflicts := 0
	for i := range 20_000 {
		name := fmt.Sprint(i % 50)
		if former := present[name]; former != nil {
			all.remove(name, former)
			delete(present, name)
		}
		own := outermost([]netip.Prefix{prefix(), prefix()})
		conflict := false
		for _, theirs := range present {
			for _, a := range theirs {
				for _, b := range own {
					conflict = conflict || a.Overlaps(b)
				}
			}
		}
		if _, _, found := all.overlapping(name, own); found != conflict {
			t.Fatalf("overlap of %v: %v, want %v", own, found, conflict)
		}
		if conflict {
			conflicts++
			continue
		}
		all.add(name, own)
		present[name] = own
	}
	entries := 0
	for _, prefixes := range present {
		entries += len(prefixes)
	}
	if entries != len(all) || conflicts < 1000 || conflicts > 19_000 {
		t.Errorf("%d entries of %d prefixes, %d conflicts", len(all), entries, conflicts)
	}
}
