package scheduler

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	plugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// saboteur is a plugin at every point of the cycle. For a pod it does what a label
// says, at the point that the label says.
type saboteur struct {
	do func(ctx context.Context, point string, pod *v1.Pod, node fwk.NodeInfo)
}

const sabotage = "sabotage"

func (s *saboteur) Name() string { return "Saboteur" }
func (s *saboteur) act(ctx context.Context, point string, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if pod.Labels[sabotage] == point {
		s.do(ctx, point, pod, node)
	}
	return nil
}

func (s *saboteur) PreFilter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return nil, s.act(ctx, "PreFilter", pod, nil)
}
func (s *saboteur) PreFilterExtensions() fwk.PreFilterExtensions { return nil }
func (s *saboteur) Filter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	return s.act(ctx, "Filter", pod, node)
}
func (s *saboteur) PostFilter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	s.act(ctx, "PostFilter", pod, nil)
	return nil, fwk.NewStatus(fwk.Unschedulable)
}
func (s *saboteur) PreScore(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	return s.act(ctx, "PreScore", pod, nil)
}
func (s *saboteur) Score(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return 0, s.act(ctx, "Score", pod, node)
}
func (s *saboteur) ScoreExtensions() fwk.ScoreExtensions { return s }
func (s *saboteur) NormalizeScore(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ fwk.NodeScoreList) *fwk.Status {
	return s.act(ctx, "NormalizeScore", pod, nil)
}
func (s *saboteur) Reserve(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	return s.act(ctx, "Reserve", pod, nil)
}
func (s *saboteur) Unreserve(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	s.act(ctx, "Unreserve", pod, nil)
}
func (s *saboteur) Permit(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	return s.act(ctx, "Permit", pod, nil), 0
}
func (s *saboteur) PreBindPreFlight(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}
func (s *saboteur) PreBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	if s.act(ctx, "PreBind", pod, nil); pod.Labels[sabotage] == "Unreserve" {
		return fwk.NewStatus(fwk.Error, "so that Unreserve is called")
	}
	return nil
}
func (s *saboteur) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	s.act(ctx, "Bind", pod, nil)
	return fwk.NewStatus(fwk.Skip)
}
func (s *saboteur) PostBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	s.act(ctx, "PostBind", pod, nil)
}

// newSabotaged is a scheduler with a plugin that does something to some pods.
func newSabotaged(t *testing.T, do func(context.Context, string, *v1.Pod, fwk.NodeInfo)) *live {
	t.Helper()
	profile := defaultProfile(t).DeepCopy()
	profile.Plugins.MultiPoint.Enabled = append(profile.Plugins.MultiPoint.Enabled, config.Plugin{Name: "Saboteur"})
	profile.Plugins.Bind.Enabled = []config.Plugin{{Name: "Saboteur"}, {Name: plugins.DefaultBinder}}
	registry := runtime.Registry{"Saboteur": func(context.Context, kruntime.Object, fwk.Handle) (fwk.Plugin, error) {
		return &saboteur{do}, nil
	}}
	server := newAPI()
	for i := range 20 {
		server.put(plainNode(fmt.Sprintf("node-%d", i), "32"))
	}
	return newLive(t, server, profile, upstream.WithFrameworkOutOfTreeRegistry(registry),
		upstream.WithPodInitialBackoffSeconds(0), upstream.WithPodMaxBackoffSeconds(0))
}

// mix creates a bad pod for each point, among good ones, and waits until all good
// ones are bound.
func (l *live) mix(points []string) {
	l.t.Helper()
	const good = 100
	for i := range good {
		l.api.put(plainPod(fmt.Sprintf("good-%d", i), "100m"))
		if i < len(points) {
			bad := plainPod("bad-"+points[i], "100m")
			bad.Labels[sabotage] = points[i]
			l.api.put(bad)
		}
	}
	l.eventually("good pods are bound", func() error {
		bound := 0
		for _, pod := range l.api.pods() {
			if pod.Spec.NodeName != "" && strings.HasPrefix(pod.Name, "good-") {
				bound++
			}
		}
		if bound != good {
			return fmt.Errorf("%d of %d are", bound, good)
		}
		return nil
	})
}

// complaint waits for what the scheduler writes to a pod that it failed.
func (l *live) complaint(name, want string) {
	l.t.Helper()
	l.eventually(name+" is said to have failed", func() error {
		l.api.mu.Lock()
		defer l.api.mu.Unlock()
		said := l.api.said["default/"+name]
		for _, condition := range said {
			if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonSchedulerError && strings.Contains(condition.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("what is said of it is %+v", said[max(0, len(said)-1):])
	})
}

// TestPluginPanics wants that a panic is an error of its pod, wherever it happens.
// In upstream each of them ends the process.
func TestPluginPanics(t *testing.T) {
	l := newSabotaged(t, func(_ context.Context, point string, _ *v1.Pod, _ fwk.NodeInfo) { panic("by " + point) })
	// Its pods fit nowhere; the panic comes while room is sought for one.
	large := plainPod("large", "64")
	large.Labels[sabotage] = "PostFilter"
	l.api.put(large)
	l.run()
	before := []string{"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit", "PreBind", "Bind"}
	l.mix(append(before, "PostBind", "Unreserve"))
	for _, point := range before {
		l.complaint("bad-"+point, fmt.Sprintf("plugin Saboteur panicked in %s: by %s", point, point))
	}
	l.complaint("bad-Unreserve", "so that Unreserve is called")
	l.eventually("the pod whose PostBind panics is bound", func() error {
		if l.api.pod("default/bad-PostBind").Spec.NodeName == "" {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	if node := l.api.pod("default/large").Spec.NodeName; node != "" {
		t.Errorf("the large pod is on %s", node)
	}
}

var cyclePoints = []string{"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit"}

// TestPluginBlocks wants that the others do not wait for a pod for long, of which a
// plugin does not return before its context ends.
func TestPluginBlocks(t *testing.T) {
	l := newSabotaged(t, func(ctx context.Context, _ string, _ *v1.Pod, _ fwk.NodeInfo) { <-ctx.Done() })
	l.ranker.limits.call = 50 * time.Millisecond
	l.run()
	// The binds of two of them block until the end; no other pod waits for those.
	l.mix(append([]string{"PreBind", "Bind"}, cyclePoints...))
	for _, point := range cyclePoints {
		l.complaint("bad-"+point, "plugin Saboteur did not return from "+point)
	}
}

// TestPluginNeverReturns does not even heed its context, and goes on to read what it
// was given. The race detector sees if anybody still writes that.
func TestPluginNeverReturns(t *testing.T) {
	release, once := make(chan struct{}), sync.Once{}
	end := func() { once.Do(func() { close(release) }) }
	l := newSabotaged(t, func(_ context.Context, _ string, _ *v1.Pod, node fwk.NodeInfo) {
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
	l.ranker.limits.call, l.ranker.limits.grace = 50*time.Millisecond, 20*time.Millisecond
	l.run()
	l.mix(cyclePoints)
	for _, point := range cyclePoints {
		l.complaint("bad-"+point, "plugin Saboteur has not returned from an earlier call for this pod")
	}
	guards := l.guards()
	left := 0
	for _, g := range guards {
		g.mu.Lock()
		left += g.left
		g.mu.Unlock()
	}
	// Upstream asks about 16 nodes at a time.
	if most := 16 * len(cyclePoints); left < len(cyclePoints) || left > most {
		t.Errorf("%d calls are left behind, and should be %d to %d", left, len(cyclePoints), most)
	}
	end()
	l.eventually("calls that were left behind are counted off", func() error {
		for _, g := range guards {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.left != 0 {
				return fmt.Errorf("%d are left", g.left)
			}
		}
		return nil
	})
}

// guards are those of the plugins of the scheduler.
func (l *live) guards() []*guard {
	var list *[]fwk.FilterPlugin
	var err error
	reach(reflect.ValueOf(l.sched.Profiles[v1.DefaultSchedulerName]).Elem(), "filterPlugins", &list, &err)
	l.must(err)
	for _, plugin := range *list {
		if guarded, is := plugin.(guardedFilter); is {
			return []*guard{guarded.guard}
		}
	}
	l.t.Fatal("no plugin is guarded")
	return nil
}
