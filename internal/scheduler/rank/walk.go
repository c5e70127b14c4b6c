package rank

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// nodeWalk evaluates each node separately, for a pod with volumes, resource claims or named nodes, because
// the node state does not contain what such a pod requires. Spread and inter-pod affinity use counters, as
// in all classes.
type nodeWalk struct {
	class *Class
	// except are the names of nodes that the leader has excluded.
	except sets.Set[string]
	// refused are the statuses of the nodes that do not fit, except the excluded ones. At the start it has the
	// nodes that do not fit because of their nominated pods.
	refused map[index.NodeID]*fwk.Status
	// answer gets the claims that are not available on some node.
	answer *wire.Answer
}

// summarize returns the summary of the nodes to evaluate. It returns an error when the context ends: then the leader
// does not wait for the answer any more, and reservations wait for the end of the walk.
func (w *nodeWalk) summarize(ctx context.Context, indexClass *index.Class, only string, nominated []index.Nominated) (index.Summary, error) {
	if err := w.forgetUnavailable(); err != nil {
		return index.Summary{}, err
	}
	return indexClass.SummarizeEach(w.nodeIDs(only), nominated, func(id index.NodeID) (index.Verdict, error) {
		if err := ctx.Err(); err != nil {
			return index.Verdict{}, err
		}
		return w.verdict(ctx, id)
	})
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
func (w *nodeWalk) verdict(ctx context.Context, id index.NodeID) (index.Verdict, error) {
	n := w.class.cluster.ByID[id]
	if w.except.Has(n.Info.Node().Name) {
		// The leader knows the status with which its plugins have rejected this node.
		delete(w.refused, id)
		return index.Verdict{}, nil
	}
	known := w.refused[id]
	if known != nil && known.Plugin() != pluginnames.DynamicResources {
		return index.Verdict{}, nil
	}
	verdict, refused, err := w.class.runPlugins(ctx, w.class.state, n.Info)
	if refused != nil && refused.Plugin() == pluginnames.DynamicResources && err == nil {
		err = w.noteUnavailable(n.Info.Node().Name)
	}
	if known != nil {
		return index.Verdict{}, err
	}
	if refused != nil {
		w.refused[id] = refused
	}
	return verdict, err
}

// noteUnavailable adds to the answer the claims that are not available on a node, according to the plugin that has
// just rejected this node.
func (w *nodeWalk) noteUnavailable(node string) error {
	claims, err := w.unavailable()
	if err != nil || claims == nil {
		return err
	}
	for claim := range *claims {
		w.answer.AddUnavailable(wire.UnavailableClaim{Claim: claim, Node: node})
	}
	*claims = nil
	return nil
}

// unavailable returns where DynamicResources adds the positions of unavailable claims; nil if the plugin does not
// handle the pod.
func (w *nodeWalk) unavailable() (*sets.Set[int], error) {
	return writtenField[sets.Set[int]](w.class, pluginnames.DynamicResources, "unavailableClaims")
}

// forgetUnavailable makes the plugin forget the claims that it found unavailable on nodes with their nominated pods,
// because they do not belong to the node that is evaluated next.
func (w *nodeWalk) forgetUnavailable() error {
	claims, err := w.unavailable()
	if claims != nil {
		*claims = nil
	}
	return err
}
