package member

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeChanged handles a change of a node that is watched here.
func (m *Member) nodeChanged(before, after *v1.Node, listing bool) {
	m.holder.ChangeNode(before, after)
	m.mu.Lock()
	defer m.mu.Unlock()
	if before == nil {
		item := nodeName(after)
		for _, p := range m.peers {
			p.link.Send(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		}
	}
	if !listing && m.assignment != nil && (before == nil || after == nil || len(framework.NodeSchedulingPropertiesChange(after, before)) > 0) {
		news := wire.Event{Node: true}
		if before != nil {
			news.Before = wire.MarshalObject(before)
		}
		if after != nil {
			news.After = wire.MarshalObject(after)
		}
		m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Events = append(b.Events, news) })
	}
}

func nodeName(node *v1.Node) wire.NodeName {
	return wire.NodeName{Hash: hashOf(node.Name), Slot: int16(membership.SlotOf(node.UID)), Created: node.CreationTimestamp.Unix()}
}

// podChanged handles a change of a pod that is watched here. Bound pods go to the owners of their
// nodes, and pending pods to the leader.
func (m *Member) podChanged(before, after *v1.Pod, listing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before != nil && before.Spec.NodeName != "" && (after == nil || after.Spec.NodeName != before.Spec.NodeName) {
		m.sendPodRemoval(before)
	}
	if after != nil && after.Spec.NodeName != "" {
		m.sendPod(after, listing)
	}
	if listing || m.assignment == nil {
		return
	}
	leader := m.assignment.Leader.Name
	switch {
	case after != nil && after.Spec.NodeName == "":
		item := wire.Item{UID: after.UID, Object: wire.MarshalObject(after)}
		m.send(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case before != nil && before.Spec.NodeName == "":
		item, tell := wire.Item{UID: before.UID}, m.send
		if after != nil {
			// The leader has assumed the bind.
			item.Node, tell = after.Spec.NodeName, m.sendLater
		}
		tell(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case before == nil || after == nil || !cache.SameOnNode(before, after):
		news := wire.Event{}
		if before != nil {
			news.Before = wire.MarshalObject(before)
		}
		if after != nil {
			news.After = wire.MarshalObject(after)
		}
		m.send(leader, func(b *wire.Batch) { b.Events = append(b.Events, news) })
	}
}

// sendPod sends a bound pod to the owner of its node. Pods of a first list are sent when the owner
// requests them all.
func (m *Member) sendPod(pod *v1.Pod, listing bool) {
	owner := m.ownerOf(pod.Spec.NodeName)
	if owner == "" {
		if m.podsOfUnknownNodes[pod.Spec.NodeName] == nil {
			m.podsOfUnknownNodes[pod.Spec.NodeName] = sets.New[types.UID]()
		}
		m.podsOfUnknownNodes[pod.Spec.NodeName].Insert(pod.UID)
		return
	}
	if !listing {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		// The owner has a reservation for it, or it was bound by another scheduler.
		m.sendLater(owner, func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

// sendPodRemoval sends the removal of a pod to the owner of its node.
func (m *Member) sendPodRemoval(pod *v1.Pod) {
	if owner := m.ownerOf(pod.Spec.NodeName); owner != "" {
		m.send(owner, func(b *wire.Batch) { b.Pods = append(b.Pods, wire.Item{UID: pod.UID}) })
	} else if strays := m.podsOfUnknownNodes[pod.Spec.NodeName]; strays != nil {
		if strays.Delete(pod.UID); len(strays) == 0 {
			delete(m.podsOfUnknownNodes, pod.Spec.NodeName)
		}
	}
}

// HandlePod takes a pod on a node here, or its removal.
func (m *Member) HandlePod(from string, item *wire.Item) error {
	switch {
	case !m.Trusts(from, item.UID):
	case len(item.Object) == 0:
		m.holder.RemovePod(item.UID)
	default:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
		}
		if !m.ownsNode(pod.Spec.NodeName) {
			// The pod was sent by an earlier assignment. The present owner of the node is sent the
			// pod's deletion, and this replica is not.
			m.holder.RemovePod(pod.UID)
			return nil
		}
		m.holder.SetPod(pod)
	}
	return nil
}

// HandleReservations passes reservations to the holder if the leader sends them, and answers them.
func (m *Member) HandleReservations(from string, b *wire.Batch) {
	if len(b.Reservations)+len(b.Kept) == 0 {
		return
	}
	m.mu.Lock()
	leads, term := m.assignment != nil && m.assignment.Leader.Name == from, int64(0)
	if leads {
		term = m.assignment.Term
	}
	ctx, ready := m.ctx, m.complete()
	m.mu.Unlock()
	var acks []wire.Ack
	for i := range b.Reservations {
		ack := wire.Ack{UID: b.Reservations[i].UID, Refused: "another replica leads"}
		if leads {
			ack.Refused = m.holder.Reserve(ctx, from, term, ready, &b.Reservations[i])
		}
		if len(b.Reservations[i].Pod) > 0 && !b.Reservations[i].Nominated {
			acks = append(acks, ack)
		}
	}
	if leads {
		acks = append(acks, m.holder.Renew(b.Kept)...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.send(from, func(b *wire.Batch) { b.Acks = append(b.Acks, acks...) })
}

// HandleNodes notes the hash slots of nodes, and sends pods whose node was unknown to its owner.
func (m *Member) HandleNodes(nodes []wire.NodeName) {
	m.mu.Lock()
	moved, concerned := map[uint64]bool{}, false
	for _, node := range nodes {
		before, known := m.slots[node.Hash]
		if known && before.created > node.Created {
			continue
		}
		m.slots[node.Hash] = nodeSlot{node.Slot, node.Created}
		if known && before.slot != node.Slot {
			moved[node.Hash] = true
			concerned = concerned || m.table != nil && m.table[before.slot] == m.Self()
		}
	}
	var found []types.UID
	for name, uids := range m.podsOfUnknownNodes {
		if m.ownerOf(name) != "" {
			found = append(found, uids.UnsortedList()...)
			delete(m.podsOfUnknownNodes, name)
		}
	}
	m.mu.Unlock()
	if concerned {
		// The owner of the new node is sent all pods on it.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	if len(moved) > 0 {
		found = append(found, m.podsOn(moved)...)
	}
	for _, uid := range found {
		m.pods.visit(uid, func(pod *v1.Pod) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if pod.Spec.NodeName != "" {
				m.sendPod(pod, false)
			}
		})
	}
}

// podsOn returns the pods on nodes that were created again under their names and may have other
// owners now.
func (m *Member) podsOn(nodes map[uint64]bool) []types.UID {
	var found []types.UID
	for _, uid := range m.pods.keys() {
		m.pods.visit(uid, func(pod *v1.Pod) {
			if pod.Spec.NodeName != "" && nodes[hashOf(pod.Spec.NodeName)] {
				found = append(found, uid)
			}
		})
	}
	return found
}
