package rank

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// walk looks at each node by itself, for a pod with volumes, claims, or nodes that it
// names: what it asks of nodes is in no state. What other pods have to do with it is
// counted as for all others.
type nodeWalk struct {
	ctx    context.Context
	class  *Class
	pod    *v1.Pod
	except sets.Set[string]
	// refused are the nodes that do not fit, with why; those that nominated pods bar are
	// in it from the start.
	refused map[index.Slot]*fwk.Status
}

// slots are the nodes to be looked at: all, or those that the pod can go to at all.
func (w *nodeWalk) slots(only string) []index.Slot {
	c := w.class.cluster
	names := w.class.namedNodes
	if only != "" {
		names = sets.New(only)
	}
	var slots []index.Slot
	if names != nil {
		for name := range names {
			if n := c.Lookup(name); n != nil {
				slots = append(slots, n.ID)
			}
		}
		w.refuseOthers(names)
		return slots
	}
	for _, n := range c.Nodes {
		if n.Position >= 0 {
			slots = append(slots, n.ID)
		}
	}
	return slots
}

// refuseOthers notes why all nodes do not fit that the pod does not name.
func (w *nodeWalk) refuseOthers(names sets.Set[string]) {
	status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", w.class.NamingPlugins))
	for _, n := range w.class.cluster.Nodes {
		if n.Position >= 0 && !names.Has(n.Info.Node().Name) {
			w.refused[n.ID] = status
		}
	}
}

func (w *nodeWalk) verdict(slot index.Slot) (index.Verdict, error) {
	if w.refused[slot] != nil {
		return index.Verdict{}, nil
	}
	n := w.class.cluster.ByID[slot]
	if w.except.Has(n.Info.Node().Name) {
		w.refused[slot] = fwk.NewStatus(fwk.Unschedulable, "node(s) did not have what the pod claims, after all")
		return index.Verdict{}, nil
	}
	verdict, refused, err := w.class.runPlugins(w.class.state, n.Info)
	if refused != nil {
		w.refused[slot] = refused
	}
	return verdict, err
}
