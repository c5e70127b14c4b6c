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

// check compares a sample of the decisions with the reference. The reference decides with the pods that
// were on nodes when the scheduler decided.
func (h *harness) check(ctx context.Context, o Options, w *workload, count int, display progress.Display, result *Result) error {
	if count == 0 {
		return nil
	}
	factory := newInformers(newClient(h.server))
	reference, err := newReference(ctx, h.profile, factory, w)
	if err != nil {
		return err
	}
	chosen := sample(len(h.decided), count, o.Seed)
	task := display.Task("decisions checked", len(chosen))
	present, next := slices.Clone(w.existing), 0
	for _, position := range chosen {
		for ; next < position; next++ {
			if d := h.decided[next]; d.node != "" {
				present = append(present, w.podOnNode(int(d.number), d.node))
				if err := h.server.allocate(factory, podName(int(d.number))); err != nil {
					return err
				}
			}
		}
		d := h.decided[position]
		expected, err := reference.Decide(ctx, present, w.nodes, w.pod(int(d.number)))
		if err != nil {
			progress.Fail(ctx, task, fmt.Sprintf("%d checked", result.DecisionsChecked))
			return fmt.Errorf("checking decision %d: %w", position, err)
		}
		result.addCheck(position, d, expected)
		task.Set(result.DecisionsChecked)
	}
	task.Done(fmt.Sprintf("%d, %d deviate", result.DecisionsChecked, result.Deviations))
	return nil
}

// newReference returns a reference with its own informers.
func newReference(ctx context.Context, profile config.KubeSchedulerProfile, factory informers.SharedInformerFactory, w *workload) (*reference.Reference, error) {
	r, err := reference.New(ctx, profile, factory)
	if err != nil {
		return nil, err
	}
	return r, fillListers(factory, w)
}

// addCheck counts a checked decision, and a deviation if the decision is not among the best decisions of
// the reference.
func (r *Result) addCheck(position int, d decision, expected reference.Decision) {
	r.DecisionsChecked++
	if expected.Best.Has(d.node) || (d.node == "" && expected.Feasible == 0) {
		return
	}
	r.Deviations++
	if r.FirstDeviation != "" {
		return
	}
	r.FirstDeviation = fmt.Sprintf("decision %d put %s on %s, which is not among the %d best of %d nodes that fit",
		position, podName(int(d.number)), d.node, expected.Best.Len(), expected.Feasible)
	if d.node == "" {
		r.FirstDeviation = fmt.Sprintf("decision %d found no node for %s, but %d nodes fit", position, podName(int(d.number)), expected.Feasible)
	}
}

// sample returns count random numbers below total, in ascending order.
func sample(total, count int, seed int64) []int {
	chosen := rand.New(rand.NewPCG(uint64(seed), 0)).Perm(total)[:min(count, total)]
	slices.Sort(chosen)
	return chosen
}

// podOnNode returns the pod with this number, bound to a node.
func (w *workload) podOnNode(number int, node string) *v1.Pod {
	pod := w.pod(number)
	pod.Spec.NodeName = node
	return pod
}

// countOvercommitted returns the number of nodes whose pods request more than the node has.
func countOvercommitted(w *workload, decided []decision) (count int) {
	type load struct{ milliCPU, memory, pods, volumes, devices int64 }
	loads := make(map[string]*load, len(w.nodes))
	for _, node := range w.nodes {
		loads[node.Name] = &load{}
	}
	add := func(pod *v1.Pod) {
		if l := loads[pod.Spec.NodeName]; l != nil {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
			l.milliCPU += requests.Cpu().MilliValue()
			l.memory += requests.Memory().Value()
			l.pods++
			l.volumes += int64(len(pod.Spec.Volumes))
			l.devices += int64(len(pod.Spec.ResourceClaims))
		}
	}
	for _, pod := range w.existing {
		add(pod)
	}
	for _, d := range decided {
		if d.node != "" {
			add(w.podOnNode(int(d.number), d.node))
		}
	}
	for _, node := range w.nodes {
		requested, allocatable := loads[node.Name], node.Status.Allocatable
		if requested.milliCPU > allocatable.Cpu().MilliValue() || requested.memory > allocatable.Memory().Value() ||
			requested.pods > allocatable.Pods().Value() || len(w.csiNodes) > 0 && requested.volumes > volumesPerNode || requested.devices > devicesPerNode {
			count++
		}
	}
	return count
}
