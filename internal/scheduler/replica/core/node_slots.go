package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeSlot is the hash slot of a node.
type nodeSlot struct {
	slot int16
	// created is the creation time of the node in Unix seconds.
	created int64
	// from is the replica that has announced the node, connection the number of the connection (see [Member.connections]),
	// and number that of the announcement.
	from       string
	connection int32
	number     int64
}

const (
	// The slot of a deleted node is kept for goneNodeLife, and as long as this replica watches a pod on the
	// node: the removal of the pod is sent to the owner of the node.
	goneNodeLife = time.Minute
	// maxSlotNodes is the number of nodes of a hash slot that are known. The slots of a million nodes have about 1,000 each.
	// Further nodes wait as if another replica owned the slot.
	maxSlotNodes = 1 << 13
)

// Nodes records the hash slots of nodes that another replica has announced. The pods of
// these nodes are sent to the owners, if a node was unknown before or was created again with another UID. It returns whether
// a node was created again and has another hash slot, and an error if too many announcements of the replica cannot be used.
func (m *Member) Nodes(from string, nodes []wire.NodeName) (moved bool, out MemberOutput, err error) {
	for _, node := range nodes {
		if m.useNode(from, node, &out) {
			m.removeWaiting(from, node.Hash, node.Slot, &out)
		} else if err = m.addWaiting(from, node); err != nil {
			break
		}
	}
	m.resendKnown(&out)
	return len(out.ResendOn) > 0, out, err
}

// useNode records the hash slot of a node that a replica has announced on its current connection. It returns false if the
// announcement must wait (see [Member.addWaiting]).
func (m *Member) useNode(from string, node wire.NodeName, out *MemberOutput) bool {
	known, ok := m.slots[node.Hash]
	foreign := m.table == nil || m.table[node.Slot] != from && m.config.Fault != AnnounceAnyNode
	exists := ok && !m.isGone(node.Hash) && known.slot != node.Slot && m.config.Fault != ReplaceExistingNode
	if foreign || exists {
		return false
	}
	if !ok || known.slot != node.Slot {
		if m.slotNodes[node.Slot] >= maxSlotNodes {
			return false
		}
		m.slotNodes[node.Slot]++
	}
	m.slots[node.Hash] = nodeSlot{node.Slot, node.Created, from, m.connections[from], node.Number}
	delete(m.goneNodes, node.Hash)
	if m.guests.Has(node.Hash) && m.config.Fault != KeepGuests {
		// The pods may be here because the node was gone when they were sent.
		m.guests.Delete(node.Hash)
		out.DropPods = out.DropPods || m.table[node.Slot] != m.config.Self
	}
	if ok && known.slot != node.Slot {
		m.slotNodes[known.slot]--
		if out.ResendOn == nil {
			out.ResendOn = map[uint64]bool{}
		}
		out.ResendOn[node.Hash] = true
		// A node of this replica was deleted, and the new node of that name has another hash slot. Its
		// owner gets all pods on it from the replicas that watch them.
		out.DropPods = out.DropPods || m.table[known.slot] == m.config.Self
	}
	return true
}

// resendKnown adds the pods on nodes whose owner was unknown and is known now.
func (m *Member) resendKnown(out *MemberOutput) {
	for name, uids := range m.podsOfUnknownNodes {
		if m.NodeOwner(name) != "" {
			out.Resend = append(out.Resend, uids.UnsortedList()...)
			delete(m.podsOfUnknownNodes, name)
		}
	}
}

// announcedBy returns whether a replica has announced a node on its current connection.
func (m *Member) announcedBy(from string, known nodeSlot) bool {
	return known.from == from && known.connection == m.connections[from]
}

// GoneNodes records that nodes of another replica were deleted. Reports about nodes that the replica does not own according
// to the current assignment wait (see [Member.keepGone]). It returns an error if too many of them wait.
func (m *Member) GoneNodes(now time.Time, from string, nodes []wire.NodeName) (out MemberOutput, err error) {
	for _, node := range nodes {
		if waiting := m.waiting[from]; waiting != nil && slices.ContainsFunc(waiting.byName[node.Hash], node.Ends) {
			m.removeWaiting(from, node.Hash, node.Slot, &out)
		}
		if m.table != nil && m.table[node.Slot] == from {
			m.endNode(now, from, node, &out)
		} else if err = m.keepGone(from, node); err != nil {
			break
		}
	}
	return out, err
}

// endNode records that a node was deleted, as its owner has reported, unless another node of that name is known.
func (m *Member) endNode(now time.Time, from string, node wire.NodeName, out *MemberOutput) {
	known, ok := m.slots[node.Hash]
	later := m.announcedBy(from, known) && known.number > node.Number
	if ok && known.slot == node.Slot && known.created == node.Created && !later {
		m.goneNodes[node.Hash] = now
		m.useWaitingFor(node.Hash, out)
	}
}

// Connected handles a new connection from a replica, which announces all its nodes again on it.
func (m *Member) Connected(from string) {
	m.connections[from]++
	delete(m.announced, from)
	delete(m.waiting, from)
	delete(m.waitingGone, from)
	delete(m.unchecked, from)
}

// listedNodes are hash slots whose nodes a replica has completely announced on its current connection.
type listedNodes struct {
	// stamp is that of the assignment that the replica followed at the last report, and id the ID of that report.
	stamp, id int64
	starts    listStarts
}

// addListed handles a replica's report that it has announced all its nodes in some hash slots since its previous report.
func (m *Member) addListed(from string, listed *wire.Refresh) {
	all := m.unchecked[from]
	if all == nil {
		all = &listedNodes{}
		m.unchecked[from] = all
	}
	all.stamp, all.id = stamp(listed.Term, listed.Number), listed.ID
	for i, slot := range listed.Slots {
		all.starts[slot] = listed.Since[i]
	}
}

// recheckNodes forgets what the reports of a replica refute: nodes in the hash slots that it has listed, which it has not
// announced since the list started; and earlier announcements that wait because the replica has lost their hash slots. If
// the replica follows another assignment, this waits for it.
func (m *Member) recheckNodes(now time.Time, from string, out *MemberOutput) {
	listed := m.unchecked[from]
	if listed == nil || m.assignment == nil || listed.stamp != m.currentStamp() {
		return
	}
	delete(m.unchecked, from)
	m.dropWaiting(from, listed, out)
	m.dropGone(from, listed)
	if listed.starts == (listStarts{}) {
		return
	}
	for slot, start := range listed.starts {
		m.movedSlots[slot] = m.movedSlots[slot] && (start == 0 || m.table[slot] != from)
	}
	for hash, known := range m.slots {
		start := listed.starts[known.slot]
		announced := m.announcedBy(from, known) && known.number >= start
		if start > 0 && !announced && !m.isGone(hash) && m.table[known.slot] == from {
			m.goneNodes[hash] = now
			m.useWaitingFor(hash, out)
		}
	}
}

// dropWaiting removes the announcements of a replica that wait and that its report refutes: in hash slots that it has lost,
// and in those that it has listed since, without the node. It keeps announcements in other hash slots after the report: the
// replica may have followed a later assignment since.
func (m *Member) dropWaiting(from string, listed *listedNodes, out *MemberOutput) {
	waiting := m.waiting[from]
	if waiting == nil {
		return
	}
	for _, nodes := range waiting.byName {
		for _, node := range slices.Clone(nodes) {
			if node.Number < listed.id && m.table[node.Slot] != from || node.Number < listed.starts[node.Slot] {
				m.removeWaiting(from, node.Hash, node.Slot, out)
			}
		}
	}
}

// OldGoneNodes returns the hashes of the names of the nodes that were deleted some time ago. The caller calls
// [Member.ForgetNodes] with those of them on which this replica watches no pod.
func (m *Member) OldGoneNodes(now time.Time) map[uint64]bool {
	old := map[uint64]bool{}
	for hash := range m.goneNodes {
		if m.isOldGone(now, hash) {
			old[hash] = true
		}
	}
	return old
}

// ForgetNodes removes the slots of nodes that were deleted some time ago. Then it uses announcements that waited because a
// hash slot had too many nodes.
func (m *Member) ForgetNodes(now time.Time, old map[uint64]bool) (out MemberOutput) {
	for hash := range old {
		// Meanwhile, a node of that name may have been created again, or a pod may have appeared on it (see sendPod).
		if m.isOldGone(now, hash) {
			m.slotNodes[m.slots[hash].slot]--
			delete(m.goneNodes, hash)
			delete(m.slots, hash)
		}
	}
	m.useWaitingAt(now, &out)
	return out
}

// isGone returns whether a node was deleted.
func (m *Member) isGone(hash uint64) bool {
	_, gone := m.goneNodes[hash]
	return gone
}

// isOldGone returns whether a node was deleted some time ago.
func (m *Member) isOldGone(now time.Time, hash uint64) bool {
	since, gone := m.goneNodes[hash]
	return gone && now.Sub(since) > goneNodeLife
}

// senders returns the names of a map in order.
func senders[T any](of map[string]T) []string { return slices.Sorted(maps.Keys(of)) }

// Settle records that the pods on the nodes of announcements that did wait were sent. Then [Member.TakeSettled] returns the
// senders of the announcements.
func (m *Member) Settle(of sets.Set[string]) { m.settled = append(m.settled, sets.List(of)...) }

// TakeSettled returns the replicas of which announcements do not wait any more, after the pods on their nodes were sent. The
// caller sends the reservations on these nodes ([Leader.NodesMoved]), and then calls [Member.ConfirmSettled] once for each.
func (m *Member) TakeSettled() []string {
	settled := m.settled
	m.settled = nil
	return settled
}

// ConfirmSettled confirms the announcements of a replica, if none of its announcements waits.
func (m *Member) ConfirmSettled(from string) (out MemberOutput) {
	if m.settling[from]--; m.settling[from] <= 0 {
		delete(m.settling, from)
	}
	if announcement := m.announced[from]; announcement > 0 {
		m.confirm(from, announcement, &out)
	}
	return out
}

// addUnknown remembers a pod on a node whose owner is unknown, and removeUnknown forgets it.
func (m *Member) addUnknown(node string, uid types.UID) {
	if m.podsOfUnknownNodes[node] == nil {
		m.podsOfUnknownNodes[node] = sets.New[types.UID]()
	}
	m.podsOfUnknownNodes[node].Insert(uid)
}

func (m *Member) removeUnknown(node string, uid types.UID) {
	if uids := m.podsOfUnknownNodes[node]; uids != nil {
		if uids.Delete(uid); len(uids) == 0 {
			delete(m.podsOfUnknownNodes, node)
		}
	}
}
