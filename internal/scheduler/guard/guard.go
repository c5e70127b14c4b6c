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

const (
	// A call that the scheduling cycle waits for takes no longer; extenders have
	// half of it. A plugin that does not heed the end of its context is left behind
	// a little later.
	pluginLimit = 10 * time.Second
	pluginGrace = time.Second
	// For so many times the limit, a pod that took too long is not tried again: it
	// takes a small share of the scheduler's time from the others.
	restFactor = 10
	// Calls of a plugin that may be left behind at a time, before it is not called
	// any more.
	mostLeft = 1000
)

// limits are common to all plugins of a scheduler.
type Limits struct {
	Call, Grace time.Duration
	// left is called when a call is left behind, which may still read what the
	// cycle works on.
	left func()
}

// newLimits are the limits of every scheduler; left is called when a call is left behind.
func NewLimits(left func()) *Limits {
	return &Limits{Call: pluginLimit, Grace: pluginGrace, left: left}
}

// guard lets a plugin that is not kube-scheduler's own fail for one pod, not for
// all: a panic in it, or that it takes too long, is an error of the pod.
//
// Go cannot end a call. One that does not return is left behind with what it works
// on; that its results go nowhere is all that it loses.
type guard struct {
	plugin string
	limits *Limits

	mu   sync.Mutex
	slow map[types.UID]*slowness
	left int
}

// slowness of a plugin with a pod.
type slowness struct {
	// left behind are so many calls.
	left int
	// rest says until when there are no others.
	rest time.Time
}

func newGuard(plugin string, limits *Limits) *guard {
	return &guard{plugin: plugin, limits: limits, slow: map[types.UID]*slowness{}}
}

// answer is what a call returns.
type answer[T any] struct {
	result T
	status *fwk.Status
}

// call is a call of a plugin at a point of the cycle.
type call[T any] func(context.Context) (T, *fwk.Status)

// survive makes a call, and an error of a panic.
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

// limited does the same, and waits no longer than the limit.
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
	klog.FromContext(ctx).Error(err, "Plugin takes too long", "pod", klog.KObj(pod))
	return result, fwk.AsStatus(err)
}

// surviveStatus and limitedStatus are for the calls that return a status only.
func surviveStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := survive(ctx, g, point, pod, statusOnly(f))
	return status
}

func limitedStatus(ctx context.Context, g *guard, point string, pod *v1.Pod, f func(context.Context) *fwk.Status) *fwk.Status {
	_, status := limited(ctx, g, point, pod, statusOnly(f))
	return status
}

func statusOnly(f func(context.Context) *fwk.Status) call[struct{}] {
	return func(ctx context.Context) (struct{}, *fwk.Status) { return struct{}{}, f(ctx) }
}

// resting says why a pod is not tried, if it is not.
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

// note makes a pod rest, and forgets those that have rested, as not all of them
// come again.
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

func (g *guard) leave(uid types.UID) {
	g.mu.Lock()
	g.note(uid).left++
	g.left++
	g.mu.Unlock()
	g.limits.left()
}

// returned is what a call does that was left behind. Its pod keeps resting, so it
// has not been forgotten.
func (g *guard) returned(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow[uid].left--
	g.left--
}
