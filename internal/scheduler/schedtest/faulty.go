package schedtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

func namesOf(list func() ([]fwk.NodeInfo, error)) func() ([]string, error) {
	return func() ([]string, error) {
		infos, err := list()
		names := make([]string, len(infos))
		for i, info := range infos {
			names[i] = info.Node().Name
		}
		slices.Sort(names)
		return names, err
	}
}

// NewFaulty returns a scheduler that retries pods without backoff. Its binds bypass the fake client, because the
// fake client handles only one call at a time.
func NewFaulty(t *testing.T, nodes []*v1.Node, options ...kubescheduler.Option) *Live {
	t.Helper()
	server := NewAPI()
	for _, node := range nodes {
		server.Put(node)
	}
	profile := DefaultProfile(t).DeepCopy()
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: "Binder"}}, Disabled: []config.Plugin{{Name: pluginnames.DefaultBinder}}}
	registry := frameworkruntime.Registry{"Binder": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return Binder{server}, nil
	}}
	return newLive(t, server, profile, append(options, kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodInitialBackoffSeconds(0), kubescheduler.WithPodMaxBackoffSeconds(0))...)
}

// Binder is a bind plugin that does the same as DefaultBinder.
type Binder struct{ API *API }

// Name returns the name of the plugin.
func (b Binder) Name() string { return "Binder" }

// Bind binds a pod at the API server.
func (b Binder) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
	binding.Target.Name = node
	return fwk.AsStatus(b.API.Bind(binding))
}

// AwaitNode waits until a pod is bound, and returns its node.
func (l *Live) AwaitNode(name string) (node string) {
	l.T.Helper()
	l.Eventually(name+" is bound", func() error {
		pod := l.API.Pod("default/" + name)
		if pod == nil || pod.Spec.NodeName == "" {
			return errors.New("the pod has no node")
		}
		node = pod.Spec.NodeName
		return nil
	})
	return node
}

// BoundOnce waits until a pod is bound, and checks that it was bound once.
func (l *Live) BoundOnce(pod *v1.Pod) {
	l.T.Helper()
	l.AwaitNode(pod.Name)
	l.API.Mu.Lock()
	defer l.API.Mu.Unlock()
	if binds := l.API.Binds[pod.UID]; binds != 1 {
		l.T.Errorf("%s was bound %d times; want once", pod.Name, binds)
	}
}

// AwaitRefusal waits until the scheduler has reported a pod as unschedulable.
func (l *Live) AwaitRefusal(name string) {
	l.T.Helper()
	l.Eventually(name+" is unschedulable", func() error {
		pod := l.API.Pod("default/" + name)
		if pod.Spec.NodeName != "" {
			l.T.Fatalf("%s is on %s", name, pod.Spec.NodeName)
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Reason == v1.PodReasonUnschedulable {
				return nil
			}
		}
		return errors.New("the pod has no such condition")
	})
}

// NodeInfo returns a node of the cache. It is for tests in which no scheduling cycle runs.
func (l *Live) NodeInfo(name string) *framework.NodeInfo {
	l.T.Helper()
	info, err := l.Sched.Cache.GetNode(name)
	l.Must(err)
	return info
}

// AwaitAllocatable waits until the informers and the cache have the version of a node with this allocatable CPU.
func (l *Live) AwaitAllocatable(name string, milliCPU int64) {
	l.T.Helper()
	l.Eventually("the informers and the cache have the change of the node", func() error {
		node, err := l.Informers.Core().V1().Nodes().Lister().Get(name)
		if err != nil {
			return err
		}
		if have := node.Status.Allocatable.Cpu().MilliValue(); have != milliCPU {
			return fmt.Errorf("the informer has the node with %d millicores", have)
		}
		return l.handled(node)
	})
}

// handled returns an error unless the cache has received the given version of a node.
func (l *Live) handled(node *v1.Node) error {
	if l.Sched.Cache.(*cache.Cache).PendingNode(node.ResourceVersion) {
		return nil
	}
	if info := l.Ranker.Cluster.CopyNode(node.Name); info == nil || info.Node() == nil || info.Node().ResourceVersion != node.ResourceVersion {
		return errors.New("the cache has not received this version of the node")
	}
	return nil
}

// Place finds a node for a pod and assumes the pod there.
func (l *Live) Place(pod *v1.Pod) {
	l.T.Helper()
	info, err := framework.NewPodInfo(pod)
	l.Must(err)
	queued := &framework.QueuedPodInfo{PodInfo: info}
	result, err := l.Sched.SchedulePod(l.Ctx, l.Sched.Profiles[v1.DefaultSchedulerName], framework.NewCycleState(), queued)
	l.Must(err)
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = result.SuggestedHost
	l.Must(l.Sched.Cache.AssumePod(klog.Logger{}, assumed))
	l.Refresh()
}

// Settled stops the scheduler and waits until its cache and queue match the API server.
func (l *Live) Settled() {
	l.T.Helper()
	l.Stop()
	l.Eventually("the scheduler knows what there is", l.Differs)
}

// Counts reads a counter, and returns a function that returns by how much the counter has grown since then.
func Counts(t *testing.T, read func() (float64, error)) (grown func() int) {
	t.Helper()
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		now, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return int(now - before)
	}
}
