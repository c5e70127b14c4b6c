package attach_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/guard"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestPluginPanics checks at each extension point that a panic is an error of its pod. With
// upstream it ends the process.
func TestPluginPanics(t *testing.T) {
	l := schedtest.NewSabotaged(t, func(_ context.Context, point string, _ *v1.Pod, _ fwk.NodeInfo) { panic("by " + point) })
	// This pod fits nowhere, so PostFilter is called for it.
	large := schedtest.PlainPod("large", "64")
	large.Labels[schedtest.Sabotage] = "PostFilter"
	l.API.Put(large)
	l.Run()
	before := []string{"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit", "PreBind", "Bind"}
	l.Mix(append(before, "PostBind", "Unreserve"))
	for _, point := range before {
		l.Complaint("bad-"+point, fmt.Sprintf("plugin Saboteur panicked in %s: by %s", point, point))
	}
	l.Complaint("bad-Unreserve", "so that Unreserve is called")
	l.Eventually("the pod whose PostBind panics is bound", func() error {
		if l.API.Pod("default/bad-PostBind").Spec.NodeName == "" {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	if node := l.API.Pod("default/large").Spec.NodeName; node != "" {
		t.Errorf("the large pod is on %s", node)
	}
}

// TestPluginBlocks checks that other pods do not wait long for a plugin that returns only when its
// context ends.
func TestPluginBlocks(t *testing.T) {
	l := schedtest.NewSabotaged(t, func(ctx context.Context, _ string, _ *v1.Pod, _ fwk.NodeInfo) { <-ctx.Done() })
	l.Parts.Limits.Call = 50 * time.Millisecond
	l.Run()
	// The binds of two pods block until the end; no other pod waits for them.
	l.Mix(append([]string{"PreBind", "Bind"}, schedtest.CyclePoints...))
	for _, point := range schedtest.CyclePoints {
		l.Complaint("bad-"+point, "plugin Saboteur did not return from "+point)
	}
}

// TestPluginNeverReturns has a plugin that ignores its context and continues to read its arguments.
// The race detector reports if they are written.
func TestPluginNeverReturns(t *testing.T) {
	release, once := make(chan struct{}), sync.Once{}
	end := func() { once.Do(func() { close(release) }) }
	l := schedtest.NewSabotaged(t, func(_ context.Context, _ string, _ *v1.Pod, node fwk.NodeInfo) {
		for {
			select {
			case <-release:
				return
			case <-time.After(time.Millisecond):
				if node != nil {
					_ = node.GetRequested().GetMilliCPU() + int64(len(node.GetPods()))
				}
			}
		}
	})
	// Before the scheduler is stopped, which waits for its cycle.
	t.Cleanup(end)
	l.Parts.Limits.Call, l.Parts.Limits.Grace = 50*time.Millisecond, 20*time.Millisecond
	l.Run()
	l.Mix(schedtest.CyclePoints)
	for _, point := range schedtest.CyclePoints {
		l.Complaint("bad-"+point, "plugin Saboteur has not returned from an earlier call for this pod")
	}
	fw := l.Sched.Profiles[v1.DefaultSchedulerName]
	left, err := guard.Unreturned(fw)
	l.Must(err)
	// Upstream asks about 16 nodes at a time.
	if most := 16 * len(schedtest.CyclePoints); left < len(schedtest.CyclePoints) || left > most {
		t.Errorf("%d calls are left behind, and should be %d to %d", left, len(schedtest.CyclePoints), most)
	}
	end()
	l.Eventually("calls that were left behind are counted off", func() error {
		if calls, err := guard.Unreturned(fw); err != nil || calls != 0 {
			return fmt.Errorf("%d are left, %v", calls, err)
		}
		return nil
	})
}
