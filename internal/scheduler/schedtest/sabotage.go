package schedtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// saboteur is a plugin for every extension point. For a pod with the label [Sabotage], it calls the test's function
// at the extension point that the label names.
type saboteur struct {
	do func(ctx context.Context, point string, pod *v1.Pod, node fwk.NodeInfo)
}

// Sabotage is the pod label that names the extension point.
const Sabotage = "sabotage"

func (s *saboteur) Name() string { return "Saboteur" }

func (s *saboteur) act(ctx context.Context, point string, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if pod.Labels[Sabotage] == point {
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
	if s.act(ctx, "PreBind", pod, nil); pod.Labels[Sabotage] == "Unreserve" {
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

// NewSabotaged returns a scheduler with a plugin that calls do for pods with the label [Sabotage].
func NewSabotaged(t *testing.T, do func(context.Context, string, *v1.Pod, fwk.NodeInfo)) *Live {
	t.Helper()
	profile := DefaultProfile(t).DeepCopy()
	profile.Plugins.MultiPoint.Enabled = append(profile.Plugins.MultiPoint.Enabled, config.Plugin{Name: "Saboteur"})
	profile.Plugins.Bind.Enabled = []config.Plugin{{Name: "Saboteur"}, {Name: pluginnames.DefaultBinder}}
	registry := frameworkruntime.Registry{"Saboteur": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return &saboteur{do}, nil
	}}
	server := NewAPI()
	for i := range 20 {
		server.Put(PlainNode(fmt.Sprintf("node-%d", i), "32"))
	}
	return newLive(t, server, profile, kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodInitialBackoffSeconds(0), kubescheduler.WithPodMaxBackoffSeconds(0))
}

// Mix creates one pod with the label [Sabotage] for each extension point, among other pods. It waits until all
// other pods are bound.
func (l *Live) Mix(points []string) {
	l.T.Helper()
	const goodPods = 100
	for i := range goodPods {
		l.API.Put(PlainPod(fmt.Sprintf("good-%d", i), "100m"))
		if i < len(points) {
			bad := PlainPod("bad-"+points[i], "100m")
			bad.Labels[Sabotage] = points[i]
			l.API.Put(bad)
		}
	}
	l.Eventually("good pods are bound", func() error {
		bound := 0
		for _, pod := range l.API.Pods() {
			if pod.Spec.NodeName != "" && strings.HasPrefix(pod.Name, "good-") {
				bound++
			}
		}
		if bound != goodPods {
			return fmt.Errorf("%d of %d pods are bound", bound, goodPods)
		}
		return nil
	})
}

// Complaint waits until the scheduler has written a condition with the given text to a pod.
func (l *Live) Complaint(name, want string) {
	l.T.Helper()
	l.Eventually(name+" has a condition with the error", func() error {
		l.API.Mu.Lock()
		defer l.API.Mu.Unlock()
		conditions := l.API.conditions["default/"+name]
		for _, condition := range conditions {
			if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonSchedulerError && strings.Contains(condition.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("the last condition is %+v", conditions[max(0, len(conditions)-1):])
	})
}

// CyclePoints are the extension points whose calls block the scheduling cycle.
var CyclePoints = []string{"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit"}
