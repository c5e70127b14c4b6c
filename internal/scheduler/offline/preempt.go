package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// Preemption is how a pod that fits on no node would get room.
type Preemption struct {
	// Node is the node, and Victims are the pods that would be evicted there. Node is "" if preemption does not help;
	// Reason then says why.
	Node    string
	Victims []*v1.Pod
	Reason  string
	// Candidates is the number of nodes on which evicting pods would help.
	Candidates int
	// Violations is the number of victims whose PodDisruptionBudget would be violated.
	Violations int64
	Deviations []string
}

// candidate is a node with victims, and the values by which upstream compares candidates.
type candidate struct {
	preemption.Candidate
	rank [5]int64
}

// Preempt returns which pods both schedulers would evict for the pod of a decision that fits on no node. It evaluates all
// nodes, and among candidates that upstream considers equal it takes the first by name. It evicts nothing.
func (c *Cluster) Preempt(ctx context.Context, d *Decision) (*Preemption, error) {
	ours, reason, err := c.indexed.candidates(ctx, d, d.Err)
	if err != nil {
		return nil, err
	}
	theirs, _, err := c.stock.candidates(ctx, d, d.Stock.FitError)
	if err != nil {
		return nil, err
	}
	p := &Preemption{Reason: reason, Candidates: len(ours)}
	best := func(all []candidate) string {
		if len(all) == 0 {
			return "none"
		}
		return fmt.Sprintf("%s, evicting %s", all[0].Name(), podNames(all[0].Victims().Pods))
	}
	if len(ours) != len(theirs) || best(ours) != best(theirs) {
		p.Deviations = append(p.Deviations, fmt.Sprintf("preemption: dist-scheduler finds %d candidates, the best is %s; kube-scheduler %d, the best is %s",
			len(ours), best(ours), len(theirs), best(theirs)))
	}
	if len(ours) > 0 {
		victims := ours[0].Victims()
		p.Node, p.Victims, p.Violations, p.Reason = ours[0].Name(), victims.Pods, victims.NumPDBViolations, ""
	}
	return p, nil
}

// podNames returns the sorted names of pods.
func podNames(pods []*v1.Pod) string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = klog.KObj(pod).String()
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// candidates returns the candidates for preemption of one scheduler, the best first, or the reason if there are none.
func (s *side) candidates(ctx context.Context, d *Decision, failure error) ([]candidate, string, error) {
	var unfit *framework.FitError
	if !errors.As(failure, &unfit) {
		return nil, "there are no nodes", nil
	}
	fw := s.framework(d.Pod.Spec.SchedulerName)
	plugin, err := preemptionPlugin(fw)
	if err != nil {
		return nil, "", err
	}
	if plugin == nil {
		return nil, "the profile has no plugin DefaultPreemption", nil
	}
	statuses := unfit.Diagnosis.NodeToStatus
	if eligible, reason := plugin.PodEligibleToPreemptOthers(ctx, d.Pod, statuses.Get(d.Pod.Status.NominatedNodeName)); !eligible {
		return nil, reason, nil
	}
	potential, err := statuses.NodesForStatusCode(s.snapshot(d.Pod.Spec.SchedulerName).NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return nil, "", err
	}
	if len(potential) == 0 {
		return nil, "evicting pods resolves the reasons of no node", nil
	}
	budgets, err := plugin.Evaluator.PdbLister.List(labels.Everything())
	if err != nil {
		return nil, "", err
	}
	found, _, err := plugin.Evaluator.DryRunPreemption(ctx, d.states[s], d.Pod, potential, budgets, 0, int32(len(potential)))
	if err != nil && len(found) == 0 {
		return nil, "", err
	}
	all := make([]candidate, len(found))
	for i := range found {
		all[i] = candidate{found[i], reference.CandidateRank(found[i])}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(slices.Compare(a.rank[:], b.rank[:]), strings.Compare(a.Name(), b.Name()))
	})
	return all, "no pods of lower priority make enough room on any node", nil
}

// preemptionPlugin returns upstream's preemption plugin of a profile; nil if the profile does not have it.
func preemptionPlugin(fw framework.Framework) (*defaultpreemption.DefaultPreemption, error) {
	var list *[]fwk.PostFilterPlugin
	var err error
	unexported.Field(reflect.ValueOf(fw).Elem(), "postFilterPlugins", &list, &err)
	if err != nil {
		return nil, err
	}
	for _, plugin := range *list {
		if found, ok := plugin.(*defaultpreemption.DefaultPreemption); ok {
			return found, nil
		}
	}
	return nil, nil
}
