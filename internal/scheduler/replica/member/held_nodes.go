package member

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
)

// ConfirmNodes confirms the announcements of another replica up to the given one (see [core.Member.ConfirmNodes]).
func (m *Member) ConfirmNodes(from string, announcement int64) {
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.ConfirmNodes(from, announcement) })
}

// HandleConfirmed handles the confirmation of a replica that it has sent all its pods on the nodes that were announced
// up to the given announcement.
func (m *Member) HandleConfirmed(from string, announcement int64) {
	m.mu.Lock()
	m.core.Confirmed(from, announcement)
	m.mu.Unlock()
	m.releaseNodes()
}

// releaseNodes passes the nodes to the holder whose pods are known.
func (m *Member) releaseNodes() {
	m.mu.Lock()
	due := m.core.Due()
	m.mu.Unlock()
	for _, uid := range due {
		// Meanwhile, the node may have changed or disappeared.
		m.nodes.visit(uid, func(node *v1.Node) {
			m.do(func(c *core.Member, _ time.Time) core.MemberOutput {
				use, out := c.Release(node)
				if use {
					m.holder.ChangeNode(nil, node)
				}
				return out
			})
		})
	}
}

// AwaitNodes waits until the holder has all nodes that this replica has received so far. Nodes that arrive meanwhile
// do not prolong this.
func (m *Member) AwaitNodes(ctx context.Context) error {
	m.mu.Lock()
	received := m.core.LastID()
	m.mu.Unlock()
	for {
		released, unconfirmed := m.awaitRelease(received)
		if released == nil {
			return nil
		}
		select {
		case <-released:
		case <-ctx.Done():
			return fmt.Errorf("new nodes cannot be used yet, because these replicas have not confirmed that they have sent their pods on them: %v: %w", unconfirmed, ctx.Err())
		}
	}
}

// awaitRelease returns a channel that is closed when a new node can be used, and the replicas that have not confirmed the
// first such node. The channel is nil if no node is held back that was announced with the given number or a lower one.
func (m *Member) awaitRelease(announcement int64) (released <-chan struct{}, unconfirmed []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.core.Holds(announcement) {
		return nil, nil
	}
	if m.released == nil {
		m.released = make(chan struct{})
	}
	return m.released, m.core.Unconfirmed()
}
