package reference

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// Preempt returns all candidates that kube-scheduler's DefaultPreemption plugin finds for a pod that fits on
// no node. It returns none if the pod fits on a node or must not preempt.
func (r *Reference) Preempt(
	ctx context.Context, args *config.DefaultPreemptionArgs, pods []*v1.Pod, nodes []*v1.Node, pod *v1.Pod,
) ([]preemption.Candidate, error) {
	snapshot := cache.NewSnapshot(onNodes(pods, nodes), nodes)
	r.snapshot.Snapshot = snapshot
	all, err := snapshot.List()
	if err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	_, refused, err := r.filter(ctx, state, pod, all)
	if err != nil || refused == nil {
		return nil, err
	}
	plugin, err := defaultpreemption.New(ctx, args, r.framework, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, fmt.Errorf("setting up preemption: %w", err)
	}
	statuses := refused.Diagnosis.NodeToStatus
	if eligible, _ := plugin.PodEligibleToPreemptOthers(ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); !eligible {
		return nil, nil
	}
	potential, err := statuses.NodesForStatusCode(snapshot.NodeInfos(), fwk.Unschedulable)
	if err != nil || len(potential) == 0 {
		return nil, err
	}
	budgets, err := plugin.Evaluator.PdbLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	candidates, _, err := plugin.Evaluator.DryRunPreemption(ctx, state, pod, potential, budgets, 0, int32(len(potential)))
	return candidates, err
}
