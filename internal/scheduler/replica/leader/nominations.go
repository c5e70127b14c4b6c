package leader

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// sendNominations sends the nominations that have changed since the last call to the owners of the
// nodes. It must run in the scheduling cycle.
func (l *Leader) sendNominations() {
	current := map[types.UID]string{}
	queue := l.search.Nominations
	for node, nominees := range queue.ByNode() {
		for i := range nominees {
			current[nominees[i].UID] = node
		}
	}
	l.mu.Lock()
	previous := l.nominated
	l.nominated = current
	l.mu.Unlock()
	for uid, node := range previous {
		if current[uid] != node {
			l.sendNomination(node, wire.Reservation{Nominated: true, UID: uid})
		}
	}
	for uid, node := range current {
		if previous[uid] == node {
			continue
		}
		for _, info := range queue.NominatedPodsForNode(node) {
			if pod := info.GetPod(); pod.UID == uid {
				l.sendNomination(node, wire.Reservation{Nominated: true, UID: uid, Node: node, Pod: wire.MarshalObject(pod)})
			}
		}
	}
}

// sendNomination sends a nomination to the owner of a node, unless this replica is the owner: its own
// queue has the nomination.
func (l *Leader) sendNomination(node string, reservation wire.Reservation) {
	l.member.SendToOtherOwner(node, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) })
}
