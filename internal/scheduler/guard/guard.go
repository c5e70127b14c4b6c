// Package guard contains failures of plugins that are not kube-scheduler's own: a panic or a call
// that takes too long is an error of one pod, and does not stop the scheduler.
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
	// A call that the scheduling cycle waits for may take this long; extenders have half of it.
	pluginLimit = 10 * time.Second
	pluginGrace = time.Second
	// A pod whose call took too long is not tried again for this many limits, so that it takes only
	// a small share of the scheduler's time.
	restFactor = 10
	// A plugin with so many calls that have not returned is not called any more.
	mostLeft = 1000
)

// Limits apply to all plugins of a scheduler.
type Limits struct {
	// Call is the limit of a call. Grace is how much later a call is abandoned that ignores the end
	// of its context.
	Call, Grace time.Duration
	// left is called when a call is abandoned. The call may still read what the cycle works on.
	left func()
}

// NewLimits returns the default limits. left is called when a call is abandoned.
func NewLimits(left func()) *Limits {
	return &Limits{Call: pluginLimit, Grace: pluginGrace, left: left}
}

// guard contains the failures of one plugin.
//
// Go cannot stop a call. A call that does not return is abandoned: it keeps what it works on, and
// its result is discarded.
type guard struct {
	plugin string
	limits *Limits

	mu   sync.Mutex
	slow map[types.UID]*slowness
	left int
}

// slowness records the calls of a plugin for one pod that took too long.
type slowness struct {
	// left is the number of abandoned calls that have not returned.
	left int
	// rest is when the pod may be tried again.
	rest time.Time
}

func newGuard(plugin string, limits *Limits) *guard {
	return &guard{plugin: plugin, limits: limits, slow: map[types.UID]*slowness{}}
}

// answer is the result of a call.
type answer[T any] struct {
	result T
	status *fwk.Status
}

// call is a call of a plugin at an extension point.
type call[T any] func(context.Context) (T, *fwk.Status)

// survive makes a call and turns a panic into an error.
func survive[T any](ctx context.Context, g *guard, point string, pod *v1.Pod, f call[T]) (result T, status *fwk.Status) {
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

// limited does the same and waits no longer than the limit.
func limited[T any](ctx context.Context, g *guard, point string, pod *v1.Pod, f call[T]) (result T, status *fwk.Status) {
	if err := g.resting(pod.UID); err != nil {
		return result, fwk.AsStatus(err)
	}
	within, cancel := context.WithTimeout(ctx, g.limits.Call)
	defer cancel()
	done := make(chan answer[T], 1)
	go func() {
		var a answer[T]
		a.result, a.status = survive(within, g, point, pod, f)
		done <- a
	}()
	patience := time.NewTimer(g.limits.Call + g.limits.Grace)
	defer patience.Stop()
	select {
	case a := <-done:
		if within.Err() == nil || ctx.Err() != nil {
			return a.result, a.status
		}
		g.tookTooLong(pod.UID)
	case <-patience.C:
		g.leave(pod.UID)
		go func() {
			<-done
			g.returned(pod.UID)
		}()
	}
	pluginFailures.WithLabelValues(g.plugin, point, "timeout").Inc()
	err := fmt.Errorf("plugin %s did not return from %s within %v", g.plugin, point, g.limits.Call)
	klog.FromContext(ctx).Error(err, "Plugin call timed out", "pod", klog.KObj(pod))
	return result, fwk.AsStatus(err)
}

// surviveStatus is [survive] for calls that return only a status.
func surviveStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := survive(ctx, g, point, pod, statusOnly(f))
	return status
}

// limitedStatus is [limited] for calls that return only a status.
func limitedStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := limited(ctx, g, point, pod, statusOnly(f))
	return status
}

func statusOnly(f func(context.Context) *fwk.Status) call[struct{}] {
	return func(ctx context.Context) (struct{}, *fwk.Status) { return struct{}{}, f(ctx) }
}

// resting returns why a pod is not tried now; nil if it is.
func (g *guard) resting(uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left >= mostLeft {
		return fmt.Errorf("plugin %s has not returned from %d calls", g.plugin, g.left)
	}
	s := g.slow[uid]
	if s == nil {
		return nil
	}
	if s.left > 0 {
		return fmt.Errorf("plugin %s has not returned from an earlier call for this pod", g.plugin)
	}
	if rest := time.Until(s.rest); rest > 0 {
		return fmt.Errorf("plugin %s took too long for this pod, which is tried again in %v", g.plugin, rest.Round(time.Second))
	}
	delete(g.slow, uid)
	return nil
}

func (g *guard) tookTooLong(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.note(uid)
}

// note makes a pod rest, and removes pods that have rested, because some never return.
func (g *guard) note(uid types.UID) *slowness {
	now := time.Now()
	for other, s := range g.slow {
		if s.left == 0 && s.rest.Before(now) {
			delete(g.slow, other)
		}
	}
	s := g.slow[uid]
	if s == nil {
		s = &slowness{}
		g.slow[uid] = s
	}
	s.rest = now.Add(restFactor * g.limits.Call)
	return s
}

// leave records an abandoned call.
func (g *guard) leave(uid types.UID) {
	g.mu.Lock()
	g.note(uid).left++
	g.left++
	g.mu.Unlock()
	g.limits.left()
}

// returned records that an abandoned call has returned. The entry of its pod is still there,
// because note keeps pods with abandoned calls.
func (g *guard) returned(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow[uid].left--
	g.left--
}
