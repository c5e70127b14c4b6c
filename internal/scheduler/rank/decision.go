package rank

import (
	"context"
	"errors"
	"slices"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// decision is one attempt to find a node for a pod.
type decision struct {
	*Ranker
	profile *Profile
	state   fwk.CycleState
	pod     *framework.PodInfo
	// prefiltered is true if PreFilter has run for the pod with this cycle state.
	prefiltered bool
	// nominees are the pods nominated to nodes, if other pods decide where the pod fits.
	nominees []nodeNominees
}

// byClass finds the node through the class of the pod. a asks the filters that the class does not contain; it may be nil.
func (d *decision) byClass(ctx context.Context, a *asker) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	withNominees := d.nominatedNodes(d.pod.Pod)
	indexClass, class, err := d.classBeside(ctx, withNominees, a)
	if err != nil {
		return none, err
	}
	if class.countsByHostname && d.Cluster.SharedHosts > 0 {
		return none, reasonSharedHostname
	}
	d.Cluster.NoteRanked(d.pod.Pod.UID, class.pod)
	if result, fits, err := d.onNominatedNode(ctx, indexClass, class, a); fits || err != nil {
		return result, err
	}
	if (!class.simple || class.dependsOnOtherPods()) && len(withNominees)*d.NominatedNodeCost > d.Cluster.Index.Len() {
		return none, reasonNominated
	}
	nominated, err := d.besideNominated(ctx, indexClass, class, withNominees)
	if err != nil {
		return none, err
	}
	choice, fits, err := d.choose(ctx, indexClass, class, nominated, a)
	switch {
	case err != nil:
		return none, err
	case !fits && (a != nil || !class.explainsUnfit()):
		return none, reasonUnschedulable
	}
	d.writeState(class)
	if !fits {
		refused, err := class.refusedByNominated(ctx, d.pod.Pod, withNominees)
		if err != nil {
			return none, err
		}
		return none, class.fitError(indexClass, d.pod.Pod, refused)
	}
	return kubescheduler.ScheduleResult{
		SuggestedHost:  d.Cluster.ByID[choice.Node].Info.Node().Name,
		EvaluatedNodes: d.Cluster.Index.Len(),
		FeasibleNodes:  choice.Fitting,
	}, nil
}

// classBeside returns the class of the pod. If other pods decide where it fits, the terms of nominated pods count like those of
// running pods.
func (d *decision) classBeside(ctx context.Context, withNominees []nominatedNode, a *asker) (*index.Class, *Class, error) {
	indexClass, class, err := d.classWith(ctx, d.profile, d.pod, nil, a.conditions())
	if err != nil || len(withNominees) == 0 || !class.dependsOnOtherPods() {
		return indexClass, class, err
	}
	d.nominees = d.nomineesByNode(d.pod.Pod)
	return d.classWith(ctx, d.profile, d.pod, nil, a.conditions())
}

// besideNominated returns how nominated pods affect the choice of a node.
func (d *decision) besideNominated(ctx context.Context, indexClass *index.Class, class *Class, withNominees []nominatedNode) ([]index.Nominated, error) {
	if class.dependsOnOtherPods() {
		fitting := slices.DeleteFunc(slices.Clone(d.nominees), func(n nodeNominees) bool { return !indexClass.Fits(n.node.ID) })
		nominated, _, err := class.evaluateNominated(ctx, d.pod.Pod, fitting)
		return nominated, err
	}
	fitting := slices.DeleteFunc(slices.Clone(withNominees), func(p nominatedNode) bool { return !indexClass.Fits(p.ID) })
	return class.barredByNominated(ctx, d.pod.Pod, fitting)
}

// onNominatedNode returns the node to which the pod is nominated, if there is one and the pod fits.
func (d *decision) onNominatedNode(ctx context.Context, indexClass *index.Class, class *Class, a *asker) (result kubescheduler.ScheduleResult, fits bool, err error) {
	own := d.Cluster.Lookup(d.pod.Pod.Status.NominatedNodeName)
	if own == nil || class.sets.refuse(own.Info.Node().Labels) != nil || !class.fitsWithNominated(ctx, d.pod.Pod, own).IsSuccess() {
		return result, false, nil
	}
	if class.dependsOnOtherPods() {
		others := slices.DeleteFunc(slices.Clone(d.nominees), func(n nodeNominees) bool { return n.node != own })
		nominated, _, err := class.evaluateNominated(ctx, d.pod.Pod, others)
		if err != nil || !indexClass.FitsBeside(own.ID, nominated) {
			return result, false, err
		}
	}
	if a != nil {
		if fits, err := a.ask(ctx, own); !fits || err != nil {
			return result, false, err
		}
	}
	d.writeState(class)
	return kubescheduler.ScheduleResult{SuggestedHost: own.Info.Node().Name, EvaluatedNodes: 1, FeasibleNodes: 1}, true, nil
}

// writeState writes what PreFilter wrote for the class into the cycle state, unless PreFilter has run for the pod itself.
func (d *decision) writeState(class *Class) {
	if !d.prefiltered {
		class.WriteState(d.state)
	}
}

// choose chooses the best node of a class.
func (d *decision) choose(ctx context.Context, indexClass *index.Class, class *Class, barred []index.Nominated, a *asker) (choice index.Choice, fits bool, err error) {
	defer cache.ObserveStep(cache.StepChoose, time.Now())
	sample, nodes := d.profile.sample(d.Cluster.Index.Len()), d.Cluster.Index.Len()
	// Volumes of nominated pods are not in node states.
	sure := a != nil && a.needs.sure && !class.uncountedRoom && (len(a.needs.volumes) == 0 || len(d.Nominations.ByNode()) == 0)
	switch {
	case a == nil:
		choice, fits = indexClass.Choose(barred, sample)
	case sample > 0 && sample < nodes:
		return choice, false, reasonSampled
	default:
		choice, fits, err = indexClass.ChooseLazily(barred, index.Lazy{
			Ask:        func(id index.NodeID) (bool, error) { return a.ask(ctx, d.Cluster.ByID[id]) },
			Sure:       sure,
			MaxCounted: maxCounted,
		})
		if !sure {
			d.AskedCount++
		}
		d.NodesAsked += a.asks
		asked.Observe(float64(a.asks))
	}
	if errors.Is(err, index.ErrUncounted) {
		err = reasonUncounted
	}
	Walked.Observe(float64(choice.Groups))
	return choice, fits, err
}

// maxCounted is the number of nodes about which filters are asked to count the nodes that fit. Upstream's full scan runs on all
// cores, so it is faster with more nodes.
const maxCounted = 256
