package rank

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// nodeWalk evaluates each node separately, for a pod with volumes, resource claims or named nodes, because
// the node state does not contain what such a pod requires. Spread and inter-pod affinity use counters, as
// in all classes.
type nodeWalk struct {
	ctx   context.Context
	class *Class
	pod   *v1.Pod
	// except are the names of nodes that the leader has excluded.
	except sets.Set[string]
	// refused are the statuses of the nodes that do not fit. At the start it has the nodes that do
	// not fit because of their nominated pods.
	refused map[index.NodeID]*fwk.Status
}

// nodeIDs returns the nodes to evaluate: the one named only, or those that the pod names, or all. It adds
// the nodes that are not evaluated to refused.
func (w *nodeWalk) nodeIDs(only string) []index.NodeID {
	c := w.class.cluster
	names := w.class.namedNodes
	if only != "" {
		names = sets.New(only)
	}
	var ids []index.NodeID
	if names != nil {
		for name := range names {
			if n := c.Lookup(name); n != nil {
				ids = append(ids, n.ID)
			}
		}
		w.refuseOthers(names)
		return ids
	}
	for _, n := range c.Nodes {
		if n.Position >= 0 {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// refuseOthers adds all nodes without one of the given names to refused.
func (w *nodeWalk) refuseOthers(names sets.Set[string]) {
	status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", w.class.NamingPlugins))
	for _, n := range w.class.cluster.Nodes {
		if n.Position >= 0 && !names.Has(n.Info.Node().Name) {
			w.refused[n.ID] = status
		}
	}
}

// verdict runs the plugins for one node, unless it is already refused or excluded.
func (w *nodeWalk) verdict(id index.NodeID) (index.Verdict, error) {
	if w.refused[id] != nil {
		return index.Verdict{}, nil
	}
	n := w.class.cluster.ByID[id]
	if w.except.Has(n.Info.Node().Name) {
		w.refused[id] = fwk.NewStatus(fwk.Unschedulable, "node(s) were rejected when the pod's claims were checked again")
		return index.Verdict{}, nil
	}
	verdict, refused, err := w.class.runPlugins(w.class.state, n.Info)
	if refused != nil {
		w.refused[id] = refused
	}
	return verdict, err
}
