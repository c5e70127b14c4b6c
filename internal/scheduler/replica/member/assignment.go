package member

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// SendNewerAssignment sends the current assignment to a replica that has sent an assignment which that one
// supersedes (see [core.Member.Newer]).
func (m *Member) SendNewerAssignment(from string, a *wire.Assignment) {
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.Newer(from, a) })
}

// Adopt makes an assignment the current one, if it is later: it watches the hash slots that this replica
// has gained, and removes the objects in those that it has lost. If this replica has missed the
// preceding assignment, it first removes all objects. A leader exits if another replica leads for a later
// term. The steps are those of [core.Member.Followed].
func (m *Member) Adopt(a *wire.Assignment) {
	m.adopting.Lock()
	defer m.adopting.Unlock()
	m.mu.Lock()
	term := m.hooks.Term()
	adoption := m.core.Followed(a, term)
	if !adoption.Later || adoption.Replaced {
		m.mu.Unlock()
		if adoption.Replaced {
			m.hooks.Exit(fmt.Errorf("this replica leads for term %d, and %s leads for term %d", term, a.Leader.Name, a.Term), "Lost leadership")
		}
		return
	}
	m.logger.V(1).Info("Following an assignment of hash slots", "term", a.Term, "number", a.Number, "leader", a.Leader.Name, "replicas", a.Owners)
	out := m.core.Adopt(time.Now(), a, adoption.NewTerm)
	lists := m.send(&out)
	slots, ctx := m.core.OwnSlots(), m.ctx
	m.mu.Unlock()

	if adoption.NewTerm {
		m.holder.ForgetNominated()
	}
	m.holder.ShortenOld(a.Term, time.Now())
	if adoption.Missed {
		m.logger.Info("Missed an assignment of hash slots; listing everything again", "term", a.Term, "number", a.Number)
		m.clearAll(ctx)
	}
	m.watchSlots(ctx, slots)
	m.finish(&out, lists)
	// A replica that owns no slots any more need not confirm nodes.
	m.releaseNodes()
	m.sendDue()
}

// watchSlots watches the given hash slots and no others.
func (m *Member) watchSlots(ctx context.Context, slots []int) {
	m.mu.Lock()
	start := m.core.StartLists()
	m.mu.Unlock()
	lostNodes, gained := m.nodes.setSlots(ctx, slots)
	m.pods.setSlots(ctx, slots)
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.LostNodes(lostNodes) })
	m.holder.DropNodes(lostNodes, m.ownsNode)
	m.mu.Lock()
	stamp := m.core.Applied(start, gained)
	m.mu.Unlock()
	go m.checkWatches(ctx, stamp)
}

// clearAll removes all objects and stops all watches. It keeps reservations, because this replica may
// still own their nodes.
func (m *Member) clearAll(ctx context.Context) {
	nodes, _ := m.nodes.setSlots(ctx, nil)
	m.pods.setSlots(ctx, nil)
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.Cleared(nodes) })
	m.holder.Clear(nodes)
}

// HandleNodes records the hash slots of nodes that another replica has announced (see [core.Member.Nodes]).
func (m *Member) HandleNodes(from string, nodes []wire.NodeName) (moved bool, err error) {
	m.do(func(c *core.Member, _ time.Time) (out core.MemberOutput) {
		moved, out, err = c.Nodes(from, nodes)
		return out
	})
	return moved, err
}

// HandleGoneNodes records that nodes of another replica were deleted (see [core.Member.GoneNodes]).
func (m *Member) HandleGoneNodes(from string, nodes []wire.NodeName) (err error) {
	m.do(func(c *core.Member, now time.Time) (out core.MemberOutput) {
		out, err = c.GoneNodes(now, from, nodes)
		return out
	})
	return err
}

// Connected handles a new connection from a replica, which announces all its nodes again on it.
func (m *Member) Connected(from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.core.Connected(from)
}

// forgetInterval is the interval between checks for nodes that were deleted some time ago.
const forgetInterval = 30 * time.Second

// forgetNodes forgets the nodes that were deleted some time ago, and on which this replica watches no pod.
func (m *Member) forgetNodes(_ context.Context) {
	m.mu.Lock()
	old := m.core.OldGoneNodes(time.Now())
	m.mu.Unlock()
	if len(old) > 0 {
		for _, uid := range m.podsOnNodes(old) {
			m.pods.visit(uid, func(pod *v1.Pod) { delete(old, core.HashOf(pod.Spec.NodeName)) })
		}
	}
	settled := false
	m.do(func(c *core.Member, now time.Time) core.MemberOutput {
		out := c.ForgetNodes(now, old)
		settled = len(out.Senders) > 0
		return out
	})
	if settled {
		m.hooks.Settle()
	}
}

// TakeSettled returns the replicas of which announcements do not wait any more (see [core.Member.TakeSettled]).
func (m *Member) TakeSettled() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.TakeSettled()
}

// ConfirmSettled confirms the announcements of a replica, and answers its request for pods, if none of its announcements
// waits.
func (m *Member) ConfirmSettled(from string) {
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.ConfirmSettled(from) })
	m.sendDue()
}
