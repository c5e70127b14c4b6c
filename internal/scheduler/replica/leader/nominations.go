package leader

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nominate sends changed nominations to the owners of the nodes. It runs in the scheduling cycle.
func (l *Leader) nominate() {
	now := map[types.UID]string{}
	queue := l.search.Nominations
	for node, nominees := range queue.ByNode() {
		for i := range nominees {
			now[nominees[i].UID] = node
		}
	}
	l.mu.Lock()
	previous := l.nominated
	l.nominated = now
	l.mu.Unlock()
	for uid, node := range previous {
		if now[uid] != node {
			l.sendNomination(node, wire.Reservation{Nominated: true, UID: uid})
		}
	}
	for uid, node := range now {
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

// sendNomination sends a nomination to the owner of a node, unless that is this replica, which has
// it in its queue.
func (l *Leader) sendNomination(node string, reservation wire.Reservation) {
	l.member.SendToOtherOwner(node, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) })
}
