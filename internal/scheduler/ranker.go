package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/index"
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
	// outdated is set when what classes were made from has changed.
	outdated atomic.Bool
}

// SchedulePod finds the node for a pod.
func (r *ranker) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result upstream.ScheduleResult, err error) {
	defer func() {
		// A plugin that panics takes its pod down, and nothing else.
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(nil, "Panic while a node was looked for", "pod", klog.KObj(pod.Pod), "cause", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("looking for a node: %v", cause)
			// It may have left a class half done.
			r.outdated.Store(true)
		}
	}()
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

// rank finds the node by the index; an [unranked] error says why it cannot.
func (r *ranker) rank(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (upstream.ScheduleResult, error) {
	none := upstream.ScheduleResult{}
	profile := r.profiles[fw.ProfileName()]
	if reason := r.reject(profile, pod.Pod); reason != "" {
		return none, reason
	}
	found, class, err := r.class(ctx, profile, pod)
	if err != nil {
		return none, err
	}
	if class.hostTerms && r.cluster.shared > 0 {
		return none, reasonSharedHostname
	}
	r.cluster.ranked = ranked{pod.Pod.UID, class.pod}
	own := r.cluster.present(pod.Pod.Status.NominatedNodeName)
	nominated := r.nominated(pod.Pod, func(n *node) bool { return found.Fits(n.slot) })
	if class.relational() && (own != nil || len(nominated) > 0) {
		return none, reasonNominated
	}
	if own != nil && class.admits(ctx, pod.Pod, own).IsSuccess() {
		class.adopt(state)
		return upstream.ScheduleResult{SuggestedHost: own.info.Node().Name, EvaluatedNodes: 1, FeasibleNodes: 1}, nil
	}
	barred, err := class.barred(ctx, pod.Pod, nominated)
	if err != nil {
		return none, err
	}
	started := time.Now()
	choice, fits := found.Choose(barred, profile.sample(r.cluster.index.Len()))
	timed(stepChoose, started)
	walked.Observe(float64(choice.Groups))
	if !fits && !class.explains() {
		return none, reasonUnschedulable
	}
	class.adopt(state)
	if !fits {
		return none, r.fitError(ctx, found, class, pod.Pod)
	}
	return upstream.ScheduleResult{
		SuggestedHost:  r.cluster.bySlot[choice.Slot].info.Node().Name,
		EvaluatedNodes: r.cluster.index.Len(),
		FeasibleNodes:  choice.Fitting,
	}, nil
}

// nominated are those nodes with pods nominated to them that a pod has to leave room
// for. Only nodes are asked for such pods that ask says it of.
func (r *ranker) nominated(pod *v1.Pod, ask func(*node) bool) []*node {
	var nominated []*node
	for _, name := range r.nominations.places() {
		switch n := r.cluster.present(name); {
		case n == nil:
			r.nominations.forget(name)
		case ask(n) && r.nominations.ahead(name, pod):
			nominated = append(nominated, n)
		}
	}
	return nominated
}

func every(*node) bool { return true }

// fitError says why a pod fits nowhere.
func (r *ranker) fitError(ctx context.Context, found *index.Class, class *class, pod *v1.Pod) error {
	asked := map[index.Slot]*fwk.Status{}
	for _, n := range r.nominated(pod, every) {
		asked[n.slot] = class.admits(ctx, pod, n)
	}
	return class.fitError(found, pod, asked)
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
func (r *ranker) class(ctx context.Context, p *profile, pod *framework.QueuedPodInfo) (*index.Class, *class, error) {
	defer timed(stepClass, time.Now())
	if r.outdated.Swap(false) {
		r.cluster.index.Reset()
	}
	scratch, err := r.cluster.classKey(p, pod.PodInfo)
	if err != nil {
		return nil, nil, err
	}
	lookup := "hit"
	found, err := r.cluster.index.Class(string(scratch), func() (index.Spec, error) {
		lookup = "miss"
		made, err := newClass(ctx, r.cluster, p, pod.PodInfo)
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
