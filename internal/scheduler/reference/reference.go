// Package reference computes correct scheduling decisions for tests. It runs the filters of kube-scheduler's own
// plugins on every node, and their scores on every node that fits.
//
// It is slow and simple on purpose. It makes a new snapshot for each decision. It shares no code with the
// index, because tests compare the decisions of the index with those of this package.
package reference

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// Reference computes decisions with the plugins of one profile. It is not safe for concurrent use.
type Reference struct {
	framework framework.Framework
	// snapshot is the snapshot that the plugins read.
	snapshot  *view
	nominated nominator
}

// nominator has the pods that are nominated to nodes, by node name. Only [Reference.Nominate] changes them.
type nominator struct {
	pods map[string][]fwk.PodInfo
}

// AddNominatedPod does nothing.
func (nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}

// DeleteNominatedPodIfExists does nothing.
func (nominator) DeleteNominatedPodIfExists(*v1.Pod) {}

// UpdateNominatedPod does nothing.
func (nominator) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo) {}

// NominatedPodsForNode returns the pods that are nominated to a node.
func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo { return n.pods[node] }

// view is the snapshot that plugins read. Plugins keep a pointer to it, so its content is
// replaced for each decision.
type view struct{ *cache.Snapshot }

// Decision is the set of correct results for a pod.
type Decision struct {
	// Best are the names of the nodes with the highest score. Each of them is a correct choice. Best
	// is empty if no node fits.
	Best sets.Set[string]
	// Feasible is the number of nodes that fit.
	Feasible int
	// Scores are the total scores of the nodes that fit; nil if at most one fits.
	Scores map[string]int64
	// PluginScores are the scores of which Scores has the sums.
	PluginScores []fwk.NodePluginScores
	// FitError has the reasons if no node fits; otherwise nil.
	FitError *framework.FitError
}

// Check returns what is wrong with a result of SchedulePod; "" if nothing is. It does not compare the reasons for which a
// pod fits on no node. counted is true if the result must have the number of all feasible nodes; otherwise it may have fewer.
func (d Decision) Check(result kubescheduler.ScheduleResult, err error, counted bool) string {
	switch {
	case err != nil && d.Feasible > 0:
		return fmt.Sprintf("SchedulePod() = error %v, want one of the nodes %v", err, d.Best)
	case err != nil:
		return ""
	case d.Feasible == 0:
		return fmt.Sprintf("SchedulePod() = %s, want error %v", result.SuggestedHost, d.FitError)
	case !d.Best.Has(result.SuggestedHost):
		return fmt.Sprintf("SchedulePod() = %s, want one of the nodes %v", result.SuggestedHost, d.Best)
	case counted && result.FeasibleNodes != d.Feasible, result.FeasibleNodes < 1, result.FeasibleNodes > d.Feasible:
		return fmt.Sprintf("SchedulePod() found %d feasible nodes, want %d", result.FeasibleNodes, d.Feasible)
	}
	return ""
}

// New returns a reference for a profile. The informers of the factory need not run, but the
// objects that plugins read (namespaces, ReplicaSets, Services) must be in their indexers.
func New(ctx context.Context, profile config.KubeSchedulerProfile, factory informers.SharedInformerFactory) (*Reference, error) {
	metrics.Register()
	devices, err := deviceManager(ctx, factory)
	if err != nil {
		return nil, err
	}
	snapshot := &view{cache.NewEmptySnapshot()}
	nominated := nominator{pods: map[string][]fwk.PodInfo{}}
	fw, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		runtime.WithInformerFactory(factory),
		runtime.WithSnapshotSharedLister(snapshot),
		runtime.WithMutableSnapshotLister(snapshot),
		runtime.WithPodNominator(nominated),
		runtime.WithSharedDRAManager(devices),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		runtime.WithEventRecorder(&events.FakeRecorder{}),
	)
	if err != nil {
		return nil, fmt.Errorf("setting up the reference: %w", err)
	}
	return &Reference{framework: fw, snapshot: snapshot, nominated: nominated}, nil
}

// Framework returns the framework whose plugins the reference runs.
func (r *Reference) Framework() framework.Framework { return r.framework }

// deviceManager returns the DRA manager, which the plugin DynamicResources requires even if no
// pod claims a device.
func deviceManager(ctx context.Context, factory informers.SharedInformerFactory) (fwk.SharedDRAManager, error) {
	published, err := tracker.StartTracker(ctx, tracker.Options{SliceInformer: factory.Resource().V1().ResourceSlices()})
	if err != nil {
		return nil, fmt.Errorf("setting up the reference: %w", err)
	}
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx),
		factory.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	manager := dynamicresources.NewDRAManager(ctx, claims, published, factory)
	if classes, ok := manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache); ok {
		// As in kube-scheduler, this cache learns from the informer which classes back extended resources.
		if _, err := factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(classes); err != nil {
			return nil, fmt.Errorf("setting up the reference: %w", err)
		}
	}
	return manager, nil
}

// Nominate replaces the set of nominated pods. Each pod is nominated to the node in its status.
func (r *Reference) Nominate(pods []*v1.Pod) error {
	clear(r.nominated.pods)
	for _, pod := range pods {
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return err
		}
		node := pod.Status.NominatedNodeName
		r.nominated.pods[node] = append(r.nominated.pods[node], info)
	}
	return nil
}

// Decide returns the correct results for a pod, given the nodes and the running pods. As in kube-scheduler, pods
// whose node does not exist are ignored.
func (r *Reference) Decide(ctx context.Context, pods []*v1.Pod, nodes []*v1.Node, pod *v1.Pod) (Decision, error) {
	snapshot := cache.NewSnapshot(onNodes(pods, nodes), nodes)
	r.snapshot.Snapshot = snapshot
	all, err := snapshot.List()
	if err != nil {
		return Decision{}, err
	}
	state := framework.NewCycleState()
	feasible, refused, err := r.filter(ctx, state, pod, all)
	switch {
	case err != nil:
		return Decision{}, fmt.Errorf("filtering nodes for pod %s: %w", pod.Name, err)
	case len(feasible) == 0:
		return Decision{FitError: refused}, nil
	case len(feasible) == 1:
		return Decision{Best: sets.New(feasible[0].Node().Name), Feasible: 1}, nil
	}
	scores, err := Score(ctx, r.framework, state, pod, feasible)
	if err != nil {
		return Decision{}, fmt.Errorf("scoring nodes for pod %s: %w", pod.Name, err)
	}
	totals := make(map[string]int64, len(scores))
	for _, score := range scores {
		totals[score.Name] = score.TotalScore
	}
	return Decision{Best: best(totals), Feasible: len(feasible), Scores: totals, PluginScores: scores}, nil
}

// onNodes returns the pods whose node is in nodes.
func onNodes(pods []*v1.Pod, nodes []*v1.Node) []*v1.Pod {
	names := sets.New[string]()
	for _, node := range nodes {
		names.Insert(node.Name)
	}
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return !names.Has(pod.Spec.NodeName) })
}

// filter returns the nodes that fit, and the reasons for which the others do not.
func (r *Reference) filter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, all []fwk.NodeInfo,
) ([]fwk.NodeInfo, *framework.FitError, error) {
	return Filter(ctx, r.framework, state, pod, all)
}

// Filter runs the filter plugins of a framework on all nodes. It returns the nodes that fit, and the reasons for which the
// others do not. The nodes must be those of the snapshot of the framework.
func Filter(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod, all []fwk.NodeInfo,
) ([]fwk.NodeInfo, *framework.FitError, error) {
	refused := &framework.FitError{
		Pod: pod, NumAllNodes: len(all), Diagnosis: framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()},
	}
	if pod.Status.NominatedNodeName != "" {
		// kube-scheduler checks the nominated node first, and no other node if the pod fits.
		own := slices.IndexFunc(all, func(n fwk.NodeInfo) bool { return n.Node().Name == pod.Status.NominatedNodeName })
		if own >= 0 && admits(ctx, fw, state.Clone(), pod, all[own]) {
			// Reserve plugins need what the other plugins have written.
			admits(ctx, fw, state, pod, all[own])
			return all[own : own+1], nil, nil
		}
	}
	only, status, unschedulable := fw.RunPreFilterPlugins(ctx, state, pod)
	refused.Diagnosis.UnschedulablePlugins = unschedulable
	if status.IsRejected() {
		refused.Diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
		refused.Diagnosis.PreFilterMsg = status.Message()
		refused.Diagnosis.AddPluginStatus(status)
		return nil, refused, nil
	}
	if !status.IsSuccess() {
		return nil, nil, status.AsError()
	}
	if !only.AllNodes() {
		refused.Diagnosis.NodeToStatus.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(unschedulable))))
	}
	feasible, err := filterEach(ctx, fw, state, pod, all, only, refused)
	return feasible, refused, err
}

// filterEach runs the filter plugins on each node, except those that the result of PreFilter excludes. It returns the nodes
// that fit, and adds the statuses of the others to refused.
func filterEach(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod, all []fwk.NodeInfo, only *fwk.PreFilterResult, refused *framework.FitError,
) (feasible []fwk.NodeInfo, failed error) {
	var mu sync.Mutex
	fw.Parallelizer().Until(ctx, len(all), func(i int) {
		name := all[i].Node().Name
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			return
		}
		status := fw.RunFilterPluginsWithNominatedPods(ctx, state, pod, all[i])
		mu.Lock()
		defer mu.Unlock()
		switch {
		case status.IsSuccess():
			feasible = append(feasible, all[i])
		case status.IsRejected():
			refused.Diagnosis.NodeToStatus.Set(name, status)
			refused.Diagnosis.AddPluginStatus(status)
		default:
			failed = status.AsError()
		}
	}, metrics.Filter)
	if failed == nil {
		failed = ctx.Err()
	}
	return feasible, failed
}

// admits reports whether a pod fits on one node.
func admits(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) bool {
	only, status, _ := fw.RunPreFilterPlugins(ctx, state, pod)
	return status.IsSuccess() && (only.AllNodes() || only.NodeNames.Has(node.Node().Name)) &&
		fw.RunFilterPluginsWithNominatedPods(ctx, state, pod, node).IsSuccess()
}

// Score runs the score plugins of a framework on the nodes that fit. state is that of [Filter].
func Score(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) ([]fwk.NodePluginScores, error) {
	if status := fw.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		return nil, status.AsError()
	}
	scores, status := fw.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return scores, nil
}

// best returns the names of the nodes with the highest score.
func best(scores map[string]int64) sets.Set[string] {
	names, highest := sets.New[string](), int64(math.MinInt64)
	for name, score := range scores {
		if score > highest {
			highest = score
			names.Clear()
		}
		if score == highest {
			names.Insert(name)
		}
	}
	return names
}
