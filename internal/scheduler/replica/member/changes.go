package member

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeChanged handles a change of a node that this replica watches. listing is true if the change is
// part of the first list of its slots.
func (m *Member) nodeChanged(before, after *v1.Node, listing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before == nil {
		m.countWatched(after, 1)
		if announcement := m.announce(after); !listing {
			m.held.add(after.UID, announcement, time.Now())
			return
		}
	}
	if after == nil {
		m.countWatched(before, -1)
		// Also during a list: an earlier attempt of the list may have announced the node, and the end of the list does not
		// tell others that it is gone.
		m.lastID++
		item := nodeName(before, m.lastID)
		for _, p := range m.peers {
			p.link.Send(func(b *wire.Batch) { b.GoneNodes = append(b.GoneNodes, item) })
		}
	}
	switch {
	case after == nil && m.held.remove(before.UID), before != nil && m.held.has(before.UID):
		// The holder does not have the node yet.
		return
	}
	m.holder.ChangeNode(before, after)
	if !listing && (after == nil || len(framework.NodeSchedulingPropertiesChange(after, before)) > 0) {
		m.sendNodeEvent(before, after)
	}
}

// countWatched adds a number to that of the watched nodes with the name of a node. The caller holds the lock.
func (m *Member) countWatched(node *v1.Node, by int32) {
	hash := hashOf(node.Name)
	if m.watched[hash] += by; m.watched[hash] <= 0 {
		delete(m.watched, hash)
	}
}

// sendNodeEvent sends a change of a node to the leader, after the holder has got it. before is nil for a new node, and
// after for a deleted one. The caller holds the lock.
func (m *Member) sendNodeEvent(before, after *v1.Node) {
	if m.assignment == nil {
		return
	}
	event := wire.Event{Node: true}
	if before != nil {
		event.Before = wire.MarshalObject(before)
	}
	if after != nil {
		event.After = wire.MarshalObject(after)
	}
	m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Events = append(b.Events, event) })
}

// nodeName returns the message that announces a node, with the number of the announcement.
func nodeName(node *v1.Node, number int64) wire.NodeName {
	return wire.NodeName{Hash: hashOf(node.Name), Slot: int16(membership.SlotOf(node.UID)), Created: node.CreationTimestamp.Unix(), Number: number}
}

// podChanged handles a change of a pod that this replica watches. It sends bound pods to the owners of
// their nodes, and pending pods to the leader.
func (m *Member) podChanged(before, after *v1.Pod, listing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before != nil && before.Spec.NodeName != "" && (after == nil || after.Spec.NodeName != before.Spec.NodeName) {
		m.sendPodRemoval(before)
	}
	changed := before == nil || after == nil || !cache.SameOnNode(before, after)
	wasBound := before != nil && before.Spec.NodeName != ""
	if after != nil && after.Spec.NodeName != "" {
		// If the pod was pending, the owner usually has a reservation for it, so the bind is not urgent.
		m.sendPod(after, listing, before == nil || wasBound && changed)
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
		item, send := wire.Item{UID: before.UID}, m.send
		if after != nil {
			// The leader already assumes that the pod is on the node, so this is not urgent.
			item.Node, send = after.Spec.NodeName, m.sendLater
		}
		send(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case m.ownerOf(nodeOf(before, after)) != "":
		// The owner of the node sends the event to the leader, after it has applied the change
		// (HandlePod). Otherwise the leader could retry a pod because of the event, and query the owner
		// before it knows of the change.
	case changed:
		m.sendEvent(before, after)
	}
}

// nodeOf returns the node of a bound pod. before is nil for a new pod, and after for a deleted one.
func nodeOf(before, after *v1.Pod) string {
	if before != nil {
		return before.Spec.NodeName
	}
	return after.Spec.NodeName
}

// sendEvent sends a change of a bound pod to the leader. before is nil for a new pod, and after for a deleted
// one. The caller holds the lock.
func (m *Member) sendEvent(before, after *v1.Pod) {
	event := wire.Event{}
	if before != nil {
		event.Before = wire.MarshalObject(before)
	}
	if after != nil {
		event.After = wire.MarshalObject(after)
	}
	m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Events = append(b.Events, event) })
}

// applied sends an event to the leader after the holder has applied a change of a bound pod. before is nil for a
// new pod, and after for a deleted one. New pods need no event until this replica has loaded all pods: then the
// leader retries all unschedulable pods.
func (m *Member) applied(before, after *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment != nil && (before != nil || m.complete()) {
		m.sendEvent(before, after)
	}
}

// EndList removes the pods from the holder that are missing in a replica's list.
func (m *Member) EndList(from string, listed *wire.Refresh, slots []int) {
	for _, pod := range m.holder.EndList(from, listed.ID, slots, listed.Version) {
		m.applied(pod, nil)
	}
}

// sendPod sends a bound pod to the owner of its node. It does not send pods of a first list, because the
// owner requests them all.
func (m *Member) sendPod(pod *v1.Pod, listing, urgent bool) {
	owner := m.ownerOf(pod.Spec.NodeName)
	if owner == "" {
		if m.podsOfUnknownNodes[pod.Spec.NodeName] == nil {
			m.podsOfUnknownNodes[pod.Spec.NodeName] = sets.New[types.UID]()
		}
		m.podsOfUnknownNodes[pod.Spec.NodeName].Insert(pod.UID)
		return
	}
	if hash := hashOf(pod.Spec.NodeName); m.isGone(hash) {
		// forgetNodes may have looked for pods on the node already.
		m.goneNodes[hash] = time.Now()
	}
	if !listing {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		send := m.send
		if !urgent {
			send = m.sendLater
		}
		send(owner, func(b *wire.Batch) { b.Pods = append(b.Pods, item) })
	}
}

// sendPodRemoval sends the removal of a pod to the owner of its node, or to all replicas while another one may have the pod, too.
func (m *Member) sendPodRemoval(pod *v1.Pod) {
	remove := func(b *wire.Batch) { b.Pods = append(b.Pods, wire.Item{UID: pod.UID}) }
	if owner := m.ownerOf(pod.Spec.NodeName); owner != "" && m.isInTransition(hashOf(pod.Spec.NodeName)) {
		for _, p := range m.peers {
			p.link.Send(remove)
		}
	} else if owner != "" {
		m.send(owner, remove)
	} else if uids := m.podsOfUnknownNodes[pod.Spec.NodeName]; uids != nil {
		if uids.Delete(pod.UID); len(uids) == 0 {
			delete(m.podsOfUnknownNodes, pod.Spec.NodeName)
		}
	}
}

// isInTransition returns whether another replica than the owner of a known node may have pods on it: the node is gone, or it
// was created again and this replica does not use the announcement yet, or its hash slot has another owner, which has not
// listed its nodes yet. The former owner keeps the pods if it watches the new node (see ownsNode). The caller holds the lock.
func (m *Member) isInTransition(hash uint64) bool {
	for _, waiting := range m.waiting {
		if len(waiting.byName[hash]) > 0 {
			return true
		}
	}
	return m.isGone(hash) || m.movedSlots[m.slots[hash].slot]
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
	leads, term := m.assignment != nil && m.assignment.Leader.Name == from, int64(0)
	if leads {
		term = m.assignment.Term
	}
	ctx, ready := m.ctx, m.complete()
	m.mu.Unlock()
	var acks []wire.Ack
	for i := range b.Reservations {
		ack := wire.Ack{UID: b.Reservations[i].UID, Attempt: b.Reservations[i].Attempt, Refused: "another replica leads"}
		if leads {
			ack.Refused = m.holder.Reserve(ctx, from, term, ready, &b.Reservations[i])
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.send(from, func(b *wire.Batch) { b.Acks = append(b.Acks, acks...) })
}
