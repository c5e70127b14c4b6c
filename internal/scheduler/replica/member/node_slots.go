package member

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
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
	// forgetInterval is the interval between checks for such nodes.
	forgetInterval = 30 * time.Second
	// maxSlotNodes is the number of nodes of a hash slot that are known. The slots of a million nodes have about 1,000 each.
	// Further nodes wait as if another replica owned the slot.
	maxSlotNodes = 1 << 13
)

// HandleNodes records the hash slots of nodes that another replica has announced. It sends the pods of
// these nodes to the owners, if a node was unknown before or was created again with another UID. It returns whether a
// node was created again and has another hash slot, and an error if too many announcements of the replica cannot be used.
func (m *Member) HandleNodes(from string, nodes []wire.NodeName) (moved bool, err error) {
	m.mu.Lock()
	var used usedNodes
	for _, node := range nodes {
		if m.useNode(from, node, &used) {
			m.removeWaiting(from, node.Hash, node.Slot, &used)
		} else if err = m.addWaiting(from, node); err != nil {
			break
		}
	}
	m.resendKnown(&used)
	m.mu.Unlock()
	m.finishUse(&used)
	return len(used.moved) > 0, err
}

// usedNodes are the consequences of announcements.
type usedNodes struct {
	// moved are the nodes that were created again and have another hash slot, by the hash of their name.
	moved map[uint64]bool
	// drop is true if the holder may have pods on nodes that this replica does not own any more.
	drop bool
	// resend are the pods that must be sent to the owners of their nodes.
	resend []types.UID
	// senders are the replicas whose announcements do not wait any more.
	senders sets.Set[string]
}

// useNode records the hash slot of a node that a replica has announced on its current connection. It returns false if the
// announcement must wait (see [Member.addWaiting]). The caller holds the lock.
func (m *Member) useNode(from string, node wire.NodeName, used *usedNodes) bool {
	known, ok := m.slots[node.Hash]
	if m.table == nil || m.table[node.Slot] != from || ok && !m.isGone(node.Hash) && known.slot != node.Slot {
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
	if ok && known.slot != node.Slot {
		m.slotNodes[known.slot]--
		if used.moved == nil {
			used.moved = map[uint64]bool{}
		}
		used.moved[node.Hash] = true
		used.drop = used.drop || m.table[known.slot] == m.Self()
	}
	return true
}

// resendKnown adds the pods on nodes whose owner was unknown and is known now. The caller holds the lock.
func (m *Member) resendKnown(used *usedNodes) {
	for name, uids := range m.podsOfUnknownNodes {
		if m.ownerOf(name) != "" {
			used.resend = append(used.resend, uids.UnsortedList()...)
			delete(m.podsOfUnknownNodes, name)
		}
	}
}

// finishUse sends the pods on nodes that have another owner now. Then [Member.TakeSettled] returns the senders of the
// announcements.
func (m *Member) finishUse(used *usedNodes) {
	if used.drop {
		// A node of this replica was deleted, and the new node of that name has another hash slot. Its
		// owner gets all pods on it from the replicas that watch them.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	resend := used.resend
	if len(used.moved) > 0 {
		resend = append(resend, m.podsOnNodes(used.moved)...)
	}
	for _, uid := range resend {
		m.pods.visit(uid, func(pod *v1.Pod) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if pod.Spec.NodeName != "" {
				m.sendPod(pod, false, true)
			}
		})
	}
	if len(used.senders) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.settled = append(m.settled, used.senders.UnsortedList()...)
	}
}

// announcedBy returns whether a replica has announced a node on its current connection. The caller holds the lock.
func (m *Member) announcedBy(from string, known nodeSlot) bool {
	return known.from == from && known.connection == m.connections[from]
}

// HandleGoneNodes records that nodes of another replica were deleted. It ignores nodes that the replica does not own
// according to the current assignment: the owner reports the deletion too, or does not announce the node when it has
// listed its nodes ([Member.HandleNodesListed]).
func (m *Member) HandleGoneNodes(from string, nodes []wire.NodeName) {
	m.mu.Lock()
	var used usedNodes
	for _, node := range nodes {
		if waiting := m.waiting[from]; waiting != nil && slices.ContainsFunc(waiting.byName[node.Hash], node.Ends) {
			m.removeWaiting(from, node.Hash, node.Slot, &used)
		}
		known, ok := m.slots[node.Hash]
		later := m.announcedBy(from, known) && known.number > node.Number
		if ok && known.slot == node.Slot && known.created == node.Created && !later && m.table != nil && m.table[known.slot] == from {
			m.goneNodes[node.Hash] = time.Now()
			m.useWaitingFor(node.Hash, &used)
		}
	}
	m.mu.Unlock()
	m.finishUse(&used)
}

// Connected handles a new connection from a replica, which announces all its nodes again on it.
func (m *Member) Connected(from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connections[from]++
	delete(m.announced, from)
	delete(m.waiting, from)
	delete(m.unchecked, from)
}

// listedNodes are hash slots whose nodes a replica has completely announced on its current connection.
type listedNodes struct {
	// stamp is that of the assignment that the replica followed at the last report, and id the ID of that report.
	stamp, id int64
	starts    listStarts
}

// addListed handles a replica's report that it has announced all its nodes in some hash slots since its previous report.
// The caller holds the lock.
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
// the replica follows another assignment, this waits for it. The caller holds the lock.
func (m *Member) recheckNodes(from string, used *usedNodes) {
	listed := m.unchecked[from]
	if listed == nil || m.assignment == nil || listed.stamp != m.currentStamp() {
		return
	}
	delete(m.unchecked, from)
	m.dropWaiting(from, listed, used)
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
			m.goneNodes[hash] = time.Now()
			m.useWaitingFor(hash, used)
		}
	}
}

// dropWaiting removes the announcements of a replica that wait and that its report refutes: in hash slots that it has lost,
// and in those that it has listed since, without the node. It keeps announcements in other hash slots after the report: the
// replica may have followed a later assignment since. The caller holds the lock.
func (m *Member) dropWaiting(from string, listed *listedNodes, used *usedNodes) {
	waiting := m.waiting[from]
	if waiting == nil {
		return
	}
	for _, nodes := range waiting.byName {
		for _, node := range slices.Clone(nodes) {
			if node.Number < listed.id && m.table[node.Slot] != from || node.Number < listed.starts[node.Slot] {
				m.removeWaiting(from, node.Hash, node.Slot, used)
			}
		}
	}
}

// forgetNodes removes the slots of nodes that were deleted some time ago. Then it uses announcements that waited because a
// hash slot had too many nodes.
func (m *Member) forgetNodes(_ context.Context) {
	old := m.oldGoneNodes()
	if len(old) > 0 {
		for _, uid := range m.podsOnNodes(old) {
			m.pods.visit(uid, func(pod *v1.Pod) { delete(old, hashOf(pod.Spec.NodeName)) })
		}
	}
	m.mu.Lock()
	for hash := range old {
		// Meanwhile, a node of that name may have been created again, or a pod may have appeared on it (see sendPod).
		if m.isOldGone(hash) {
			m.slotNodes[m.slots[hash].slot]--
			delete(m.goneNodes, hash)
			delete(m.slots, hash)
		}
	}
	var used usedNodes
	m.useWaiting(&used)
	m.mu.Unlock()
	m.finishUse(&used)
	if len(used.senders) > 0 {
		m.hooks.Settle()
	}
}

// oldGoneNodes returns the nodes that were deleted some time ago.
func (m *Member) oldGoneNodes() map[uint64]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := map[uint64]bool{}
	for hash := range m.goneNodes {
		if m.isOldGone(hash) {
			old[hash] = true
		}
	}
	return old
}

// isGone returns whether a node was deleted. The caller holds the lock.
func (m *Member) isGone(hash uint64) bool {
	_, gone := m.goneNodes[hash]
	return gone
}

// isOldGone returns whether a node was deleted some time ago. The caller holds the lock.
func (m *Member) isOldGone(hash uint64) bool {
	since, gone := m.goneNodes[hash]
	return gone && time.Since(since) > goneNodeLife
}

// podsOnNodes returns the pods that this replica watches on the given nodes, which are identified by the
// hash of their name.
func (m *Member) podsOnNodes(nodes map[uint64]bool) []types.UID {
	var found []types.UID
	for _, uid := range m.pods.uids() {
		m.pods.visit(uid, func(pod *v1.Pod) {
			if pod.Spec.NodeName != "" && nodes[hashOf(pod.Spec.NodeName)] {
				found = append(found, uid)
			}
		})
	}
	return found
}
