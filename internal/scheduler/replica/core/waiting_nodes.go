package core

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Only the replica that watches a node may announce it, and only the owner of a known node may say that it was deleted.
// Otherwise any replica could take the reservations of any node: with an announcement of its name in a hash slot of its
// own. So an announcement waits
//
//   - while the hash slot is another replica's according to the current assignment. The sender may follow a later
//     assignment; then this replica uses the announcement when it follows it too. Or the sender follows an earlier
//     assignment; then the current owner announces the node too, and this one is forgotten when the sender later reports
//     its nodes for the current assignment.
//   - while the name is that of a node in another hash slot. If the node was created again with another UID, the owner of
//     that slot reports the deletion, also if it is the same replica: it watches hash slots in several parts, of which one may
//     be behind, so neither the order of its announcements nor the clock tells which node is the later one. If the owner has
//     ended, the next owner of the hash slot does not announce the node.
//
// While announcements of a replica wait, pods on their nodes are not sent to it. So this replica confirms none of its
// later announcements, and does not answer its requests for pods: otherwise the nodes would look empty.

// A report that a node was deleted waits while the hash slot is another replica's according to the current assignment. If
// this replica has followed an assignment that the next leader did not know, the sender may own the hash slot before and
// after it, and then it does not list the nodes in it again: nobody else would report the deletion. The report is used when
// this replica follows an assignment in which the sender owns the slot. It is forgotten when the sender reports later
// that it follows the assignment that this replica follows, and does not own the hash slot in it.

// maxWaitingNodes is the maximal number of announcements of one replica that wait, and also of its reports about deleted
// nodes. A replica that has no assignment yet gets the announcements of up to a million nodes. Beyond it, the connection
// ends, and the replica announces its nodes again on the next one.
const maxWaitingNodes = 1 << 20

// waitingNodes are the announcements of one replica that wait, by the hash of the node's name, with at most one for each hash
// slot. count is their number.
type waitingNodes struct {
	byName map[uint64][]wire.NodeName
	count  int
}

func (w *waitingNodes) add(node wire.NodeName) {
	w.byName[node.Hash] = append(w.byName[node.Hash], node)
	w.count++
}

// remove removes the announcement of a node in a hash slot, and returns whether it was there.
func (w *waitingNodes) remove(hash uint64, slot int16) bool {
	nodes := w.byName[hash]
	i := slices.IndexFunc(nodes, func(node wire.NodeName) bool { return node.Slot == slot })
	if i < 0 {
		return false
	}
	if w.byName[hash] = slices.Delete(nodes, i, i+1); len(nodes) == 1 {
		delete(w.byName, hash)
	}
	w.count--
	return true
}

// addWaiting adds an announcement that waits.
func (m *Member) addWaiting(from string, node wire.NodeName) error {
	if m.waiting[from] == nil {
		m.waiting[from] = &waitingNodes{byName: map[uint64][]wire.NodeName{}}
	}
	m.waiting[from].remove(node.Hash, node.Slot)
	m.waiting[from].add(node)
	if m.waiting[from].count > maxWaitingNodes {
		return fmt.Errorf("replica %s has announced more than %d nodes of other replicas", from, maxWaitingNodes)
	}
	return nil
}

// goneNode identifies a deleted node in a hash slot. created is its creation time in Unix seconds.
type goneNode struct {
	hash    uint64
	slot    int16
	created int64
}

// keepGone adds a report that a node was deleted in a hash slot that the sender does not own.
func (m *Member) keepGone(from string, node wire.NodeName) error {
	if m.config.Fault == ForgetGoneNodes {
		return nil
	}
	if m.waitingGone[from] == nil {
		m.waitingGone[from] = map[goneNode]int64{}
	}
	m.waitingGone[from][goneNode{node.Hash, node.Slot, node.Created}] = node.Number
	if len(m.waitingGone[from]) > maxWaitingNodes {
		return fmt.Errorf("replica %s has reported the deletion of more than %d nodes of other replicas", from, maxWaitingNodes)
	}
	return nil
}

// useGone uses the reports of a replica about deleted nodes that it owns according to the current assignment.
func (m *Member) useGone(now time.Time, from string, out *MemberOutput) {
	reports := m.waitingGone[from]
	for node, number := range reports {
		if m.table != nil && m.table[node.slot] == from {
			delete(reports, node)
			m.endNode(now, from, wire.NodeName{Hash: node.hash, Slot: node.slot, Created: node.created, Number: number}, out)
		}
	}
	if len(reports) == 0 {
		delete(m.waitingGone, from)
	}
}

// dropGone forgets the reports of a replica about deleted nodes that it has sent before a report which shows that it
// does not own their hash slots.
func (m *Member) dropGone(from string, listed *listedNodes) {
	reports := m.waitingGone[from]
	maps.DeleteFunc(reports, func(node goneNode, number int64) bool { return number < listed.id && m.table[node.slot] != from })
	if len(reports) == 0 {
		delete(m.waitingGone, from)
	}
}

// removeWaiting removes the announcement of a node in a hash slot.
func (m *Member) removeWaiting(from string, hash uint64, slot int16, out *MemberOutput) {
	waiting := m.waiting[from]
	if waiting == nil || !waiting.remove(hash, slot) {
		return
	}
	if waiting.count == 0 {
		delete(m.waiting, from)
	}
	// The node may be gone. See OwnsNode: the pods on it were kept.
	out.DropPods = out.DropPods || from == m.config.Self
	if out.Senders.Has(from) {
		return
	}
	if out.Senders == nil {
		out.Senders = sets.New[string]()
	}
	out.Senders.Insert(from)
	m.settling[from]++
}

// useWaitingFor uses an announcement of a node that waited, if one does not wait any more.
func (m *Member) useWaitingFor(hash uint64, out *MemberOutput) {
	for _, from := range senders(m.waiting) {
		if waiting := m.waiting[from]; waiting != nil {
			m.useWaitingOf(from, waiting.byName[hash], out)
		}
	}
}

// useWaitingOf uses those of the announcements of a replica that do not wait any more.
func (m *Member) useWaitingOf(from string, nodes []wire.NodeName, out *MemberOutput) {
	for _, node := range slices.Clone(nodes) {
		if m.useNode(from, node, out) {
			m.removeWaiting(from, node.Hash, node.Slot, out)
		}
	}
}

// useWaitingAt uses the announcements, and the reports about deleted nodes, that do not wait any more after the assignment
// has changed. The announcements are first: one that is later than the report about an earlier node refutes it.
func (m *Member) useWaitingAt(now time.Time, out *MemberOutput) {
	for _, from := range senders(m.waiting) {
		for _, nodes := range m.waiting[from].byName {
			m.useWaitingOf(from, nodes, out)
		}
	}
	for _, from := range senders(m.waitingGone) {
		m.useGone(now, from, out)
	}
	for _, from := range senders(m.unchecked) {
		m.recheckNodes(now, from, out)
	}
	m.resendKnown(out)
}

// waits returns whether this replica may not have sent all its pods on the announced nodes of another one.
func (m *Member) waits(from string) bool {
	return (m.waiting[from] != nil || m.settling[from] > 0) && m.config.Fault != ConfirmWaitingNodes
}
