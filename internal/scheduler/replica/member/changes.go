package member

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeChanged handles a change of a node that this replica watches. listing is true if the change is
// part of the first list of its slots.
func (m *Member) nodeChanged(before, after *v1.Node, listing bool) {
	m.do(func(c *core.Member, now time.Time) core.MemberOutput {
		use, out := c.NodeChanged(now, before, after, listing)
		if use {
			m.holder.ChangeNode(before, after)
		}
		return out
	})
}

// podChanged handles a change of a pod that this replica watches.
func (m *Member) podChanged(before, after *v1.Pod, listing bool) {
	m.do(func(c *core.Member, now time.Time) core.MemberOutput {
		return c.PodChanged(now, before, after, listing)
	})
}

// applied sends an event to the leader after the holder has applied a change of a bound pod.
func (m *Member) applied(before, after *v1.Pod) {
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.PodApplied(before, after) })
}

// EndList removes the pods from the holder that are missing in a replica's list.
func (m *Member) EndList(from string, listed *wire.Refresh, slots []int) {
	for _, pod := range m.holder.EndList(from, listed.ID, slots, listed.Version) {
		m.applied(pod, nil)
	}
}

// HandlePod processes a pod on a node that this replica owns, or the removal of one.
func (m *Member) HandlePod(from string, item *wire.Item) error {
	if !m.Trusts(from, item.UID) {
		return nil
	}
	// The holder asks again when it applies the change: the assignment may change meanwhile.
	trusted := func() bool { return m.Trusts(from, item.UID) }
	if len(item.Object) == 0 {
		if before := m.holder.RemovePod(item.UID, trusted); before != nil {
			m.applied(before, nil)
		}
		return nil
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(item.Object); err != nil {
		return err
	}
	if pod.UID != item.UID {
		return fmt.Errorf("pod %v with UID %q in a message about UID %q", klog.KObj(pod), pod.UID, item.UID)
	}
	// If this replica does not own the node, the sender followed an earlier assignment. This replica does not get the pod's
	// deletion, which goes to the current owner of the node.
	owned := func() bool { return m.ownsNode(pod.Spec.NodeName) }
	if before, changed := m.holder.SetPod(pod, trusted, owned); changed {
		m.applied(before, pod)
	}
	return nil
}

// HandleReservations passes reservations and renewals to the holder, and sends the answers. It refuses
// reservations that do not come from the current leader.
func (m *Member) HandleReservations(from string, b *wire.Batch) {
	if len(b.Reservations)+len(b.Kept) == 0 {
		return
	}
	m.mu.Lock()
	leads, term := m.core.Leads(from)
	ready := m.core.Complete()
	m.mu.Unlock()
	var acks []wire.Ack
	for i := range b.Reservations {
		ack := wire.Ack{UID: b.Reservations[i].UID, Attempt: b.Reservations[i].Attempt, Refused: "another replica leads"}
		if leads {
			ack.Refused = m.holder.Reserve(m.ctx, from, term, ready, &b.Reservations[i])
		} else {
			m.holder.SkipReservation(from)
		}
		if len(b.Reservations[i].Pod) > 0 && !b.Reservations[i].Nominated {
			acks = append(acks, ack)
		}
	}
	if leads {
		acks = append(acks, m.holder.Renew(b.Kept)...)
	}
	m.SendTo(from, func(b *wire.Batch) { b.Acks = append(b.Acks, acks...) })
}
