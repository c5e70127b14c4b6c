package core

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nomination is the nomination of a pod to a node. version is the resource version of the pod.
type nomination struct{ node, version string }

// Nominee is a pod in the queue that is nominated to a node.
type Nominee struct {
	UID           types.UID
	Node, Version string
}

// Nominate sends the nominations that have changed since the last call to the owners of the nodes. pod returns a nominated
// pod; nil if it is not nominated any more.
//
// It sends nothing to an owner that is not ready: that owner may follow an assignment of an earlier term,
// and would drop the nominations when it adopts this leader's assignment. No query is sent to it either.
func (l *Leader) Nominate(nominees []Nominee, pod func(Nominee) *v1.Pod, view View) (out Output) {
	wanted := map[string]map[types.UID]nomination{}
	for _, nominee := range nominees {
		owner := view.NodeOwner(nominee.Node)
		if owner == "" || owner == l.config.Self.Name {
			// The queue of this replica has the nominations to its own nodes.
			continue
		}
		if wanted[owner] == nil {
			wanted[owner] = map[types.UID]nomination{}
		}
		wanted[owner][nominee.UID] = nomination{nominee.Node, nominee.Version}
	}
	if len(wanted)+len(l.nominated) == 0 {
		return out
	}
	for _, owner := range sets.List(l.ready) {
		if len(wanted[owner])+len(l.nominated[owner]) > 0 {
			l.updateNominations(owner, wanted[owner], pod, &out)
		}
	}
	return out
}

// updateNominations withdraws the nominations that an owner should no longer have, and sends those that
// are new or whose pod has changed.
func (l *Leader) updateNominations(owner string, wanted map[types.UID]nomination, pod func(Nominee) *v1.Pod, out *Output) {
	sent := l.nominated[owner]
	send := func(r wire.Reservation) { out.Nominations = append(out.Nominations, OwnerNomination{owner, r}) }
	for _, uid := range slices.Sorted(maps.Keys(sent)) {
		if before := sent[uid]; wanted[uid].node != before.node {
			send(wire.Reservation{Nominated: true, UID: uid, Node: before.node})
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(wanted)) {
		now := wanted[uid]
		if sent[uid] == now {
			continue
		}
		if nominated := pod(Nominee{uid, now.node, now.version}); nominated != nil {
			send(wire.Reservation{Nominated: true, UID: uid, Node: now.node, Pod: wire.MarshalObject(nominated)})
		}
	}
	l.nominated[owner] = wanted
}
