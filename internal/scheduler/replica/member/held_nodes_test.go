package member

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newTestMember returns a member that follows the first assignment of term 2, of hash slots to the given owners. It leads
// itself, and its links are never connected.
func newTestMember(t *testing.T, h *holder.Holder, owners ...string) *Member {
	self, owner := membership.Member{Name: "self"}, membership.Member{Name: "owner", Address: "127.0.0.1:1"}
	client := fake.NewClientset()
	m := New(t.Context(), Options{Self: self}, wire.NewDialer(nil), client, client, h, Hooks{Term: func() int64 { return 0 }})
	m.follow(1, []membership.Member{self, owner}, owners...)
	return m
}

// follow makes the member follow an assignment of term 2, as if its watches had listed and were checked.
func (m *Member) follow(number int64, known []membership.Member, owners ...string) {
	a := &wire.Assignment{Term: 2, Number: number, Leader: known[0], Known: known}
	a.SetTable(membership.Assign(nil, owners))
	m.core.Adopt(time.Now(), a, true)
	m.core.Checked(m.core.Applied(m.core.StartLists(), nil))
}

// TestAwaitNodes waits for the nodes that are held when the wait starts. It ends when these are used or gone, although
// later ones are held, and with an error that names the replica that has not confirmed them.
func TestAwaitNodes(t *testing.T) {
	m := newTestMember(t, nil, "self", "owner")
	if err := m.AwaitNodes(t.Context()); err != nil {
		t.Errorf("AwaitNodes() without held nodes = %v", err)
	}
	change := func(before, after *v1.Node) {
		m.do(func(c *core.Member, now time.Time) core.MemberOutput {
			_, out := c.NodeChanged(now, before, after, false)
			return out
		})
	}
	nodes := map[string]*v1.Node{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = schedtest.PlainNode(name, "1")
	}
	change(nil, nodes["a"])
	change(nil, nodes["b"])
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput {
		c.Confirmed("self", c.LastID())
		return core.MemberOutput{}
	})
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.AwaitNodes(short); err == nil || !strings.Contains(err.Error(), "[owner]") {
		t.Errorf("AwaitNodes() = %v, want an error that names the owner", err)
	}
	ended := make(chan error)
	go func() { ended <- m.AwaitNodes(t.Context()) }()
	within := func(limit time.Duration, changes func()) bool {
		time.Sleep(50 * time.Millisecond)
		changes()
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
	if within(100*time.Millisecond, func() { change(nil, nodes["c"]); change(nodes["a"], nil) }) {
		t.Error("AwaitNodes() ended while a node was held")
	}
	if !within(schedtest.Patience, func() { change(nodes["b"], nil) }) {
		t.Error("AwaitNodes() did not end after the nodes were used")
	}
	go func() { ended <- m.AwaitNodes(t.Context()) }()
	cleared := func() { m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.Cleared(nil) }) }
	if !within(schedtest.Patience, cleared) {
		t.Error("AwaitNodes() did not end after all nodes were removed")
	}
}
