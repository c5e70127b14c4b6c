package member

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// SendNewerAssignment sends the current assignment to a replica that has sent an assignment which that one
// supersedes. The replica may not know of the later leader, for example because its process was suspended, or
// of the other leader for its term. A leader sends its own assignment to each replica anyway. Without a connection to the
// replica, the assignment is sent on the next one.
func (m *Member) SendNewerAssignment(from string, a *wire.Assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[from]; p != nil {
		p.assigned = a
	}
	m.sendNewerAssignment(from, a)
}

// sendNewerAssignment is [Member.SendNewerAssignment] for a caller that holds the lock. a is nil if the replica has
// sent none.
func (m *Member) sendNewerAssignment(from string, a *wire.Assignment) {
	latest := m.assignment
	if latest == nil || a == nil {
		return
	}
	if leads := a.Leader.Name == from && latest.Leader.Name != m.Self(); latest.Term > a.Term || leads && a.Superseded(latest) {
		m.send(from, func(b *wire.Batch) {
			// The number of assignments in a batch is limited. One answer is enough for all that the replica has sent.
			if n := len(b.Assignments); n == 0 || b.Assignments[n-1] != latest {
				b.Assignments = append(b.Assignments, latest)
			}
		})
	}
}

// Adopt makes an assignment the current one, if it is later: it watches the hash slots that this replica
// has gained, and removes the objects in those that it has lost. If this replica has missed the
// preceding assignment, it first removes all objects. A leader exits if another replica leads for a later
// term. Even if it holds the Lease again, no replica follows its earlier term.
func (m *Member) Adopt(a *wire.Assignment) {
	m.adopting.Lock()
	defer m.adopting.Unlock()
	m.mu.Lock()
	if !a.Later(m.assignment) {
		m.mu.Unlock()
		return
	}
	if term := m.hooks.Term(); m.options.Elected && term > 0 && a.Term > term && a.Leader.Name != m.Self() {
		m.mu.Unlock()
		m.hooks.Exit(fmt.Errorf("this replica leads for term %d, and %s leads for term %d", term, a.Leader.Name, a.Term), "Lost leadership")
		return
	}
	m.logger.V(1).Info("Following an assignment of hash slots", "term", a.Term, "number", a.Number, "leader", a.Leader.Name, "replicas", a.Owners)
	missed := m.assignment != nil && !a.Follows(m.assignment)
	newTerm := m.assignment == nil || m.assignment.Term != a.Term
	if newTerm {
		for _, p := range m.peers {
			p.sentPending = false
		}
	}
	m.setAssignment(a)
	m.refreshed = sets.New[string]()
	var used usedNodes
	m.useWaiting(&used)
	m.connect(append([]membership.Member{a.Leader}, a.Known...))
	slots, ctx := m.table.Of(m.Self()), m.ctx
	m.mu.Unlock()

	if newTerm {
		m.holder.ForgetNominated()
	}
	m.holder.ShortenOld(a.Term, time.Now())
	if missed {
		m.logger.Info("Missed an assignment of hash slots; listing everything again", "term", a.Term, "number", a.Number)
		m.clearAll(ctx)
	}
	// What was announced so far in hash slots that this replica gains comes from an earlier list.
	m.mu.Lock()
	m.lastID++
	start := m.lastID
	m.mu.Unlock()
	lostNodes, gained := m.nodes.setSlots(ctx, slots)
	m.pods.setSlots(ctx, slots)
	m.mu.Lock()
	for _, node := range lostNodes {
		m.held.remove(node.UID)
		m.countWatched(node, -1)
	}
	m.mu.Unlock()
	m.holder.DropNodes(lostNodes, m.ownsNode)
	m.mu.Lock()
	for _, p := range m.peers {
		for _, slot := range gained {
			p.unlisted[slot] = start
		}
		p.unsentPodSlots.Add(gained)
	}
	m.appliedStamp = m.currentStamp()
	stamp := m.appliedStamp
	m.mu.Unlock()
	go m.checkWatches(ctx, stamp)
	m.finishUse(&used)
	// A replica that owns no slots any more need not confirm nodes.
	m.releaseNodes()
	m.sendDue()
}

// setAssignment sets the current assignment. The caller holds the lock.
func (m *Member) setAssignment(a *wire.Assignment) {
	former := m.table
	m.assignment, m.table = a, a.Table()
	for slot, owner := range m.table {
		if former == nil || former[slot] != owner {
			m.movedSlots[slot] = true
		}
	}
}

// clearAll removes all objects and stops all watches. It keeps reservations, because this replica may
// still own their nodes.
func (m *Member) clearAll(ctx context.Context) {
	nodes, _ := m.nodes.setSlots(ctx, nil)
	m.pods.setSlots(ctx, nil)
	m.mu.Lock()
	m.held.clear()
	for _, node := range nodes {
		m.countWatched(node, -1)
	}
	m.mu.Unlock()
	m.holder.Clear(nodes)
}

// ownsNode returns whether this replica owns a node. It returns true also if the owner is unknown, and if this replica
// watches the node but knows its name as that of another replica's node: the node was created again, and this replica has
// not received its own announcement yet, or not the report that the earlier node is gone. Others that have received both
// send the pods on the node already.
func (m *Member) ownsNode(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := m.ownerOf(node)
	return owner == m.Self() || owner == "" || m.watched[hashOf(node)] > 0
}

// SlotsOf returns those of the given slots that a replica owns.
func (m *Member) SlotsOf(owner string, slots []int) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return refresh.NewSlotSet(slots).Of(m.table, owner)
}
