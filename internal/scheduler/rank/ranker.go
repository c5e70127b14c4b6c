// Package rank finds the best node for a pod. [Ranker] groups pods into classes, runs plugins once for each
// class and node state, and lets the index choose. For pods that the index cannot rank, it falls back to
// upstream's full scan. With replicas, it also answers queries of the leader for the nodes of its replica.
package rank

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
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

// WatchNamespaces makes all classes outdated when a namespace is added or deleted, or its labels change,
// because affinity terms may select namespaces by labels.
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

// Ranker finds nodes for pods through the index. For pods that the index cannot rank, it falls back to
// upstream's full scan.
type Ranker struct {
	Cluster     *cache.Cluster
	Profiles    map[string]*Profile
	extenders   []fwk.Extender
	Nominations *Nominations
	// fullScan is upstream's search.
	fullScan SearchFunc
	// FallbackCount is the number of pods whose node the full scan found. LastFallback is the reason
	// for the last one.
	FallbackCount int
	LastFallback  FallbackReason
	// AskedCount is the number of pods for which some filters were asked about single nodes, so that it is not known how many
	// nodes fit.
	AskedCount int
	// NodesAsked is the number of nodes about which filters were asked.
	NodesAsked int
	// NominatedNodeCost is the estimated cost of running plugins for a node with nominated pods,
	// relative to their cost for a node of the full scan.
	NominatedNodeCost int
	// nominatedNodesBuffer is reused by [Ranker.nominatedNodes].
	nominatedNodesBuffer []nominatedNode
	// Outdated is true if data from which classes were made has changed.
	Outdated *atomic.Bool
	// Replica is the name of this replica; "" if there are no others.
	Replica    string
	referenced referencedLabels
	// storage is nil before [Ranker.WatchStorage].
	storage *storage
}

// nominatedNodeCost is the default of [Ranker.NominatedNodeCost]. The ranker runs plugins for nodes with
// nominated pods on one core, and upstream's full scan runs them on all cores. If many nodes have
// nominated pods, for example after a thousand preemptions, the full scan is cheaper.
const nominatedNodeCost = 16

// New returns a ranker without profiles. scan is upstream's full scan.
func New(nodes *cache.Cluster, nominated *Nominations, extenders []fwk.Extender, scan SearchFunc) *Ranker {
	return &Ranker{
		Cluster: nodes, Profiles: map[string]*Profile{}, extenders: extenders, fullScan: scan, Nominations: nominated,
		NominatedNodeCost: nominatedNodeCost, Outdated: &atomic.Bool{},
	}
}

// SearchFunc finds the node for a pod.
type SearchFunc func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// AddProfile adds a scheduler profile to the ranker.
func (r *Ranker) AddProfile(fw framework.Framework, cfg config.KubeSchedulerProfile) error {
	p, err := newProfile(fw, cfg)
	if err != nil {
		return err
	}
	r.Profiles[cfg.SchedulerName] = p
	return nil
}

// WithoutNodes returns a ranker with the same profiles and a cluster without nodes. The leader uses it to
// interpret the answers of replicas.
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

// Rescue recovers from a panic while a pod is scheduled, and sets err instead. It must be deferred.
func (r *Ranker) Rescue(ctx context.Context, pod *v1.Pod, err *error) {
	if cause := recover(); cause != nil {
		klog.FromContext(ctx).Error(nil, "Panic while scheduling a pod", "pod", klog.KObj(pod), "cause", cause, "stack", string(debug.Stack()))
		*err = fmt.Errorf("panic while scheduling: %v", cause)
		// The panic may have left a class incomplete.
		r.Outdated.Store(true)
	}
}

// rank finds the node for a pod through the index. It returns a [FallbackReason] as the error if the index
// cannot rank the pod.
func (r *Ranker) rank(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (kubescheduler.ScheduleResult, error) {
	profile := r.Profiles[fw.ProfileName()]
	switch reason := r.Unrankable(profile, pod.Pod); reason {
	case "":
		d := decision{Ranker: r, profile: profile, state: state, pod: pod.PodInfo}
		return d.byClass(ctx, nil)
	case ReasonVolumes, ReasonClaims, ReasonNamedNodes, reasonPlugin:
		return r.rankAsking(ctx, profile, state, pod.PodInfo, reason)
	default:
		return kubescheduler.ScheduleResult{}, reason
	}
}

// Unrankable returns the reason for which the index cannot rank nodes for a pod; "" if there is none. It
// checks only the pod and its profile.
func (r *Ranker) Unrankable(p *Profile, pod *v1.Pod) FallbackReason {
	switch {
	case p == nil || p.unknown != "":
		return reasonPlugin
	case r.extenderInterested(pod):
		return reasonExtender
	case len(pod.Spec.ResourceClaims) > 0, p.requestsDevices(&pod.Spec):
		return ReasonClaims
	case hasVolumes(&pod.Spec):
		return ReasonVolumes
	case NamesNodes(&pod.Spec), p.addedAffinity.namesNodes:
		return ReasonNamedNodes
	}
	return ""
}

// extenderInterested returns whether a scheduler extender handles a pod.
func (r *Ranker) extenderInterested(pod *v1.Pod) bool {
	for _, extender := range r.extenders {
		if extender.IsInterested(pod) {
			return true
		}
	}
	return false
}

// hasVolumes returns whether a pod has volumes that may restrict the nodes on which it can run.
func hasVolumes(spec *v1.PodSpec) bool {
	for i := range spec.Volumes {
		if restricts(&spec.Volumes[i].VolumeSource) {
			return true
		}
	}
	return false
}

// restricts returns whether a volume may restrict the nodes on which its pod can run.
func restricts(volume *v1.VolumeSource) bool {
	source := *volume
	// No plugin reads these, except that the class key contains images.
	source.ConfigMap, source.Secret, source.EmptyDir, source.Projected = nil, nil, nil, nil
	source.DownwardAPI, source.HostPath, source.Image = nil, nil, nil
	return source != (v1.VolumeSource{})
}

// Class returns the class of a pod with all changes applied. It makes the class if there is none.
func (r *Ranker) Class(ctx context.Context, p *Profile, pod *framework.PodInfo, agreed *Agreement) (*index.Class, *Class, error) {
	return r.classWith(ctx, p, pod, agreed, &conditions{})
}

// classWith is [Ranker.Class] for a pod whose volumes restrict it.
func (r *Ranker) classWith(ctx context.Context, p *Profile, pod *framework.PodInfo, agreed *Agreement, volumes *conditions) (*index.Class, *Class, error) {
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
	scratch = volumes.appendKey(scratch)
	lookup := "hit"
	indexClass, err := r.Cluster.Index.Class(string(scratch), func() (index.Spec, error) {
		lookup = "miss"
		made, err := newClass(ctx, r.Cluster, p, pod, agreed, *volumes)
		if err != nil {
			return index.Spec{}, err
		}
		return made.Spec, nil
	})
	lookups.WithLabelValues(lookup).Inc()
	if err != nil {
		return nil, nil, err
	}
	return indexClass, indexClass.Spec().Judge.(*Class), nil
}

// reportSizes sets the metrics of the index size.
func (r *Ranker) reportSizes() {
	x := r.Cluster.Index
	sizes.WithLabelValues("nodes").Set(float64(x.Len()))
	sizes.WithLabelValues("states").Set(float64(x.States()))
	sizes.WithLabelValues("classes").Set(float64(x.Classes()))
}
