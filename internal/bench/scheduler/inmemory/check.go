package inmemory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// check compares a sample of the decisions with the reference. The reference decision is
// computed with the pods that were on nodes at the time of the decision.
func (h *harness) check(ctx context.Context, o Options, w *workload, count int, display progress.Display, result *Result) error {
	if count == 0 {
		return nil
	}
	judge, err := newJudge(ctx, h.profile, w)
	if err != nil {
		return err
	}
	chosen := sample(len(h.decided), count, o.Seed)
	task := display.Task("decisions checked", len(chosen))
	present, next := slices.Clone(w.existing), 0
	for _, position := range chosen {
		for ; next < position; next++ {
			if made := h.decided[next]; made.node != "" {
				present = append(present, w.podOn(int(made.number), made.node))
			}
		}
		made := h.decided[position]
		right, err := judge.Decide(ctx, present, w.nodes, w.pod(int(made.number)))
		if err != nil {
			progress.Fail(ctx, task, fmt.Sprintf("%d checked", result.DecisionsChecked))
			return fmt.Errorf("checking decision %d: %w", position, err)
		}
		result.judge(position, made, right)
		task.Set(result.DecisionsChecked)
	}
	task.Done(fmt.Sprintf("%d, %d deviate", result.DecisionsChecked, result.Deviations))
	return nil
}

// newJudge returns a reference with its own informers.
func newJudge(ctx context.Context, profile config.KubeSchedulerProfile, w *workload) (*reference.Reference, error) {
	factory := informers.NewSharedInformerFactory(newClient(), 0)
	judge, err := reference.New(ctx, profile, factory)
	if err != nil {
		return nil, err
	}
	return judge, fillListers(factory, w)
}

func (r *Result) judge(position int, made decision, right reference.Decision) {
	r.DecisionsChecked++
	if right.Best.Has(made.node) || (made.node == "" && right.Feasible == 0) {
		return
	}
	r.Deviations++
	if r.FirstDeviation != "" {
		return
	}
	r.FirstDeviation = fmt.Sprintf("decision %d put %s on %s, which is not among the %d best of %d nodes that fit",
		position, podName(int(made.number)), made.node, right.Best.Len(), right.Feasible)
	if made.node == "" {
		r.FirstDeviation = fmt.Sprintf("decision %d found no node for %s, but %d fit", position, podName(int(made.number)), right.Feasible)
	}
}

// sample returns count ascending numbers below total.
func sample(total, count int, seed int64) []int {
	chosen := rand.New(rand.NewPCG(uint64(seed), 0)).Perm(total)[:min(count, total)]
	slices.Sort(chosen)
	return chosen
}

func (w *workload) podOn(number int, node string) *v1.Pod {
	pod := w.pod(number)
	pod.Spec.NodeName = node
	return pod
}

// overcommitted returns the number of nodes whose pods request more than the node has.
func overcommitted(w *workload, decided []decision, result *Result) {
	type load struct{ milliCPU, memory, pods int64 }
	loads := make(map[string]*load, len(w.nodes))
	for _, node := range w.nodes {
		loads[node.Name] = &load{}
	}
	put := func(pod *v1.Pod) {
		if on := loads[pod.Spec.NodeName]; on != nil {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
			on.milliCPU += requests.Cpu().MilliValue()
			on.memory += requests.Memory().Value()
			on.pods++
		}
	}
	for _, pod := range w.existing {
		put(pod)
	}
	for _, made := range decided {
		if made.node != "" {
			put(w.podOn(int(made.number), made.node))
		}
	}
	for _, node := range w.nodes {
		has, takes := loads[node.Name], node.Status.Allocatable
		if has.milliCPU > takes.Cpu().MilliValue() || has.memory > takes.Memory().Value() || has.pods > takes.Pods().Value() {
			result.OversubscribedNodes++
		}
	}
}
