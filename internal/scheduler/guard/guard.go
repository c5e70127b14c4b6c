// Package guard contains failures of out-of-tree plugins: a panic, or a call that takes too long, becomes an
// error of one pod and does not stop the scheduler.
package guard

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// The limits of calls.
const (
	// pluginLimit and pluginGrace are the defaults of Limits. Upstream's limit for extenders is half
	// of pluginLimit.
	pluginLimit = 10 * time.Second
	pluginGrace = time.Second
	// After a call for a pod has taken too long, the plugin is not called for the pod for
	// pauseFactor times the limit, so that the pod takes only a small share of the scheduler's time.
	pauseFactor = 10
	// A plugin is not called while maxAbandoned abandoned calls have not returned.
	maxAbandoned = 1000
)

// Limits apply to all plugins of a scheduler.
type Limits struct {
	// Call is the time after which the context of a call ends. Grace is the time after that after
	// which the call is abandoned if it has not returned.
	Call, Grace time.Duration
	// abandoned is called when a call is abandoned. The call may still read nodes.
	abandoned func()
}

// NewLimits returns the default limits. abandoned is called when a call is abandoned.
func NewLimits(abandoned func()) *Limits {
	return &Limits{Call: pluginLimit, Grace: pluginGrace, abandoned: abandoned}
}

// guard contains the failures of one plugin.
//
// Go cannot stop a call. If a call does not return in time, it is abandoned: it continues to run, and its
// result is discarded.
type guard struct {
	plugin string
	limits *Limits

	mu        sync.Mutex
	slow      map[types.UID]*slowPod
	abandoned int
}

// slowPod records the calls of a plugin for one pod that took too long.
type slowPod struct {
	// abandoned is the number of abandoned calls that have not returned.
	abandoned int
	// pausedUntil is the time until which the plugin is not called for the pod.
	pausedUntil time.Time
}

func newGuard(plugin string, limits *Limits) *guard {
	return &guard{plugin: plugin, limits: limits, slow: map[types.UID]*slowPod{}}
}

// answer is the result of a call.
type answer[T any] struct {
	result T
	status *fwk.Status
}

// call is a call of a plugin at an extension point.
type call[T any] func(context.Context) (T, *fwk.Status)

// recoverPanic makes a call and turns a panic into an error.
func recoverPanic[T any](ctx context.Context, g *guard, point string, pod *v1.Pod, f call[T]) (result T, status *fwk.Status) {
	defer func() {
		if cause := recover(); cause != nil {
			pluginFailures.WithLabelValues(g.plugin, point, "panic").Inc()
			klog.FromContext(ctx).Error(nil, "Plugin panicked", "plugin", g.plugin, "point", point, "pod", klog.KObj(pod),
				"cause", cause, "stack", string(debug.Stack()))
			status = fwk.AsStatus(fmt.Errorf("plugin %s panicked in %s: %v", g.plugin, point, cause))
		}
	}()
	return f(ctx)
}

// withLimit makes a call in another goroutine, turns a panic into an error, and returns an error if the call
// takes longer than the limit. It does not make the call while the pod is paused.
func withLimit[T any](ctx context.Context, g *guard, point string, pod *v1.Pod, f call[T]) (result T, status *fwk.Status) {
	if err := g.checkPause(pod.UID); err != nil {
		return result, fwk.AsStatus(err)
	}
	within, cancel := context.WithTimeout(ctx, g.limits.Call)
	defer cancel()
	done := make(chan answer[T], 1)
	go func() {
		var a answer[T]
		a.result, a.status = recoverPanic(within, g, point, pod, f)
		done <- a
	}()
	timeout := time.NewTimer(g.limits.Call + g.limits.Grace)
	defer timeout.Stop()
	select {
	case a := <-done:
		if within.Err() == nil || ctx.Err() != nil {
			return a.result, a.status
		}
		g.recordSlow(pod.UID)
	case <-timeout.C:
		g.recordAbandoned(pod.UID)
		go func() {
			<-done
			g.recordReturned(pod.UID)
		}()
	}
	pluginFailures.WithLabelValues(g.plugin, point, "timeout").Inc()
	err := fmt.Errorf("plugin %s did not return from %s within %v", g.plugin, point, g.limits.Call)
	klog.FromContext(ctx).Error(err, "Plugin call timed out", "pod", klog.KObj(pod))
	return result, fwk.AsStatus(err)
}

// recoverPanicStatus is [recoverPanic] for calls that return only a status.
func recoverPanicStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := recoverPanic(ctx, g, point, pod, statusOnly(f))
	return status
}

// withLimitStatus is [withLimit] for calls that return only a status.
func withLimitStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := withLimit(ctx, g, point, pod, statusOnly(f))
	return status
}

func statusOnly(f func(context.Context) *fwk.Status) call[struct{}] {
	return func(ctx context.Context) (struct{}, *fwk.Status) { return struct{}{}, f(ctx) }
}

// checkPause returns an error if the plugin must not be called for a pod now.
func (g *guard) checkPause(uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.abandoned >= maxAbandoned {
		return fmt.Errorf("plugin %s has not returned from %d calls", g.plugin, g.abandoned)
	}
	s := g.slow[uid]
	if s == nil {
		return nil
	}
	if s.abandoned > 0 {
		return fmt.Errorf("plugin %s has not returned from an earlier call for this pod", g.plugin)
	}
	if pause := time.Until(s.pausedUntil); pause > 0 {
		return fmt.Errorf("plugin %s took too long for this pod; it is called again for the pod in %v", g.plugin, pause.Round(time.Second))
	}
	delete(g.slow, uid)
	return nil
}

// recordSlow records a call that has returned, but too late.
func (g *guard) recordSlow(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pausePod(uid)
}

// pausePod starts the pause of a pod. It also removes the entries of pods whose pause has ended, because some
// of these pods are never scheduled again. The caller holds the lock.
func (g *guard) pausePod(uid types.UID) *slowPod {
	now := time.Now()
	for other, s := range g.slow {
		if s.abandoned == 0 && s.pausedUntil.Before(now) {
			delete(g.slow, other)
		}
	}
	s := g.slow[uid]
	if s == nil {
		s = &slowPod{}
		g.slow[uid] = s
	}
	s.pausedUntil = now.Add(pauseFactor * g.limits.Call)
	return s
}

// recordAbandoned records an abandoned call.
func (g *guard) recordAbandoned(uid types.UID) {
	g.mu.Lock()
	g.pausePod(uid).abandoned++
	g.abandoned++
	g.mu.Unlock()
	g.limits.abandoned()
}

// recordReturned records that an abandoned call has returned. The entry of its pod exists, because pausePod
// does not remove pods with abandoned calls.
func (g *guard) recordReturned(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow[uid].abandoned--
	g.abandoned--
}
