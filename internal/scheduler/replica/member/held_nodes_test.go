package member

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
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

// TestNodesWaitForOwnersAndLeader checks whose confirmations count, and that a replica is not ready while it waits for one
// that it cannot reach.
func TestNodesWaitForOwnersAndLeader(t *testing.T) {
	named := func(name string) *peer {
		return &peer{link: wire.NewLink("self", membership.Member{Name: name}, nil, nil)}
	}
	m := &Member{
		assignment: &wire.Assignment{Leader: membership.Member{Name: "leader"}, Owners: []string{"self", "owner"}},
		peers:      map[string]*peer{}, announced: map[string]int64{}, connections: map[string]int32{}, unchecked: map[string]*listedNodes{},
	}
	m.held.add("node", 5, time.Now().Add(-2*unreachableAfter))
	for _, name := range []string{"self", "owner", "leader"} {
		if got := m.confirmedByAll(); got != 0 {
			t.Errorf("confirmedByAll() without %s = %d, want 0", name, got)
		}
		m.peers[name] = named(name)
		m.peers[name].confirmed = 7
	}
	m.peers["relay"] = named("relay")
	if got := m.confirmedByAll(); got != 7 {
		t.Errorf("confirmedByAll() = %d, want 7", got)
	}
	m.peers["owner"].confirmed = 4
	if got := m.confirmedByAll(); got != 4 {
		t.Errorf("confirmedByAll() = %d, want 4", got)
	}
	if m.awaitsUnreachable() {
		t.Error("awaitsUnreachable() = true right after the connection has ended, want false")
	}
	time.Sleep(unreachableAfter + 100*time.Millisecond)
	if !m.awaitsUnreachable() {
		t.Error("awaitsUnreachable() = false, want true while the owner that has not confirmed the node is unreachable")
	}
	m.peers["owner"].confirmed = 5
	if m.awaitsUnreachable() {
		t.Error("awaitsUnreachable() = true after all have confirmed the node, want false")
	}
}

// TestAwaitNodes waits for the nodes that are held when the wait starts. It ends when these are used or gone, although
// later ones are held, and with an error that names the replica that has not confirmed them.
func TestAwaitNodes(t *testing.T) {
	m := &Member{
		lastID: 20, assignment: &wire.Assignment{Leader: membership.Member{Name: "leader"}, Owners: []string{"leader", "owner"}},
		peers: map[string]*peer{"leader": {confirmed: 20}, "owner": {confirmed: 9}},
	}
	if err := m.AwaitNodes(t.Context()); err != nil {
		t.Errorf("AwaitNodes() without held nodes = %v", err)
	}
	m.held.add("a", 10, time.Now())
	m.held.add("b", 20, time.Now())
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.AwaitNodes(short); err == nil || !strings.Contains(err.Error(), "[owner]") {
		t.Errorf("AwaitNodes() = %v, want an error that names the owner", err)
	}
	ended := make(chan error)
	go func() { ended <- m.AwaitNodes(t.Context()) }()
	within := func(limit time.Duration, change func()) bool {
		time.Sleep(50 * time.Millisecond)
		m.mu.Lock()
		change()
		m.mu.Unlock()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("AwaitNodes() = %v", err)
			}
			return true
		case <-time.After(limit):
			return false
		}
	}
	if within(100*time.Millisecond, func() { m.held.add("c", 30, time.Now()); m.held.remove("a") }) {
		t.Error("AwaitNodes() ended while a node was held")
	}
	if !within(schedtest.Patience, func() { m.held.remove("b") }) {
		t.Error("AwaitNodes() did not end after the nodes were used")
	}
	m.lastID = 30
	go func() { ended <- m.AwaitNodes(t.Context()) }()
	if !within(schedtest.Patience, m.held.clear) {
		t.Error("AwaitNodes() did not end after all nodes were removed")
	}
}
