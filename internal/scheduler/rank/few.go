package rank

import (
	"context"
	"errors"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// fewNodes evaluates single nodes for a pod that can only run on some. All plugins run for each of them, except those that the
// counters of the class replace.
type fewNodes struct {
	class      *Class
	indexClass *index.Class
	// nominated are the nodes among them with nominated pods, and refused are those on which the pod does not fit beside
	// these.
	nominated []index.Nominated
	refused   map[index.NodeID]*fwk.Status
}

// amongFew finds the best of the given nodes. The pod must not fit on any other node.
func (d *decision) amongFew(ctx context.Context, nodes []*cache.Node) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	if sample := d.profile.sample(len(nodes)); sample > 0 && sample < len(nodes) {
		return none, reasonSampled
	}
	own := d.Cluster.Lookup(d.pod.Pod.Status.NominatedNodeName)
	all := nodes
	if own != nil && !slices.Contains(nodes, own) {
		all = append(slices.Clone(nodes), own)
	}
	few, err := d.newFewNodes(ctx, all)
	if err != nil {
		return none, err
	}
	if own != nil {
		// Upstream evaluates this node first, and no other one if the pod fits.
		if result, err := d.bestOf(ctx, few, []*cache.Node{own}); !errors.Is(err, reasonUnschedulable) {
			return result, err
		}
	}
	return d.bestOf(ctx, few, nodes)
}

// newFewNodes makes a class for the pod alone.
func (d *decision) newFewNodes(ctx context.Context, nodes []*cache.Node) (*fewNodes, error) {
	// This must precede NewClass, because the terms of nominated pods count like those of running pods.
	nominees := slices.DeleteFunc(d.nomineesByNode(d.pod.Pod), func(n nodeNominees) bool { return !slices.Contains(nodes, n.node) })
	class, err := NewClass(ctx, d.Cluster, d.profile, d.pod, &Agreement{MayGrow: true, PerNode: true})
	var reason FallbackReason
	switch {
	case errors.As(err, &reason):
		return nil, reason
	case err != nil:
		return nil, reasonPreScore
	case class.countsByHostname && d.Cluster.SharedHosts > 0:
		return nil, reasonSharedHostname
	}
	few := &fewNodes{class: class}
	if few.indexClass, err = d.Cluster.Index.Temporary(class.Spec); err != nil {
		return nil, err
	}
	if few.nominated, few.refused, err = class.evaluateNominated(ctx, d.pod.Pod, nominees); err != nil {
		return nil, err
	}
	if len(class.Spec.Counters) == 0 {
		// Nominated pods matter only by the nodes that they refuse.
		few.nominated = nil
	}
	return few, nil
}

// bestOf finds the best of the given nodes, which must be among those of few.
func (d *decision) bestOf(ctx context.Context, few *fewNodes, nodes []*cache.Node) (result kubescheduler.ScheduleResult, err error) {
	ids := make([]index.NodeID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.ID
	}
	summary, err := few.indexClass.SummarizeEach(ids, few.nominated, func(id index.NodeID) (index.Verdict, error) {
		if few.refused[id] != nil {
			return index.Verdict{}, nil
		}
		verdict, _, err := few.class.runPlugins(ctx, few.class.state, d.Cluster.ByID[id].Info)
		return verdict, err
	})
	if err != nil {
		return result, err
	}
	pick, outcome := index.NewMerged(few.class.Spec, nil, &summary).Choose()
	if outcome != index.Chosen {
		return result, reasonUnschedulable
	}
	few.class.WriteState(d.state)
	d.Cluster.NoteRanked(d.pod.Pod.UID, few.class.pod)
	asked.Observe(float64(len(nodes)))
	return kubescheduler.ScheduleResult{
		SuggestedHost: d.Cluster.ByID[pick.Node].Info.Node().Name, EvaluatedNodes: len(nodes), FeasibleNodes: pick.Fitting,
	}, nil
}
