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

// watchNamespaces makes classes anew when the labels of a namespace change, which
// terms may select by.
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

// ranker finds nodes for pods by the index, and where it cannot, by upstream's own
// search.
type Ranker struct {
	Cluster     *cache.Cluster
	Profiles    map[string]*Profile
	extenders   []fwk.Extender
	Nominations *Nominations
	// search is upstream's.
	fullScan SearchFunc
	// searches counts the pods that upstream's search was used for.
	FallbackCount int
	LastFallback  FallbackReason
	// placeCost is how many times as much it takes to ask a node with nominated pods
	// as upstream's search takes for a node.
	NominatedNodeCost int
	// crowd is room for [ranker.places].
	nominatedNodesBuffer []nominatedNode
	// outdated is set when what classes were made from has changed.
	Outdated *atomic.Bool
}

// Upstream asks nodes at once on all cores, and copies those with nominated pods as
// well. In the middle of a thousand preemptions on as many nodes its search is cheaper.
const nominatedNodeCost = 16

// newRanker makes a ranker without profiles. Search is upstream's own search.
func New(nodes *cache.Cluster, nominated *Nominations, extenders []fwk.Extender, search SearchFunc) *Ranker {
	return &Ranker{
		Cluster: nodes, Profiles: map[string]*Profile{}, extenders: extenders, fullScan: search, Nominations: nominated,
		NominatedNodeCost: nominatedNodeCost, Outdated: &atomic.Bool{},
	}
}

// searchFunc finds the node for a pod.
type SearchFunc func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// addProfile lets the ranker find nodes for the pods of a profile.
func (r *Ranker) AddProfile(fw framework.Framework, cfg config.KubeSchedulerProfile) error {
	p, err := newProfile(fw, cfg)
	if err != nil {
		return err
	}
	r.Profiles[cfg.SchedulerName] = p
	return nil
}

// withoutNodes returns a ranker with the same profiles, over a cluster that has no nodes of
// its own: it interprets what other replicas answer.
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

// rescue makes an error of a panic: a plugin that panics takes its pod down, and nothing
// else.
func (r *Ranker) Rescue(ctx context.Context, pod *v1.Pod, err *error) {
	if cause := recover(); cause != nil {
		klog.FromContext(ctx).Error(nil, "Panic while a node was looked for", "pod", klog.KObj(pod), "cause", cause, "stack", string(debug.Stack()))
		*err = fmt.Errorf("looking for a node: %v", cause)
		// It may have left a class half done.
		r.Outdated.Store(true)
	}
}

// rank finds the node by the index; an [unranked] error says why it cannot.
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
		SuggestedHost:  r.Cluster.ByID[choice.Slot].Info.Node().Name,
		EvaluatedNodes: r.Cluster.Index.Len(),
		FeasibleNodes:  choice.Fitting,
	}, nil
}

// reject says why a pod cannot be ranked, as far as that can be told at a glance.
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

func (r *Ranker) interested(pod *v1.Pod) bool {
	for _, extender := range r.extenders {
		if extender.IsInterested(pod) {
			return true
		}
	}
	return false
}

// hasVolumes says whether a pod has volumes that not every node can mount.
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

// class returns the class of a pod, made if it is not there, and up to date.
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

// reportSizes says how large the index is.
func (r *Ranker) reportSizes() {
	x := r.Cluster.Index
	sizes.WithLabelValues("nodes").Set(float64(x.Len()))
	sizes.WithLabelValues("states").Set(float64(x.States()))
	sizes.WithLabelValues("classes").Set(float64(x.Classes()))
}
