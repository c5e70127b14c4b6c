package reference

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"
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

// CandidateRank returns the values by which upstream compares candidates for preemption, the most important
// first. The candidate with the smallest values is chosen.
func CandidateRank(c preemption.Candidate) [5]int64 {
	victims := c.Victims()
	rank := [5]int64{victims.NumPDBViolations, int64(corev1helpers.PodPriority(victims.Pods[0])), 0, int64(len(victims.Pods)), math.MaxInt64}
	for _, victim := range victims.Pods {
		rank[2] += int64(corev1helpers.PodPriority(victim)) + math.MaxInt32 + 1
	}
	if earliest := schedutil.GetEarliestPodStartTime(victims); earliest != nil {
		rank[4] = -earliest.UnixNano()
	}
	return rank
}
