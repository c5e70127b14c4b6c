package member

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeSlot is the hash slot of a node.
type nodeSlot struct {
	slot int16
	// created is the creation time of the node in Unix seconds.
	created int64
	// connection is the number of the connection on which the owner has announced the node.
	connection int
}

const (
	// The slot of a deleted node is kept for goneNodeLife, and as long as this replica watches a pod on the
	// node: the removal of the pod is sent to the owner of the node.
	goneNodeLife = time.Minute
	// forgetInterval is the interval between checks for such nodes.
	forgetInterval = 30 * time.Second
)

// HandleNodes records the hash slots of nodes that another replica has announced. It sends the pods of
// these nodes to the owners, if a node was unknown before or was created again with another UID. It returns whether a
// node was created again and has another hash slot.
func (m *Member) HandleNodes(from string, nodes []wire.NodeName) (movedAny bool) {
	m.mu.Lock()
	moved, ownNodeMoved := map[uint64]bool{}, false
	for _, node := range nodes {
		before, known := m.slots[node.Hash]
		if known && before.created > node.Created {
			continue
		}
		m.slots[node.Hash] = nodeSlot{node.Slot, node.Created, m.connections[from]}
		delete(m.goneNodes, node.Hash)
		if known && before.slot != node.Slot {
			moved[node.Hash] = true
			ownNodeMoved = ownNodeMoved || m.table != nil && m.table[before.slot] == m.Self()
		}
	}
	var resend []types.UID
	for name, uids := range m.podsOfUnknownNodes {
		if m.ownerOf(name) != "" {
			resend = append(resend, uids.UnsortedList()...)
			delete(m.podsOfUnknownNodes, name)
		}
	}
	m.mu.Unlock()
	if ownNodeMoved {
		// A node of this replica was deleted, and the new node of that name has another hash slot. Its
		// owner gets all pods on it from the replicas that watch them.
		m.holder.DropNodes(nil, m.ownsNode)
	}
	if len(moved) > 0 {
		resend = append(resend, m.podsOnNodes(moved)...)
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
	return len(moved) > 0
}

// HandleGoneNodes records that nodes of another replica were deleted.
func (m *Member) HandleGoneNodes(nodes []wire.NodeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, node := range nodes {
		if known, ok := m.slots[node.Hash]; ok && known.slot == node.Slot && known.created == node.Created {
			m.goneNodes[node.Hash] = time.Now()
		}
	}
}

// Connected handles a new connection from a replica, which announces all its nodes again on it.
func (m *Member) Connected(from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connections[from]++
	m.recheck.Insert(from)
	delete(m.announced, from)
}

// recheckNodes records that those nodes of a replica were deleted that it has not announced on its current
// connection. The replica has announced all its nodes. The caller holds the lock.
func (m *Member) recheckNodes(from string) {
	if !m.recheck.Has(from) {
		return
	}
	m.recheck.Delete(from)
	for hash, known := range m.slots {
		if _, gone := m.goneNodes[hash]; !gone && m.table[known.slot] == from && known.connection < m.connections[from] {
			m.goneNodes[hash] = time.Now()
		}
	}
}

// forgetNodes removes the slots of nodes that were deleted some time ago.
func (m *Member) forgetNodes(_ context.Context) {
	m.mu.Lock()
	old := map[uint64]bool{}
	for hash, since := range m.goneNodes {
		if time.Since(since) > goneNodeLife {
			old[hash] = true
		}
	}
	m.mu.Unlock()
	if len(old) == 0 {
		return
	}
	for _, uid := range m.podsOnNodes(old) {
		m.pods.visit(uid, func(pod *v1.Pod) { delete(old, hashOf(pod.Spec.NodeName)) })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for hash := range old {
		// A node of that name may have been created again meanwhile.
		if _, gone := m.goneNodes[hash]; gone {
			delete(m.goneNodes, hash)
			delete(m.slots, hash)
		}
	}
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
