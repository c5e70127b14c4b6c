package core

import (
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// A node that appears after the first lists may be an earlier node that was created again, with pods that still run on
// it. The owner of the earlier node knew these pods; the owner of the new one gets them from the replicas that watch
// them, when it announces the node. Until all of these have confirmed that they have sent their pods, the node would
// look empty, so it is held back: it is not used, and no pod is placed on it.

// heldNodes are the nodes that are held back. Its zero value has none.
type heldNodes struct {
	nodes map[types.UID]heldNode
	// order are the nodes in the order of their announcements. It may contain nodes that are not held any more.
	order []types.UID
}

// heldNode is a node that is held back. It was announced with announcement at the time since.
type heldNode struct {
	announcement int64
	since        time.Time
}

// add holds a node back. Its announcement is later than those of all other nodes.
func (h *heldNodes) add(uid types.UID, announcement int64, now time.Time) {
	if h.nodes == nil {
		h.nodes = map[types.UID]heldNode{}
	}
	h.nodes[uid] = heldNode{announcement, now}
	h.order = append(h.order, uid)
}

// has returns whether a node is held back.
func (h *heldNodes) has(uid types.UID) bool {
	_, held := h.nodes[uid]
	return held
}

// remove removes a node, and returns whether it was held back.
func (h *heldNodes) remove(uid types.UID) bool {
	held := h.has(uid)
	delete(h.nodes, uid)
	return held
}

// clear removes all nodes.
func (h *heldNodes) clear() { h.nodes, h.order = nil, nil }

// due returns the nodes whose announcements were confirmed, up to the given one. It returns each node once.
func (h *heldNodes) due(confirmed int64) []types.UID {
	var due []types.UID
	for len(h.order) > 0 {
		uid := h.order[0]
		node, held := h.nodes[uid]
		if held && node.announcement > confirmed {
			break
		}
		if held {
			due = append(due, uid)
		}
		h.order = h.order[1:]
	}
	return due
}

// oldest returns the node that has been held back for the longest time; the zero value if there is none.
func (h *heldNodes) oldest() (oldest heldNode) {
	for _, uid := range h.order {
		if node, held := h.nodes[uid]; held {
			return node
		}
	}
	return heldNode{}
}

// announce announces a new node to all peers, and returns the number of the announcement.
func (m *Member) announce(node *v1.Node, out *MemberOutput) int64 {
	m.lastID++
	announcement := m.lastID
	item := nodeName(node, announcement)
	out.sendToAll(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
	for _, name := range m.peerNames {
		if p := m.peers[name]; p.sentNodes {
			out.sendOn(name, p.connection, func(b *wire.Batch) { b.Announced = announcement })
		}
	}
	return announcement
}

// ConfirmNodes confirms the announcements of another replica up to the given one, after this replica has sent it all
// pods on these nodes. If it has not completely listed its pods on the current connection, the end of the list confirms
// them.
func (m *Member) ConfirmNodes(from string, announcement int64) (out MemberOutput) {
	m.announced[from] = announcement
	m.confirm(from, announcement, &out)
	return out
}

// confirm confirms the announcements of another replica up to the given one, unless some of them wait, or the end of a
// list will confirm them.
func (m *Member) confirm(from string, announcement int64, out *MemberOutput) {
	if p := m.peers[from]; p != nil && (p.listedOn > 0 || m.config.Fault == ConfirmBeforeList) && !m.waits(from) {
		out.sendOn(from, p.connection, func(b *wire.Batch) { b.Confirmed = announcement })
	}
}

// Confirmed handles the confirmation of a replica that it has sent all its pods on the nodes that were announced
// up to the given announcement. The caller then calls [Member.Due].
func (m *Member) Confirmed(from string, announcement int64) {
	if p := m.peers[from]; p != nil {
		p.confirmed = max(p.confirmed, announcement)
	}
}

// Due returns the nodes that may be used now, because their pods are known. The caller calls [Member.Release] for each
// that still exists.
func (m *Member) Due() []types.UID { return m.held.due(m.confirmedByAll()) }

// Release returns whether a node is used from now on. It is not if it was used already.
func (m *Member) Release(node *v1.Node) (use bool, out MemberOutput) {
	if !m.held.remove(node.UID) {
		return false, out
	}
	out.Released = true
	m.sendNodeEvent(nil, node, &out)
	return true, out
}

// LastID returns the number of the last announcement.
func (m *Member) LastID() int64 { return m.lastID }

// Holds returns whether a node is held back that was announced with the given number or a lower one.
func (m *Member) Holds(announcement int64) bool {
	for _, node := range m.held.nodes {
		if node.announcement <= announcement {
			return true
		}
	}
	return false
}

// Unconfirmed returns the replicas for whose confirmation the first of the held nodes waits.
func (m *Member) Unconfirmed() (names []string) {
	oldest := m.held.oldest()
	for _, name := range m.confirming() {
		if p := m.peers[name]; (p == nil || p.confirmed < oldest.announcement) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// confirmedByAll returns the last announcement that all owners and the leader have confirmed.
func (m *Member) confirmedByAll() int64 {
	confirmed := int64(math.MaxInt64)
	for _, name := range m.confirming() {
		if p := m.peers[name]; p != nil {
			confirmed = min(confirmed, p.confirmed)
		} else {
			confirmed = 0
		}
	}
	return confirmed
}

// confirming returns the replicas that confirm announcements: the owners watch pods, and the leader has placed pods
// that no watch may have shown as bound yet.
func (m *Member) confirming() []string {
	if m.assignment == nil || m.config.Fault == UseNewNodesAtOnce {
		return nil
	}
	return append([]string{m.assignment.Leader.Name}, m.assignment.Owners...)
}

// awaitsUnreachable returns whether a node is held back because this replica cannot reach another one. The leader then
// has to decide which of them keeps its slots.
func (m *Member) awaitsUnreachable(now time.Time) bool {
	oldest := m.held.oldest()
	if oldest.announcement == 0 || now.Sub(oldest.since) < UnreachableAfter {
		return false
	}
	for _, name := range m.confirming() {
		if p := m.peers[name]; p != nil && p.confirmed < oldest.announcement && m.environment.Unreachable(name) {
			return true
		}
	}
	return false
}
