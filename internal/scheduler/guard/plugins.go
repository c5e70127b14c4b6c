package guard

import (
	"context"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// Wrap wraps each out-of-tree plugin of a profile with a guard. It replaces the plugins in the framework's lists,
// as upstream does to record metrics. Preemption uses the same lists.
//
// QueueSort, PreEnqueue and queueing hints are not guarded, because the queue already has them.
func Wrap(fw framework.Framework, l *Limits) error {
	s := wrapper{lists: reflect.ValueOf(fw).Elem(), own: plugins.NewInTreeRegistry(), limits: l, guards: map[string]*guard{}}
	wrapList(&s, "preFilterPlugins", func(p fwk.PreFilterPlugin, g *guard) fwk.PreFilterPlugin { return guardedPreFilter{p, g} })
	wrapList(&s, "filterPlugins", func(p fwk.FilterPlugin, g *guard) fwk.FilterPlugin { return guardedFilter{p, g} })
	wrapList(&s, "postFilterPlugins", func(p fwk.PostFilterPlugin, g *guard) fwk.PostFilterPlugin { return guardedPostFilter{p, g} })
	wrapList(&s, "preScorePlugins", func(p fwk.PreScorePlugin, g *guard) fwk.PreScorePlugin { return guardedPreScore{p, g} })
	wrapList(&s, "scorePlugins", func(p fwk.ScorePlugin, g *guard) fwk.ScorePlugin { return guardedScore{p, g} })
	wrapList(&s, "reservePlugins", func(p fwk.ReservePlugin, g *guard) fwk.ReservePlugin { return guardedReserve{p, g} })
	wrapList(&s, "permitPlugins", func(p fwk.PermitPlugin, g *guard) fwk.PermitPlugin { return guardedPermit{p, g} })
	wrapList(&s, "preBindPlugins", func(p fwk.PreBindPlugin, g *guard) fwk.PreBindPlugin { return guardedPreBind{p, g} })
	wrapList(&s, "bindPlugins", func(p fwk.BindPlugin, g *guard) fwk.BindPlugin { return guardedBind{p, g} })
	wrapList(&s, "postBindPlugins", func(p fwk.PostBindPlugin, g *guard) fwk.PostBindPlugin { return guardedPostBind{p, g} })
	return s.err
}

// wrapper is the state of [Wrap].
type wrapper struct {
	lists  reflect.Value
	own    frameworkruntime.Registry
	limits *Limits
	guards map[string]*guard
	err    error
}

// wrapList wraps the plugins in one list of the framework.
func wrapList[P fwk.Plugin](s *wrapper, name string, wrap func(P, *guard) P) {
	var list *[]P
	if unexported.Field(s.lists, name, &list, &s.err); list == nil {
		return
	}
	for i, plugin := range *list {
		name := plugin.Name()
		if _, own := s.own[name]; own {
			continue
		}
		if s.guards[name] == nil {
			s.guards[name] = newGuard(name, s.limits)
		}
		(*list)[i] = wrap(plugin, s.guards[name])
	}
}

// Unreturned returns the number of abandoned calls of filter plugins that have not returned.
func Unreturned(fw framework.Framework) (calls int, err error) {
	var list *[]fwk.FilterPlugin
	if unexported.Field(reflect.ValueOf(fw).Elem(), "filterPlugins", &list, &err); err != nil {
		return 0, err
	}
	for _, plugin := range *list {
		if guarded, ok := plugin.(guardedFilter); ok {
			guarded.guard.mu.Lock()
			calls += guarded.guard.abandoned
			guarded.guard.mu.Unlock()
		}
	}
	return calls, nil
}

type guardedPreFilter struct {
	fwk.PreFilterPlugin
	guard *guard
}

// PreFilter is called with a limit.
func (p guardedPreFilter) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return withLimit(ctx, p.guard, "PreFilter", pod, func(ctx context.Context) (*fwk.PreFilterResult, *fwk.Status) {
		return p.PreFilterPlugin.PreFilter(ctx, state, pod, nodes)
	})
}

// PreFilterExtensions returns guarded extensions.
func (p guardedPreFilter) PreFilterExtensions() fwk.PreFilterExtensions {
	extensions := p.PreFilterPlugin.PreFilterExtensions()
	if extensions == nil {
		return nil
	}
	return guardedExtensions{extensions, p.guard}
}

type guardedExtensions struct {
	extensions fwk.PreFilterExtensions
	guard      *guard
}

// AddPod is called with a limit.
func (e guardedExtensions) AddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return withLimitStatus(ctx, e.guard, "AddPod", pod, func(ctx context.Context) *fwk.Status {
		return e.extensions.AddPod(ctx, state, pod, added, node)
	})
}

// RemovePod is called with a limit.
func (e guardedExtensions) RemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return withLimitStatus(ctx, e.guard, "RemovePod", pod, func(ctx context.Context) *fwk.Status {
		return e.extensions.RemovePod(ctx, state, pod, removed, node)
	})
}

type guardedFilter struct {
	fwk.FilterPlugin
	guard *guard
}

// Filter is called with a limit.
func (p guardedFilter) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	return withLimitStatus(ctx, p.guard, "Filter", pod, func(ctx context.Context) *fwk.Status {
		return p.FilterPlugin.Filter(ctx, state, pod, node)
	})
}

type guardedPostFilter struct {
	fwk.PostFilterPlugin
	guard *guard
}

// PostFilter is called with a limit.
func (p guardedPostFilter) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	return withLimit(ctx, p.guard, "PostFilter", pod, func(ctx context.Context) (*fwk.PostFilterResult, *fwk.Status) {
		return p.PostFilterPlugin.PostFilter(ctx, state, pod, nodes)
	})
}

type guardedPreScore struct {
	fwk.PreScorePlugin
	guard *guard
}

// PreScore is called with a limit.
func (p guardedPreScore) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	return withLimitStatus(ctx, p.guard, "PreScore", pod, func(ctx context.Context) *fwk.Status {
		return p.PreScorePlugin.PreScore(ctx, state, pod, nodes)
	})
}

type guardedScore struct {
	fwk.ScorePlugin
	guard *guard
}

// Score is called with a limit.
func (p guardedScore) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return withLimit(ctx, p.guard, "Score", pod, func(ctx context.Context) (int64, *fwk.Status) {
		return p.ScorePlugin.Score(ctx, state, pod, node)
	})
}

// ScoreExtensions returns guarded extensions.
func (p guardedScore) ScoreExtensions() fwk.ScoreExtensions {
	extensions := p.ScorePlugin.ScoreExtensions()
	if extensions == nil {
		return nil
	}
	return guardedNormalize{extensions, p.guard}
}

type guardedNormalize struct {
	extensions fwk.ScoreExtensions
	guard      *guard
}

// NormalizeScore is called with a limit.
func (e guardedNormalize) NormalizeScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	return withLimitStatus(ctx, e.guard, "NormalizeScore", pod, func(ctx context.Context) *fwk.Status {
		return e.extensions.NormalizeScore(ctx, state, pod, scores)
	})
}

type guardedReserve struct {
	fwk.ReservePlugin
	guard *guard
}

// Reserve is called with a limit.
func (p guardedReserve) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return withLimitStatus(ctx, p.guard, "Reserve", pod, func(ctx context.Context) *fwk.Status {
		return p.ReservePlugin.Reserve(ctx, state, pod, node)
	})
}

// Unreserve is called even while the pod is paused, because it cleans up. A panic does not stop the scheduler.
func (p guardedReserve) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	recoverPanicStatus(ctx, p.guard, "Unreserve", pod, func(ctx context.Context) *fwk.Status {
		p.ReservePlugin.Unreserve(ctx, state, pod, node)
		return nil
	})
}

type guardedPermit struct {
	fwk.PermitPlugin
	guard *guard
}

// Permit is called with a limit.
func (p guardedPermit) Permit(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.Status, time.Duration) {
	wait, status := withLimit(ctx, p.guard, "Permit", pod, func(ctx context.Context) (time.Duration, *fwk.Status) {
		status, wait := p.PermitPlugin.Permit(ctx, state, pod, node)
		return wait, status
	})
	return status, wait
}

// guardedPreBind guards PreBind. Its calls and those of Bind and PostBind have no limit, because each binding
// cycle has its own goroutine.
type guardedPreBind struct {
	fwk.PreBindPlugin
	guard *guard
}

// PreBindPreFlight turns a panic into an error.
func (p guardedPreBind) PreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return recoverPanic(ctx, p.guard, "PreBindPreFlight", pod, func(ctx context.Context) (*fwk.PreBindPreFlightResult, *fwk.Status) {
		return p.PreBindPlugin.PreBindPreFlight(ctx, state, pod, node)
	})
}

// PreBind turns a panic into an error.
func (p guardedPreBind) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return recoverPanicStatus(ctx, p.guard, "PreBind", pod, func(ctx context.Context) *fwk.Status {
		return p.PreBindPlugin.PreBind(ctx, state, pod, node)
	})
}

type guardedBind struct {
	fwk.BindPlugin
	guard *guard
}

// Bind turns a panic into an error.
func (p guardedBind) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return recoverPanicStatus(ctx, p.guard, "Bind", pod, func(ctx context.Context) *fwk.Status {
		return p.BindPlugin.Bind(ctx, state, pod, node)
	})
}

type guardedPostBind struct {
	fwk.PostBindPlugin
	guard *guard
}

// PostBind is called so that a panic does not stop the scheduler.
func (p guardedPostBind) PostBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	recoverPanicStatus(ctx, p.guard, "PostBind", pod, func(ctx context.Context) *fwk.Status {
		p.PostBindPlugin.PostBind(ctx, state, pod, node)
		return nil
	})
}
