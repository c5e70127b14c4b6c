package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// ranker finds nodes for pods by the index, and where it cannot, by upstream's own
// search.
type ranker struct {
	cluster     *cluster
	profiles    map[string]*profile
	extenders   []fwk.Extender
	nominations *nominations
	limits      *limits
	// search is upstream's.
	search func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (upstream.ScheduleResult, error)
	// searches counts the pods that upstream's search was used for.
	searches   int
	lastReason unranked
	// placeCost is how many times as much it takes to ask a node with nominated pods
	// as upstream's search takes for a node.
	placeCost int
	// crowd is room for [ranker.places].
	crowd []place
	// outdated is set when what classes were made from has changed.
	outdated *atomic.Bool
}

// Upstream asks nodes at once on all cores, and copies those with nominated pods as
// well. In the middle of a thousand preemptions on as many nodes its search is cheaper.
const placeCost = 16

// SchedulePod finds the node for a pod.
func (r *ranker) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result upstream.ScheduleResult, err error) {
	defer r.rescue(ctx, pod.Pod, &err)
	start := time.Now()
	defer r.reportSizes()
	result, err = r.rank(ctx, fw, state, pod)
	var reason unranked
	if !errors.As(err, &reason) {
		observe(rankedByIndex, start)
		return result, err
	}
	fallbacks.WithLabelValues(string(reason)).Inc()
	r.searches++
	r.lastReason = reason
	result, err = r.search(ctx, fw, state, pod)
	observe(rankedBySearch, start)
	return result, err
}

// rescue makes an error of a panic: a plugin that panics takes its pod down, and nothing
// else.
func (r *ranker) rescue(ctx context.Context, pod *v1.Pod, err *error) {
	if cause := recover(); cause != nil {
		klog.FromContext(ctx).Error(nil, "Panic while a node was looked for", "pod", klog.KObj(pod), "cause", cause, "stack", string(debug.Stack()))
		*err = fmt.Errorf("looking for a node: %v", cause)
		// It may have left a class half done.
		r.outdated.Store(true)
	}
}

// rank finds the node by the index; an [unranked] error says why it cannot.
func (r *ranker) rank(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (upstream.ScheduleResult, error) {
	none := upstream.ScheduleResult{}
	profile := r.profiles[fw.ProfileName()]
	if reason := r.reject(profile, pod.Pod); reason != "" {
		return none, reason
	}
	found, class, err := r.class(ctx, profile, pod.PodInfo, nil)
	if err != nil {
		return none, err
	}
	if class.hostTerms && r.cluster.shared > 0 {
		return none, reasonSharedHostname
	}
	r.cluster.ranked = ranked{pod.Pod.UID, class.pod}
	if own := r.cluster.present(pod.Pod.Status.NominatedNodeName); own != nil {
		if class.relational() {
			return none, reasonNominated
		}
		if class.admits(ctx, pod.Pod, own).IsSuccess() {
			class.adopt(state)
			return upstream.ScheduleResult{SuggestedHost: own.info.Node().Name, EvaluatedNodes: 1, FeasibleNodes: 1}, nil
		}
	}
	places := r.places(pod.Pod)
	if !class.simple && len(places)*r.placeCost > r.cluster.index.Len() {
		return none, reasonNominated
	}
	nominated := slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !found.Fits(p.slot) })
	if class.relational() && len(nominated) > 0 {
		return none, reasonNominated
	}
	around, err := class.barred(ctx, pod.Pod, nominated)
	if err != nil {
		return none, err
	}
	started := time.Now()
	choice, fits := found.Choose(around, profile.sample(r.cluster.index.Len()))
	timed(stepChoose, started)
	walked.Observe(float64(choice.Groups))
	if !fits && !class.explains() {
		return none, reasonUnschedulable
	}
	class.adopt(state)
	if !fits {
		refused, err := class.refused(ctx, pod.Pod, places)
		if err != nil {
			return none, err
		}
		return none, class.fitError(found, pod.Pod, refused)
	}
	return upstream.ScheduleResult{
		SuggestedHost:  r.cluster.bySlot[choice.Slot].info.Node().Name,
		EvaluatedNodes: r.cluster.index.Len(),
		FeasibleNodes:  choice.Fitting,
	}, nil
}

// reject says why a pod cannot be ranked, as far as that can be told at a glance.
func (r *ranker) reject(p *profile, pod *v1.Pod) unranked {
	switch {
	case p == nil || p.unknown != "":
		return reasonPlugin
	case r.interested(pod):
		return reasonExtender
	case len(pod.Spec.ResourceClaims) > 0:
		return reasonClaims
	case hasVolumes(&pod.Spec):
		return reasonVolumes
	case namesNodes(&pod.Spec):
		return reasonNamedNodes
	}
	return ""
}

func (r *ranker) interested(pod *v1.Pod) bool {
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
func (r *ranker) class(ctx context.Context, p *profile, pod *framework.PodInfo, agreed *agreement) (*index.Class, *class, error) {
	defer timed(stepClass, time.Now())
	if r.outdated.Swap(false) {
		r.cluster.index.Reset()
	}
	scratch, err := r.cluster.classKey(p, pod)
	if err != nil {
		return nil, nil, err
	}
	if agreed != nil {
		scratch = agreed.appendKey(scratch)
	}
	lookup := "hit"
	found, err := r.cluster.index.Class(string(scratch), func() (index.Spec, error) {
		lookup = "miss"
		made, err := newClass(ctx, r.cluster, p, pod, agreed)
		if err != nil {
			return index.Spec{}, err
		}
		return made.spec, nil
	})
	lookups.WithLabelValues(lookup).Inc()
	if err != nil {
		return nil, nil, err
	}
	return found, found.Spec().Judge.(*class), nil
}

// reportSizes says how large the index is.
func (r *ranker) reportSizes() {
	x := r.cluster.index
	sizes.WithLabelValues("nodes").Set(float64(x.Len()))
	sizes.WithLabelValues("states").Set(float64(x.States()))
	sizes.WithLabelValues("classes").Set(float64(x.Classes()))
}
