package core

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// TestHeldNodesAreDueOnce checks which held nodes are due after confirmations: each once, in the order of the
// announcements, and not after it has disappeared.
func TestHeldNodesAreDueOnce(t *testing.T) {
	var held heldNodes
	for i, uid := range []types.UID{"a", "b", "c", "d"} {
		held.add(uid, int64(10*(i+1)), time.Unix(int64(i), 0))
	}
	for _, step := range []struct {
		confirmed  int64
		gone       types.UID
		due        []types.UID
		nextOldest int64
	}{
		{9, "", nil, 10},
		{10, "", []types.UID{"a"}, 20},
		{10, "b", nil, 30},
		{35, "", []types.UID{"c"}, 40},
		{35, "d", nil, 0},
		{50, "", nil, 0},
	} {
		if step.gone != "" && (!held.has(step.gone) || !held.remove(step.gone)) {
			t.Errorf("node %s is not held", step.gone)
		}
		due := held.due(step.confirmed)
		if !slices.Equal(due, step.due) {
			t.Errorf("due(%d) = %v, want %v", step.confirmed, due, step.due)
		}
		for _, uid := range due {
			held.remove(uid)
		}
		if got := held.oldest().announcement; got != step.nextOldest {
			t.Errorf("after due(%d), the oldest node has announcement %d, want %d", step.confirmed, got, step.nextOldest)
		}
	}
	if held.remove("a") {
		t.Error("remove() of a node that is not held = true")
	}
}

// unreachablePeer is the environment of a member that does not reach one peer.
type unreachablePeer struct {
	allListed
	name string
}

func (u *unreachablePeer) Unreachable(name string) bool { return name == u.name }

// TestNodesWaitForOwnersAndLeader checks whose confirmations count, and that a replica is not ready while it waits for one
// that it cannot reach.
func TestNodesWaitForOwnersAndLeader(t *testing.T) {
	environment := &unreachablePeer{}
	m := NewMember(MemberConfig{Self: "self"}, environment)
	now := time.Unix(1_000_000, 0)
	m.assignment = &wire.Assignment{Leader: membership.Member{Name: "leader"}, Owners: []string{"self", "owner"}}
	m.held.add("node", 5, now.Add(-2*UnreachableAfter))
	for _, name := range []string{"self", "owner", "leader"} {
		if got := m.confirmedByAll(); got != 0 {
			t.Errorf("confirmedByAll() without %s = %d, want 0", name, got)
		}
		m.peers[name] = &Peer{confirmed: 7}
	}
	m.peers["relay"] = &Peer{}
	if got := m.confirmedByAll(); got != 7 {
		t.Errorf("confirmedByAll() = %d, want 7", got)
	}
	m.peers["owner"].confirmed = 4
	if got := m.confirmedByAll(); got != 4 {
		t.Errorf("confirmedByAll() = %d, want 4", got)
	}
	if m.awaitsUnreachable(now) {
		t.Error("awaitsUnreachable() = true while all peers are connected, want false")
	}
	environment.name = "owner"
	if !m.awaitsUnreachable(now) {
		t.Error("awaitsUnreachable() = false, want true while the owner that has not confirmed the node is unreachable")
	}
	m.peers["owner"].confirmed = 5
	if m.awaitsUnreachable(now) {
		t.Error("awaitsUnreachable() = true after all have confirmed the node, want false")
	}
}
