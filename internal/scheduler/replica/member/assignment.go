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

// CorrectTerm sends the present assignment to a replica whose assignment is of an earlier term:
// another has become leader since, perhaps while that replica was stopped.
func (m *Member) CorrectTerm(from string, a *wire.Assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.assignment; now.Term > a.Term {
		m.send(from, func(b *wire.Batch) { b.Assignments = append(b.Assignments, now) })
	}
}

// Adopt follows an assignment: it watches the hash slots that are new here, and removes what is in
// slots that moved away. If an assignment before this one was missed, it removes everything first.
// A leader exits if another has led for a later term: it may hold the lease again, but no replica
// follows its earlier term.
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
		m.hooks.Exit(fmt.Errorf("term %d, and %s leads for term %d", term, a.Leader.Name, a.Term), "Lost leadership")
		return
	}
	m.logger.V(1).Info("Following an assignment of hash slots", "term", a.Term, "number", a.Number, "leader", a.Leader.Name, "replicas", a.Owners)
	missed := m.assignment != nil && !a.Follows(m.assignment)
	another := m.assignment == nil || m.assignment.Term != a.Term
	if another {
		for _, p := range m.peers {
			p.sentPending = false
		}
	}
	m.assignment, m.table = a, a.Table()
	m.refreshed = sets.New[string]()
	m.connect(append([]membership.Member{a.Leader}, a.Known...))
	slots, ctx := m.table.Of(m.Self()), m.ctx
	m.mu.Unlock()

	if another {
		m.holder.ForgetNominated()
	}
	m.holder.ShortenOld(a.Term, time.Now())
	if missed {
		m.logger.Info("Missed an assignment of hash slots; listing everything again", "term", a.Term, "number", a.Number)
		m.forgetAll(ctx)
	}
	lostNodes, gained := m.nodes.own(ctx, slots)
	m.pods.own(ctx, slots)
	m.holder.DropNodes(lostNodes, m.ownsNode)
	m.mu.Lock()
	for _, p := range m.peers {
		p.unlistedSlots.Add(gained)
		p.unsentPodSlots.Add(gained)
	}
	m.settled = m.current()
	m.mu.Unlock()
	m.sendDue()
}

// forgetAll gives up all slots. Reservations stay, because the nodes may return.
func (m *Member) forgetAll(ctx context.Context) {
	nodes, _ := m.nodes.own(ctx, nil)
	m.pods.own(ctx, nil)
	m.holder.Clear(nodes)
}

// ownsNode returns whether a node is owned here; also true if its owner is unknown.
func (m *Member) ownsNode(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := m.ownerOf(node)
	return owner == m.Self() || owner == ""
}

// SlotsOf returns which of some slots a replica owns.
func (m *Member) SlotsOf(owner string, slots []int) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return refresh.NewSlotSet(slots).Of(m.table, owner)
}
