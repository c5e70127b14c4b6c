package leader

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nomination is the nomination of a pod to a node. version is the resource version of the pod.
type nomination struct{ node, version string }

// sendNominations sends the nominations that have changed since the last call to the owners of the
// nodes. It must run in the scheduling cycle. The caller holds the lock.
//
// It sends nothing to an owner that is not ready: that owner may follow an assignment of an earlier term,
// and would drop the nominations when it adopts this leader's assignment. No query is sent to it either.
func (l *Leader) sendNominations() {
	wanted := map[string]map[types.UID]nomination{}
	for node, nominees := range l.search.Nominations.ByNode() {
		owner := l.member.NodeOwner(node)
		if owner == "" || owner == l.member.Self() {
			// The queue of this replica has the nominations to its own nodes.
			continue
		}
		if wanted[owner] == nil {
			wanted[owner] = map[types.UID]nomination{}
		}
		for i := range nominees {
			wanted[owner][nominees[i].UID] = nomination{node, nominees[i].Version}
		}
	}
	for owner := range l.ready {
		if len(wanted[owner])+len(l.nominated[owner]) > 0 {
			l.updateNominations(owner, wanted[owner])
		}
	}
}

// updateNominations withdraws the nominations that an owner should no longer have, and sends those that
// are new or whose pod has changed.
func (l *Leader) updateNominations(owner string, wanted map[types.UID]nomination) {
	sent := l.nominated[owner]
	for uid, before := range sent {
		if wanted[uid].node != before.node {
			l.sendNomination(owner, wire.Reservation{Nominated: true, UID: uid, Node: before.node})
		}
	}
	for uid, now := range wanted {
		if sent[uid] == now {
			continue
		}
		for _, info := range l.search.Nominations.NominatedPodsForNode(now.node) {
			if pod := info.GetPod(); pod.UID == uid {
				l.sendNomination(owner, wire.Reservation{Nominated: true, UID: uid, Node: now.node, Pod: wire.MarshalObject(pod)})
			}
		}
	}
	l.nominated[owner] = wanted
}

func (l *Leader) sendNomination(owner string, reservation wire.Reservation) {
	l.member.SendTo(owner, func(b *wire.Batch) { b.Reservations = append(b.Reservations, reservation) })
}
