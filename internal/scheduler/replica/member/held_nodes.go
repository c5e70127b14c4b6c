package member

import (
	"context"
	"fmt"
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
// look empty, so it is held back: the holder does not have it, and no pod is placed on it.

// heldNodes are the nodes that are held back. Its zero value has none.
type heldNodes struct {
	nodes map[types.UID]heldNode
	// order are the nodes in the order of their announcements. It may contain nodes that are not held any more.
	order []types.UID
	// changed is closed when a node is removed; nil if nobody waits for that.
	changed chan struct{}
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
	if held {
		h.notify()
	}
	return held
}

// clear removes all nodes.
func (h *heldNodes) clear() {
	h.nodes, h.order = nil, nil
	h.notify()
}

// notify wakes those that wait for a change.
func (h *heldNodes) notify() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// await returns a channel that is closed when a node is removed; nil if no node is held that was announced with the
// given number or a lower one.
func (h *heldNodes) await(announcement int64) <-chan struct{} {
	for _, node := range h.nodes {
		if node.announcement > announcement {
			continue
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		return h.changed
	}
	return nil
}

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

// announce announces a new node to all peers, and returns the number of the announcement. The caller holds the lock.
func (m *Member) announce(node *v1.Node) int64 {
	m.lastID++
	announcement := m.lastID
	item := nodeName(node, announcement)
	for _, p := range m.peers {
		p.link.Send(func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
		if p.sentNodes {
			p.link.SendOn(p.connection, func(b *wire.Batch) { b.Announced = announcement })
		}
	}
	return announcement
}

// ConfirmNodes confirms the announcements of another replica up to the given one, after this replica has sent it all
// pods on these nodes. If it has not completely listed its pods on the current connection, the end of the list confirms
// them.
func (m *Member) ConfirmNodes(from string, announcement int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.announced[from] = announcement
	m.confirm(from, announcement)
}

// confirm confirms the announcements of another replica up to the given one, unless some of them wait, or the end of a
// list will confirm them. The caller holds the lock.
func (m *Member) confirm(from string, announcement int64) {
	if p := m.peers[from]; p != nil && p.listedOn > 0 && !m.waits(from) {
		p.link.SendOn(p.listedOn, func(b *wire.Batch) { b.Confirmed = announcement })
	}
}

// HandleConfirmed handles the confirmation of a replica that it has sent all its pods on the nodes that were announced
// up to the given announcement.
func (m *Member) HandleConfirmed(from string, announcement int64) {
	m.mu.Lock()
	if p := m.peers[from]; p != nil {
		p.confirmed = max(p.confirmed, announcement)
	}
	m.mu.Unlock()
	m.releaseNodes()
}

// releaseNodes passes the nodes to the holder whose pods are known.
func (m *Member) releaseNodes() {
	m.mu.Lock()
	due := m.held.due(m.confirmedByAll())
	m.mu.Unlock()
	for _, uid := range due {
		// Meanwhile, the node may have changed or disappeared.
		m.nodes.visit(uid, func(node *v1.Node) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.held.remove(uid) {
				m.holder.ChangeNode(nil, node)
				m.sendNodeEvent(nil, node)
			}
		})
	}
}

// AwaitNodes waits until the holder has all nodes that this replica has received so far. Nodes that arrive meanwhile
// do not prolong this.
func (m *Member) AwaitNodes(ctx context.Context) error {
	m.mu.Lock()
	received := m.lastID
	m.mu.Unlock()
	for {
		m.mu.Lock()
		changed, unconfirmed := m.held.await(received), m.unconfirmed()
		m.mu.Unlock()
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("new nodes cannot be used yet, because these replicas have not confirmed that they have sent their pods on them: %v: %w", unconfirmed, ctx.Err())
		}
	}
}

// unconfirmed returns the replicas for whose confirmation the first of the held nodes waits. The caller holds the lock.
func (m *Member) unconfirmed() (names []string) {
	oldest := m.held.oldest()
	for _, name := range m.confirming() {
		if p := m.peers[name]; (p == nil || p.confirmed < oldest.announcement) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// confirmedByAll returns the last announcement that all owners and the leader have confirmed. The caller holds the
// lock.
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
	if m.assignment == nil {
		return nil
	}
	return append([]string{m.assignment.Leader.Name}, m.assignment.Owners...)
}

// awaitsUnreachable returns whether a node is held back because this replica cannot reach another one. The leader then
// has to decide which of them keeps its slots. The caller holds the lock.
func (m *Member) awaitsUnreachable() bool {
	oldest := m.held.oldest()
	if oldest.announcement == 0 || time.Since(oldest.since) < unreachableAfter {
		return false
	}
	for _, name := range m.confirming() {
		if p := m.peers[name]; p != nil && p.confirmed < oldest.announcement && p.unreachable() {
			return true
		}
	}
	return false
}
