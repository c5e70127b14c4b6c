// Package rank finds the best nodes for a pod. [Ranker] groups pods into classes, asks plugins once
// for each class and node state, and lets the index choose. Where the index cannot rank, it falls
// back to upstream's full scan. With replicas it also answers queries of the leader about the nodes
// here.
package rank

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// WatchNamespaces makes all classes outdated when the labels of a namespace change, because
// affinity terms may select namespaces by labels.
func (r *Ranker) WatchNamespaces(informer toolscache.SharedIndexInformer) error {
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { r.Outdated.Store(true) },
		UpdateFunc: func(before, after any) {
			if !maps.Equal(before.(*v1.Namespace).Labels, after.(*v1.Namespace).Labels) {
				r.Outdated.Store(true)
			}
		},
		DeleteFunc: func(any) { r.Outdated.Store(true) },
	})
	return err
}

// Ranker finds nodes for pods by the index, and falls back to upstream's full scan where the index
// cannot rank.
type Ranker struct {
	Cluster     *cache.Cluster
	Profiles    map[string]*Profile
	extenders   []fwk.Extender
	Nominations *Nominations
	// fullScan is upstream's search.
	fullScan SearchFunc
	// FallbackCount is the number of pods that were left to the full scan, and LastFallback is the
	// latest reason.
	FallbackCount int
	LastFallback  FallbackReason
	// NominatedNodeCost is the cost of asking plugins about a node with nominated pods, relative to
	// a node of the full scan.
	NominatedNodeCost int
	// nominatedNodesBuffer is reused by [Ranker.nominatedNodes].
	nominatedNodesBuffer []nominatedNode
	// Outdated is set when something that classes were made from has changed.
	Outdated *atomic.Bool
}

// nominatedNodeCost is the default of [Ranker.NominatedNodeCost]. Upstream runs plugins on all
// cores, also for nodes with nominated pods. During a thousand preemptions on as many nodes its
// full scan is cheaper.
const nominatedNodeCost = 16

// New makes a ranker without profiles. Scan is upstream's search.
func New(nodes *cache.Cluster, nominated *Nominations, extenders []fwk.Extender, scan SearchFunc) *Ranker {
	return &Ranker{
		Cluster: nodes, Profiles: map[string]*Profile{}, extenders: extenders, fullScan: scan, Nominations: nominated,
		NominatedNodeCost: nominatedNodeCost, Outdated: &atomic.Bool{},
	}
}

// SearchFunc finds the node for a pod.
type SearchFunc func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// AddProfile lets the ranker find nodes for the pods of a profile.
func (r *Ranker) AddProfile(fw framework.Framework, cfg config.KubeSchedulerProfile) error {
	p, err := newProfile(fw, cfg)
	if err != nil {
		return err
	}
	r.Profiles[cfg.SchedulerName] = p
	return nil
}

// WithoutNodes returns a ranker with the same profiles and a cluster without nodes. A leader
// interprets the answers of other replicas with it.
func (r *Ranker) WithoutNodes() *Ranker {
	other := *r
	other.Cluster, other.Outdated = r.Cluster.WithoutNodes(), &atomic.Bool{}
	return &other
}

// SchedulePod finds the node for a pod.
func (r *Ranker) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result kubescheduler.ScheduleResult, err error) {
	defer r.Rescue(ctx, pod.Pod, &err)
	start := time.Now()
	defer r.reportSizes()
	result, err = r.rank(ctx, fw, state, pod)
	var reason FallbackReason
	if !errors.As(err, &reason) {
		observe(rankedByIndex, start)
		return result, err
	}
	Fallbacks.WithLabelValues(string(reason)).Inc()
	r.FallbackCount++
	r.LastFallback = reason
	result, err = r.fullScan(ctx, fw, state, pod)
	observe(rankedBySearch, start)
	return result, err
}

// Rescue recovers from a panic and makes it an error of the pod.
func (r *Ranker) Rescue(ctx context.Context, pod *v1.Pod, err *error) {
	if cause := recover(); cause != nil {
		klog.FromContext(ctx).Error(nil, "Panic while scheduling a pod", "pod", klog.KObj(pod), "cause", cause, "stack", string(debug.Stack()))
		*err = fmt.Errorf("panic while scheduling: %v", cause)
		// The panic may have left a class incomplete.
		r.Outdated.Store(true)
	}
}

// rank finds the node by the index, or returns a [FallbackReason].
func (r *Ranker) rank(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	profile := r.Profiles[fw.ProfileName()]
	if reason := r.Unrankable(profile, pod.Pod); reason != "" {
		return none, reason
	}
	found, class, err := r.Class(ctx, profile, pod.PodInfo, nil)
	if err != nil {
		return none, err
	}
	if class.hostTerms && r.Cluster.SharedHosts > 0 {
		return none, reasonSharedHostname
	}
	r.Cluster.NoteRanked(pod.Pod.UID, class.pod)
	if own := r.Cluster.Lookup(pod.Pod.Status.NominatedNodeName); own != nil {
		if class.dependsOnPods() {
			return none, reasonNominated
		}
		if class.fitsWithNominated(ctx, pod.Pod, own).IsSuccess() {
			class.WriteState(state)
			return kubescheduler.ScheduleResult{SuggestedHost: own.Info.Node().Name, EvaluatedNodes: 1, FeasibleNodes: 1}, nil
		}
	}
	places := r.nominatedNodes(pod.Pod)
	if !class.simple && len(places)*r.NominatedNodeCost > r.Cluster.Index.Len() {
		return none, reasonNominated
	}
	nominated := slices.DeleteFunc(slices.Clone(places), func(p nominatedNode) bool { return !found.Fits(p.ID) })
	if class.dependsOnPods() && len(nominated) > 0 {
		return none, reasonNominated
	}
	around, err := class.barredByNominated(ctx, pod.Pod, nominated)
	if err != nil {
		return none, err
	}
	started := time.Now()
	choice, fits := found.Choose(around, profile.sample(r.Cluster.Index.Len()))
	cache.ObserveStep(cache.StepChoose, started)
	Walked.Observe(float64(choice.Groups))
	if !fits && !class.explainsUnfit() {
		return none, reasonUnschedulable
	}
	class.WriteState(state)
	if !fits {
		refused, err := class.refusedByNominated(ctx, pod.Pod, places)
		if err != nil {
			return none, err
		}
		return none, class.fitError(found, pod.Pod, refused)
	}
	return kubescheduler.ScheduleResult{
		SuggestedHost:  r.Cluster.ByID[choice.Node].Info.Node().Name,
		EvaluatedNodes: r.Cluster.Index.Len(),
		FeasibleNodes:  choice.Fitting,
	}, nil
}

// Unrankable returns the reason why the index cannot rank nodes for a pod, as far as the pod and
// its profile show; "" otherwise.
func (r *Ranker) Unrankable(p *Profile, pod *v1.Pod) FallbackReason {
	switch {
	case p == nil || p.unknown != "":
		return reasonPlugin
	case r.interested(pod):
		return reasonExtender
	case len(pod.Spec.ResourceClaims) > 0:
		return ReasonClaims
	case hasVolumes(&pod.Spec):
		return ReasonVolumes
	case NamesNodes(&pod.Spec):
		return ReasonNamedNodes
	}
	return ""
}

// interested returns whether an extender has a say in where a pod goes.
func (r *Ranker) interested(pod *v1.Pod) bool {
	for _, extender := range r.extenders {
		if extender.IsInterested(pod) {
			return true
		}
	}
	return false
}

// hasVolumes returns whether a pod has volumes that not every node can mount.
func hasVolumes(spec *v1.PodSpec) bool {
	for i := range spec.Volumes {
		source := &spec.Volumes[i].VolumeSource
		switch {
		case source.ConfigMap != nil, source.Secret != nil, source.EmptyDir != nil, source.Projected != nil,
			source.DownwardAPI != nil, source.HostPath != nil, source.Image != nil:
		default:
			return true
		}
	}
	return false
}

// Class returns the class of a pod, up to date. It makes the class if there is none.
func (r *Ranker) Class(ctx context.Context, p *Profile, pod *framework.PodInfo, agreed *Agreement) (*index.Class, *Class, error) {
	defer cache.ObserveStep(cache.StepClass, time.Now())
	if r.Outdated.Swap(false) {
		r.Cluster.Index.Reset()
	}
	scratch, err := ClassKey(r.Cluster, p, pod)
	if err != nil {
		return nil, nil, err
	}
	if agreed != nil {
		scratch = agreed.appendKey(scratch)
	}
	lookup := "hit"
	found, err := r.Cluster.Index.Class(string(scratch), func() (index.Spec, error) {
		lookup = "miss"
		made, err := NewClass(ctx, r.Cluster, p, pod, agreed)
		if err != nil {
			return index.Spec{}, err
		}
		return made.Spec, nil
	})
	lookups.WithLabelValues(lookup).Inc()
	if err != nil {
		return nil, nil, err
	}
	return found, found.Spec().Judge.(*Class), nil
}

// reportSizes sets the metrics of the index size.
func (r *Ranker) reportSizes() {
	x := r.Cluster.Index
	sizes.WithLabelValues("nodes").Set(float64(x.Len()))
	sizes.WithLabelValues("states").Set(float64(x.States()))
	sizes.WithLabelValues("classes").Set(float64(x.Classes()))
}
