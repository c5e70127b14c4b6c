package core

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// NodeChanged handles a change of a node that this replica watches. listing is true if the change is
// part of the first list of its slots. It returns whether the node is used: then the change is applied to [Nodes].
func (m *Member) NodeChanged(now time.Time, before, after *v1.Node, listing bool) (use bool, out MemberOutput) {
	if before == nil {
		m.countWatched(after, 1)
		if announcement := m.announce(after, &out); !listing {
			m.held.add(after.UID, announcement, now)
			return false, out
		}
	}
	if after == nil {
		m.countWatched(before, -1)
		// Also during a list: an earlier attempt of the list may have announced the node, and the end of the list does not
		// tell others that it is gone.
		m.lastID++
		item := nodeName(before, m.lastID)
		out.sendToAll(func(b *wire.Batch) { b.GoneNodes = append(b.GoneNodes, item) })
	}
	switch {
	case after == nil && m.held.remove(before.UID):
		out.Released = true
		return false, out
	case before != nil && m.held.has(before.UID):
		// It is not used yet.
		return false, out
	}
	if !listing && (after == nil || len(framework.NodeSchedulingPropertiesChange(after, before)) > 0) {
		m.sendNodeEvent(before, after, &out)
	}
	return true, out
}

// countWatched adds a number to that of the watched nodes with the name of a node.
func (m *Member) countWatched(node *v1.Node, by int32) {
	hash := HashOf(node.Name)
	if m.watched[hash] += by; m.watched[hash] <= 0 {
		delete(m.watched, hash)
	}
}

// sendNodeEvent sends a change of a node to the leader. The caller first applies the change. before is nil for a new node,
// and after for a deleted one.
func (m *Member) sendNodeEvent(before, after *v1.Node, out *MemberOutput) {
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
	out.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Events = append(b.Events, event) })
}

// nodeName returns the message that announces a node, with the number of the announcement.
func nodeName(node *v1.Node, number int64) wire.NodeName {
	return wire.NodeName{Hash: HashOf(node.Name), Slot: int16(membership.SlotOf(node.UID)), Created: node.CreationTimestamp.Unix(), Number: number}
}

// PodChanged handles a change of a pod that this replica watches. It sends bound pods to the owners of
// their nodes, and pending pods to the leader.
func (m *Member) PodChanged(now time.Time, before, after *v1.Pod, listing bool) (out MemberOutput) {
	if before != nil && before.Spec.NodeName != "" && (after == nil || after.Spec.NodeName != before.Spec.NodeName) {
		m.sendPodRemoval(before, &out)
	}
	changed := before == nil || after == nil || !cache.SameOnNode(before, after)
	wasBound := before != nil && before.Spec.NodeName != ""
	if after != nil && after.Spec.NodeName != "" {
		// If the pod was pending, the owner usually has a reservation for it, so the bind is not urgent.
		m.sendPod(now, after, listing, before == nil || wasBound && changed, &out)
	}
	if listing || m.assignment == nil {
		return out
	}
	leader := m.assignment.Leader.Name
	switch {
	case after != nil && after.Spec.NodeName == "":
		item := wire.Item{UID: after.UID, Object: wire.MarshalObject(after)}
		out.send(leader, func(b *wire.Batch) { b.Pending = append(b.Pending, item) })
	case before != nil && before.Spec.NodeName == "":
		item, later := wire.Item{UID: before.UID}, false
		if after != nil {
			// The leader already assumes that the pod is on the node, so this is not urgent.
			item.Node, later = after.Spec.NodeName, true
		}
		out.Messages = append(out.Messages, Message{To: leader, Later: later, Add: func(b *wire.Batch) { b.Pending = append(b.Pending, item) }})
	case m.NodeOwner(nodeOf(before, after)) != "":
		// The owner of the node sends the event to the leader, after it has applied the change
		// ([Member.PodApplied]). Otherwise the leader could retry a pod because of the event, and query the owner
		// before it knows of the change.
	case changed:
		m.sendEvent(before, after, &out)
	}
	return out
}

// nodeOf returns the node of a bound pod. before is nil for a new pod, and after for a deleted one.
func nodeOf(before, after *v1.Pod) string {
	if before != nil {
		return before.Spec.NodeName
	}
	return after.Spec.NodeName
}

// sendEvent sends a change of a bound pod to the leader. before is nil for a new pod, and after for a deleted
// one.
func (m *Member) sendEvent(before, after *v1.Pod, out *MemberOutput) {
	event := wire.Event{}
	if before != nil {
		event.Before = wire.MarshalObject(before)
	}
	if after != nil {
		event.After = wire.MarshalObject(after)
	}
	out.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Events = append(b.Events, event) })
}

// PodApplied sends an event to the leader after the ledger has applied a change of a bound pod. before is nil for a
// new pod, and after for a deleted one. New pods need no event until this replica has loaded all pods: then
// the leader retries all unschedulable pods.
func (m *Member) PodApplied(before, after *v1.Pod) (out MemberOutput) {
	if m.assignment != nil && (before != nil || m.Complete()) {
		m.sendEvent(before, after, &out)
	}
	return out
}

// Pod sends a bound pod that this replica watches to the owner of its node, because this owner has become known.
func (m *Member) Pod(now time.Time, pod *v1.Pod) (out MemberOutput) {
	if pod.Spec.NodeName != "" {
		m.sendPod(now, pod, false, true, &out)
	}
	return out
}

// sendPod sends a bound pod to the owner of its node. It does not send pods of a first list, because the
// owner requests them all.
func (m *Member) sendPod(now time.Time, pod *v1.Pod, listing, urgent bool, out *MemberOutput) {
	owner := m.NodeOwner(pod.Spec.NodeName)
	if owner == "" {
		m.addUnknown(pod.Spec.NodeName, pod.UID)
		return
	}
	if hash := HashOf(pod.Spec.NodeName); m.isGone(hash) {
		// The caller of ForgetNodes may have looked for pods on the node already.
		m.goneNodes[hash] = now
	}
	if !listing {
		item := wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}
		out.Messages = append(out.Messages, Message{To: owner, Later: !urgent, Add: func(b *wire.Batch) { b.Pods = append(b.Pods, item) }})
	}
}

// sendPodRemoval sends the removal of a pod to the owner of its node, or to all replicas while another one may have the pod, too.
func (m *Member) sendPodRemoval(pod *v1.Pod, out *MemberOutput) {
	remove := func(b *wire.Batch) { b.Pods = append(b.Pods, wire.Item{UID: pod.UID}) }
	switch owner := m.NodeOwner(pod.Spec.NodeName); {
	case owner == "":
		m.removeUnknown(pod.Spec.NodeName, pod.UID)
	case m.isInTransition(HashOf(pod.Spec.NodeName)) && m.config.Fault != RemoveAtOwnerOnly:
		out.sendToAll(remove)
	default:
		out.send(owner, remove)
	}
}

// isInTransition returns whether another replica than the owner of a known node may have pods on it: the node is gone, or it
// was created again and this replica does not use the announcement yet, or its hash slot has another owner, which has not
// listed its nodes yet. The former owner keeps the pods if it watches the new node (see OwnsNode).
func (m *Member) isInTransition(hash uint64) bool {
	for _, waiting := range m.waiting {
		if len(waiting.byName[hash]) > 0 {
			return true
		}
	}
	return m.isGone(hash) || m.movedSlots[m.slots[hash].slot]
}

// Leads returns whether a replica leads, and for which term. Reservations of others are refused.
func (m *Member) Leads(from string) (leads bool, term int64) {
	if m.assignment == nil || m.assignment.Leader.Name != from {
		return false, 0
	}
	return true, m.assignment.Term
}
