package attach_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/guard"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestPanicOfPluginIsErrorOfOnePod checks at each extension point that a panic is an error of its
// pod. In upstream's scheduler, a panic ends the process.
func TestPanicOfPluginIsErrorOfOnePod(t *testing.T) {
	f := schedtest.NewWithSaboteur(t, func(_ context.Context, point string, _ *v1.Pod, _ fwk.NodeInfo) { panic("by " + point) })
	// This pod fits nowhere, so PostFilter is called for it.
	large := schedtest.PlainPod("large", "64")
	large.Labels[schedtest.SabotageLabel] = "PostFilter"
	f.API.Put(large)
	f.Run()
	before := []string{"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit", "PreBind", "Bind"}
	f.CreateSabotagedPods(append(before, "PostBind", "Unreserve"))
	for _, point := range before {
		f.AwaitError("bad-"+point, fmt.Sprintf("plugin Saboteur panicked in %s: by %s", point, point))
	}
	f.AwaitError("bad-Unreserve", "PreBind fails so that Unreserve is called")
	f.Eventually("the pod whose PostBind panics is bound", func() error {
		if f.API.Pod("default/bad-PostBind").Spec.NodeName == "" {
			return errors.New("spec.nodeName is empty")
		}
		return nil
	})
	if node := f.API.Pod("default/large").Spec.NodeName; node != "" {
		t.Errorf("the large pod is on %s, want it to be pending", node)
	}
}

// TestBlockingPluginDoesNotBlockOtherPods has a plugin that returns only when its context ends.
// Other pods are scheduled within the time limit of a call.
func TestBlockingPluginDoesNotBlockOtherPods(t *testing.T) {
	f := schedtest.NewWithSaboteur(t, func(ctx context.Context, _ string, _ *v1.Pod, _ fwk.NodeInfo) { <-ctx.Done() })
	f.Parts.Limits.Call = 50 * time.Millisecond
	f.Run()
	// Binding cycles have no time limit: those of two pods block until the test ends.
	f.CreateSabotagedPods(append([]string{"PreBind", "Bind"}, schedtest.CyclePoints...))
	for _, point := range schedtest.CyclePoints {
		f.AwaitError("bad-"+point, "plugin Saboteur did not return from "+point)
	}
}

// TestPluginThatNeverReturnsKeepsItsArguments has a plugin that ignores its context and continues
// to read its arguments. The race detector reports an error if the scheduler writes to them.
func TestPluginThatNeverReturnsKeepsItsArguments(t *testing.T) {
	release := make(chan struct{})
	releaseCalls := sync.OnceFunc(func() { close(release) })
	f := schedtest.NewWithSaboteur(t, func(_ context.Context, _ string, _ *v1.Pod, node fwk.NodeInfo) {
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
	// Cleanups run in reverse order: the calls return before the scheduler waits for its last
	// cycle.
	t.Cleanup(releaseCalls)
	f.Parts.Limits.Call, f.Parts.Limits.Grace = 50*time.Millisecond, 20*time.Millisecond
	f.Run()
	f.CreateSabotagedPods(schedtest.CyclePoints)
	for _, point := range schedtest.CyclePoints {
		f.AwaitError("bad-"+point, "plugin Saboteur has not returned from an earlier call for this pod")
	}
	fw := f.Sched.Profiles[v1.DefaultSchedulerName]
	unreturned, err := guard.Unreturned(fw)
	f.Must(err)
	// Upstream calls Filter and Score for 16 nodes in parallel.
	if most := 16 * len(schedtest.CyclePoints); unreturned < len(schedtest.CyclePoints) || unreturned > most {
		t.Errorf("Unreturned() = %d calls, want %d to %d", unreturned, len(schedtest.CyclePoints), most)
	}
	releaseCalls()
	f.Eventually("all calls have returned", func() error {
		if calls, err := guard.Unreturned(fw); err != nil || calls != 0 {
			return fmt.Errorf("Unreturned() = %d, %v, want 0", calls, err)
		}
		return nil
	})
}
